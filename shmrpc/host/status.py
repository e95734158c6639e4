"""Status reports of the live servers of this host."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Collection

import msgspec

from shmrpc.basics.green_threads import new_poll
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError
from shmrpc.host import credentials, rendezvous, runtime_dir
from shmrpc.host.processes import describe_process, explain_no_progress
from shmrpc.wire import control


def collect_reports(
    allow_uids: Collection[int] = (), on_silent: Callable[[str], None] = lambda message: None
) -> list[control.StatusReport]:
    """Return the reports of the live servers of this user, of root, and of ``allow_uids``, sorted by service.

    The ``pid`` of a report comes from the kernel; 0 if it is not visible from here. All servers are queried at once.
    ``on_silent`` is called with a message for each server that does not answer within :data:`control.STEP_TIMEOUT`, or
    whose backlog is full. A server that refuses this user, or answers with anything but a report, is left out silently.
    Blocks for at most that time. Raises LocalProtocolError if the runtime directory is not safe, and SharedMemoryError
    if no descriptor is left.
    """
    reports, asked = [], dict[socket.socket, str]()
    with contextlib.ExitStack() as stack:
        for service in runtime_dir.services(allow_uids):
            try:
                dialled = rendezvous.dial(service, allow_uids)
            except (PermissionError, LocalProtocolError):  # One of the two users does not trust the other.
                continue
            except ConnectionLost as error:
                on_silent(f"{service}: {error}")
                continue
            if dialled is not None:
                asked[stack.enter_context(dialled)] = service
                with contextlib.suppress(
                    BrokenPipeError, ConnectionResetError
                ):  # The reason for the refusal is received below.
                    dialled.send(control.encode(control.StatusRequest()))
        deadline = time.monotonic() + control.STEP_TIMEOUT
        waiting = dict(asked)
        while waiting and (ready := _readable(waiting, deadline)):
            for each in ready:
                del waiting[each]
                with contextlib.suppress(RemoteProtocolError):
                    received = rendezvous.receive_packet(each)
                    message = control.decode(received.data)
                    if isinstance(message, control.StatusReport):
                        # Ids of another pid namespace mean nothing here.
                        workers = message.workers if message.pid == received.pid else {}
                        reports.append(msgspec.structs.replace(message, pid=received.pid, workers=workers))
        for each, service in waiting.items():
            pid, _ = credentials.peer_credentials(each)
            why = explain_no_progress(pid)
            on_silent(f"{service}: {describe_process(pid)} has not answered within {control.STEP_TIMEOUT:g} s: {why}")
    return sorted(reports, key=lambda report: report.service)


def _readable(waiting: Collection[socket.socket], deadline: float) -> list[socket.socket]:
    """Wait until some of the sockets are readable, and return them; return an empty list after the deadline."""
    poll = new_poll()
    by_descriptor = {each.fileno(): each for each in waiting}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
