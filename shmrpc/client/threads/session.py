"""One connection of a client without an event loop, and the calls in flight of its threads.

One of the waiting threads receives frames for all of them. The core chooses it
(core/src/python/rpc/client/shared_channel.rs), because a signal handler may raise between any two steps in Python.
"""

from __future__ import annotations

import contextlib
import math
import time

from shmrpc import _core
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.client.common.call_errors import connection_lost_error
from shmrpc.client.common.requests import result_body
from shmrpc.client.common.session import Session
from shmrpc.client.common.stream_exchange import check_unexpected_frame
from shmrpc.client.threads.coroutine_runner import suspend_after_send
from shmrpc.errors import CallStopped, RemoteProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.transport.connection import CloseReason, Frame, ThreadConnection
from shmrpc.transport.errors import ChannelError, PeerLeft
from shmrpc.wire import control, frames
from shmrpc.wire.codec import Body


class ThreadSession(Session[ThreadConnection]):
    """A connection that threads wait on. Its coroutines suspend only in :meth:`call_pipelined`."""

    def __init__(self, connection: ThreadConnection, stopped: list[bool]) -> None:
        super().__init__(connection, connection)
        self.calls = connection.calls
        self.exchange = connection.calls.exchange
        #: Empty list while calls are allowed; see :class:`ThreadReconnector`.
        self.stopped = stopped
        #: Calls with lower ids had begun before the last stop().
        self._stopped_before = 0

    def is_draining(self) -> bool:
        """Return True if the server has announced that it accepts no new calls."""
        return self.connection.draining

    async def call_pipelined(self, call: Call, kind: int, body: Body) -> Body:
        """Send a request, suspend once, then wait for the reply; see :func:`suspend_after_send`."""
        pending = self.calls.begin(kind, call.id, body)
        await suspend_after_send()
        return self.complete(pending, call)

    async def wait_reply(self, call_id: int, begun: _core.PendingCall, /, call: Call | None = None) -> Body:
        """Wait for the reply to a call; return the body of the result. ``begun``: the call in flight."""
        return self.complete(begun, call)

    def forget_call(self, call_id: int) -> None:
        """End a failed call. Cancels a handler that is still running: a signal handler may have raised here."""
        self.calls.close(call_id)

    def complete(self, pending: _core.PendingCall, call: Call | None = None) -> Body:
        """Wait for the reply to a call in flight; return the body of the result, or raise the error of the call.

        ``call``: given for calls with a deadline or metadata. Also raises the errors of :meth:`next_frame`.
        """
        while not _is_reply(frame := self.next_frame(pending, call)):
            pass
        return result_body(frame, call)

    def next_frame(self, pending: _core.PendingCall, call: Call | None = None) -> Frame:
        """Wait for the next frame of a call in flight, and return it.

        Raises DeadlineExceeded at the deadline, CallStopped, the error of an ended connection, LocalProtocolError in
        the thread whose event loop serves the service, and ChannelError if the server broke the rules of the protocol.
        """
        deadline = None if call is None else call.deadline
        since = self._begin_wait(deadline)
        while True:
            self.check_stopped(pending.id)
            self.connection.check_thread()
            frame = self._next(pending, math.inf if deadline is None else _remaining(deadline))
            if frame is not None:
                return frame
            self.poll_close()
            if deadline is not None and host_nanoseconds() >= deadline:
                taken_back = False
                with contextlib.suppress(ChannelError):
                    taken_back = pending.take_back()
                raise self._read_progress.deadline_error(
                    call.endpoint if call else "the call", since, taken_back=taken_back
                )

    def poll_frame(self, pending: _core.PendingCall) -> Frame | None:
        """Return the next frame of a call in flight, or None if none has arrived.

        Raises the error of an ended connection, and ChannelError if the server broke the rules of the protocol.
        """
        return self._next(pending, 0.0)

    def _next(self, pending: _core.PendingCall, limit: float) -> Frame | None:
        """Wait up to ``limit`` seconds for the next frame of a call. Returns None sooner if poll_close() is due."""
        ended = self.close_reason  # Read first: frames received up to then are still valid.
        try:
            frame = pending.next(0.0 if ended is not None else limit)
        except ChannelError:
            if self.close_reason is None:  # The server broke the rules of the protocol.
                raise
            ended = self.close_reason  # Another thread has closed the session.
        else:
            if frame is not None or ended is None:
                return frame
        raise connection_lost_error(ended, pending.id) from None

    def _begin_wait(self, deadline: int | None) -> int:
        """Sample the server's progress before a wait with a deadline; return the time in nanoseconds, 0 without one."""
        return 0 if deadline is None else self._read_progress.sample()

    def drive(self, limit: float = 0.0) -> bool:
        """Receive for other threads, waiting up to ``limit`` seconds. Returns False if another thread receives.

        Ends the session if the server has closed the connection or died. Raises ChannelError.
        """
        has_received = self.calls.drive(limit)
        self.poll_close()
        return has_received

    def poll_close(self) -> None:
        """End the session if the server has closed the connection or died."""
        end = self.connection.poll_close()
        if end is None or self.close_reason is not None:
            return
        with contextlib.suppress(ChannelError):
            # Replies from before the end are still valid. If another thread receives, it calls this method soon.
            if not self.calls.drive(0.0):
                return
        self.end(end)
        self.connection.abandon()

    def _wait_for_close(self, error: PeerLeft) -> None:
        """Wait until the session has ended, with the server's reason if one arrives in time, otherwise with ``error``.

        A dying process closes its descriptors within moments.
        """
        until = time.monotonic() + control.DEATH_TIMEOUT
        while self.close_reason is None:
            self.poll_close()
            if time.monotonic() >= until:
                self.end(CloseReason(self.connection.fault(error)))
            if self.close_reason is None:
                time.sleep(0.001)

    def is_closed(self) -> bool:
        """Return True if the connection is closed, after a check whether the server has closed it.

        Replies that had arrived before are still delivered.
        """
        if self.close_reason is None:
            try:
                self.drive()
            except ChannelError as error:
                self.end(CloseReason(self.connection.fault(error)))
        return self.close_reason is not None

    async def wait_for_room(self, call: Call) -> None:
        """Wait until all sent frames are in the ring; see the base class. Also raises CallStopped."""
        since = self._begin_wait(call.deadline)
        while self.connection.is_stalled() and self.close_reason is None:
            self.check_stopped(call.id)
            self.connection.check_thread()
            left = self.connection.life_check if call.deadline is None else _remaining(call.deadline)
            if left == 0.0:
                if self.connection.take_back(call.id, frames.REQUESTS):
                    raise self._read_progress.deadline_error(call.endpoint, since, taken_back=True)
                return
            if not self.drive(min(left, self.connection.life_check)):
                time.sleep(0.001)  # noqa: ASYNC251

    def end(self, end: CloseReason) -> None:
        """Record the reason for the end of the session, unless one is recorded, and wake all waiting threads."""
        if self.close_reason is None:
            self.close_reason = end
        self.calls.interrupt()

    def close(self, error: ShmrpcError) -> None:
        """Close the connection; calls in flight in other threads fail, with ``error`` as the reason."""
        self.end(CloseReason(error))
        self.connection.close()

    def stop(self) -> None:
        """Let every call that has begun raise CallStopped in its thread, also a call that does not wait so far."""
        self._stopped_before = self.next_id()
        self.calls.interrupt()

    def check_stopped(self, call_id: int) -> None:
        """Raise CallStopped if the client is stopped, or was stopped since the call began."""
        if self.stopped or call_id < self._stopped_before:
            raise stopped_error(self.service)

    def _closing_error(self, error: ChannelError) -> ShmrpcError | None:
        """End an open connection with ``error``; see the base class.

        After PeerLeft, waits at most DEATH_TIMEOUT seconds for the server's own reason.
        """
        if isinstance(error, PeerLeft):
            self._wait_for_close(error)
        if self.close_reason is None:
            self.end(CloseReason(self.connection.fault(error)))
        return None if self.close_reason is None else self.close_reason.error


def _is_reply(frame: Frame) -> bool:
    """Return True if a frame is the reply of a call without streams, False for a late frame of another kind.

    Raises ChannelError for a frame that no server sends.
    """
    opcode, call_id, body = frame
    if opcode in frames.ANSWERS:
        return True
    try:
        check_unexpected_frame(opcode, call_id, body, under_way=True)
    except RemoteProtocolError as error:
        raise ChannelError(str(error)) from None
    return False


def stopped_error(service: str) -> CallStopped:
    """Return the error for a call that the client's stop() has ended."""
    return CallStopped(f"this client of {service!r} was stopped; resume() lets it call again")


def _remaining(deadline: int) -> float:
    """Return the seconds until a deadline in nanoseconds; 0 after it."""
    return max(0.0, (deadline - host_nanoseconds()) / 1e9)
