"""Asks the live servers about themselves."""

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
    allow_uids: Collection[int] = (), silent: Callable[[str], None] = lambda words: None
) -> list[control.StatusReport]:
    """Collects the reports of the live servers of this user, of root, and of ``allow_uids``.

    A report's ``pid`` is the kernel's; 0 if it cannot be seen from here. All servers are asked at once. ``silent`` is
    called for each that does not answer within :data:`control.STEP_TIMEOUT` altogether; a server that refuses our user
    is left out.
    """
    reports, asked = [], dict[socket.socket, str]()
    with contextlib.ExitStack() as stack:
        for service in runtime_dir.services(allow_uids):
            try:
                dialled = rendezvous.dial(service, allow_uids)
            except (PermissionError, LocalProtocolError):  # Of users with whom we do not speak, or who do not with us.
                continue
            except ConnectionLost as error:
                silent(f"{service}: {error}")
                continue
            if dialled is not None:
                asked[stack.enter_context(dialled)] = service
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # What it says comes next.
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
                        # The ids of another pid namespace say nothing here.
                        workers = message.workers if message.pid == received.pid else {}
                        reports.append(msgspec.structs.replace(message, pid=received.pid, workers=workers))
        for each, service in waiting.items():
            pid, _ = credentials.peer_credentials(each)
            why = explain_no_progress(pid)
            silent(f"{service}: {describe_process(pid)} has not answered within {control.STEP_TIMEOUT:g} s: {why}")
    return sorted(reports, key=lambda report: report.service)


def _readable(waiting: Collection[socket.socket], deadline: float) -> list[socket.socket]:
    """Waits until some of them are readable, and returns those; none after the deadline."""
    poll = new_poll()
    by_descriptor = {each.fileno(): each for each in waiting}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
