"""The client's side of a connection for threads."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from shmrpc import _core
from shmrpc.basics.green_threads import new_poll
from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.host import fork, rendezvous
from shmrpc.host.connect_retry import ConnectRetry, OnRetry
from shmrpc.host.processes import describe_process
from shmrpc.streams.credit import OVERHEAD, WINDOW
from shmrpc.transport.connection import CloseReason, warn_unclosed
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.shm import block_allocation, deadlock_guard, handshake
from shmrpc.transport.shm.close_reason import DOORBELL_CLOSED, parse_close_packet
from shmrpc.wire import control, frames

#: Seconds between checks of a waiting call that the server is alive.
LIFE_CHECK: Final = 0.05

_ThreadConnection = TypeVar("_ThreadConnection", bound="ThreadConnection")
#: Creates a connection from its control socket and the result of the handshake.
Make: TypeAlias = Callable[[socket.socket, handshake.Established], _ThreadConnection]


def connect(
    service: str,
    timeout: float | None,
    check: Callable[[], None] = lambda: None,
    note: OnRetry = lambda reason: None,
    *,
    options: ConnectionOptions,
) -> ThreadConnection:
    """Connect to a service within ``timeout`` seconds; None: no limit. For 0 see :class:`ConnectRetry`.

    ``check`` is called before each attempt, and raises if the connection is no longer needed. ``note`` is called as by
    :func:`.loop_client.connect`. Blocks. Raises ServiceUnavailable if no server takes the client in time, or if one
    refuses; LocalProtocolError in the thread of the server's event loop, if the server's user is not trusted, or if the
    directory is not safe; RemoteProtocolError if the server breaks a rule; SharedMemoryError if this process lacks a
    resource; ValueError or TypeError for an invalid name.
    """
    deadlock_guard.check_thread(service)
    retry = ConnectRetry(service, timeout, options.users, note)
    while True:
        check()
        dialled = retry.dial()
        if dialled is not None:
            try:
                return _run_handshake(dialled, options, retry, ThreadConnection)
            except ConnectionLost as error:  # The server is about to leave or to appear.
                retry.record_failure(error)
        time.sleep(retry.next_pause())


def inherit(
    control_socket: socket.socket, service: str, options: ConnectionOptions, make: Make[_ThreadConnection]
) -> _ThreadConnection:
    """Connect to the owner of the other end of a socket pair, and return the connection that ``make`` creates.

    The connection owns the socket, which is closed on failure. Raises ConnectionLost if the other end was closed or
    does not answer within control.STEP_TIMEOUT seconds, and otherwise as :func:`handshake.connect_client` does.
    """
    return _run_handshake(control_socket, options, ConnectRetry(service, control.STEP_TIMEOUT), make)


def _run_handshake(
    dialled: socket.socket, options: ConnectionOptions, retry: ConnectRetry, make: Make[_ThreadConnection]
) -> _ThreadConnection:
    """Run the handshake, and return the connection that ``make`` creates; close the socket if that fails.

    Raises as :func:`handshake.connect_client` does.
    """
    steps = handshake.connect_client(dialled, options, retry, blocking=True)
    try:
        step = next(steps)
        while not isinstance(step, handshake.Established):
            answer = handshake.receive_in_place(dialled, options)
            step = steps.send(answer or _receive_answer(dialled, retry.welcome_timeout(step)))
        return make(dialled, step)
    except BaseException:
        steps.close()
        dialled.close()
        raise


def _receive_answer(dialled: socket.socket, limit: float) -> rendezvous.Packet | None:
    """Return the next packet, which is empty at the end; None if none arrives within ``limit`` seconds."""
    poll = new_poll()
    poll.register(dialled, select.POLLIN)
    return rendezvous.receive_packet(dialled) if poll.poll(limit * 1000) else None


class ThreadConnection:
    """A client's connection that threads wait on. Owns the control socket ``dialled`` and the channel."""

    #: Maximum bytes of a stream that wait for its reader; extra credit as in :attr:`Connection.extra_credit`.
    stream_window = WINDOW
    extra_credit: Callable[[], int] | None = None

    def __init__(self, dialled: socket.socket, established: handshake.Established) -> None:
        self.service = established.service
        self.pid = established.pid
        self.max_frame = established.max_frame
        self.uid = established.uid
        self.endpoints = established.endpoints
        self.shapes = established.shapes
        #: True once the server has announced that it accepts no new calls.
        self.draining = False
        self.calls = _core.ThreadCalls(
            established.channel,
            replies=list(frames.ANSWERS),
            others=bytes((frames.STOP, frames.CREDIT, frames.METADATA)),
            item=frames.ITEM,
            requests=frames.REQUESTS,
            cancel=frames.CANCEL,
            cancel_body=frames.NIL,
            window=self.stream_window,
            overhead=OVERHEAD,
            check_interval=LIFE_CHECK,
        )
        self.begin = established.channel.begin
        self.send = established.channel.send
        self.life_check = LIFE_CHECK
        self.is_stalled = established.channel.is_stalled
        self.untaken = established.channel.untaken
        self.take_back = established.channel.take_back
        self.channel = established.channel
        self._control = dialled
        self._open = True
        self._made_by = os.getpid()
        #: Received packets of the server that were not handled: its end, or packets left by an exception.
        self._packets: list[bytes] = []
        self._poll_lock = _core.ReentrantLock()
        fork.abandon_in_child(self)

    def check_thread(self) -> None:
        """Raise LocalProtocolError in the thread of the event loop that has to answer. Call this before a wait."""
        if self.pid == self._made_by:
            deadlock_guard.check_thread(self.service)

    def poll_close(self) -> CloseReason | None:
        """Return the reason if the server has ended the connection, otherwise None.

        Returns None, too, if this side has closed the connection, or while another thread polls. Sets
        :attr:`draining` if the server has announced that it accepts no new calls. The caller closes the connection
        after its end; until then, each call returns the reason. Reports an invalid packet by :meth:`fault`.
        """
        if not self._open or (turn := self._poll_lock.try_acquire()) is None:
            return None
        try:
            for _ in range(2):  # An end behind another packet, or behind an error, does not wait for the next poll.
                with contextlib.suppress(OSError, ValueError):
                    # Received and stored in one step, so that no exception of a signal handler comes between.
                    self._packets.extend(map(self._control.recv, (control.MAX_MESSAGE,)))
            for packet in self._packets:
                try:
                    end = parse_close_packet(packet, f"server of {self.service!r}", self.pid)
                except RemoteProtocolError as error:
                    return CloseReason(self.fault(error))
                if end is not None:
                    return end
                self.draining = True
            self._packets.clear()
            return None
        finally:
            turn.release()

    def allocate(self, size: int) -> _core.Buffer:
        """Allocate a block of ``size`` bytes or more. Raises as :func:`block_allocation.allocate` does."""
        return block_allocation.allocate(self.channel, size, self._control)

    def sender(self, opcode: int, call_id: int, credit: int) -> _core.StreamSender:
        """Return a sender of a stream's items, which may send ``credit`` bytes at first."""
        return _core.StreamSender(self.channel, opcode, call_id, credit, OVERHEAD)

    def check_process(self) -> None:
        """Raise LocalProtocolError in a forked child."""
        fork.check_same_process(self.service, self._made_by)

    def fault(self, error: Exception) -> ShmrpcError:
        """Close the connection, report the broken rule to the server, and return the RemoteProtocolError to raise."""
        if isinstance(error, _core.PeerLeft):
            error = RemoteProtocolError(DOORBELL_CLOSED)
        with contextlib.suppress(OSError):
            self._control.send(control.encode(control.Goodbye(str(error), fault=True)))
        self.abandon()
        return RemoteProtocolError(f"the server of {self.service!r} ({describe_process(self.pid)}): {error}")

    def close(self) -> None:
        """Close the connection with a goodbye, and wake the threads that wait. Idempotent. Does not wait."""
        if self._open:
            with contextlib.suppress(OSError):
                self._control.send(control.encode(control.Goodbye("closed")))
            self.abandon()

    def __del__(self) -> None:
        """Close the descriptors of a connection that was dropped open, and issue a ResourceWarning."""
        if getattr(self, "_open", False):
            self.abandon()
            warn_unclosed(self.service, self)

    def abandon(self) -> None:
        """Close the descriptors without a message to the server, and wake the threads that wait. Idempotent.

        In a forked child, only the parent may send a message.
        """
        # Each step is idempotent, because a signal handler may raise between them.
        self.channel.close()
        self.calls.interrupt()
        fork.close_socket(self._control)
        self._open = False
