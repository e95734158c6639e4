"""One connection of a client in an event loop, and its calls in flight."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import types
from collections.abc import Callable, Generator
from typing import Protocol

from shmrpc.basics.clock import seconds_until
from shmrpc.basics.deadlines import Deadlines
from shmrpc.client.common.call_errors import connection_lost_error
from shmrpc.client.common.requests import result_body
from shmrpc.client.common.session import Session
from shmrpc.client.common.stream_exchange import StreamExchange, check_unexpected_frame
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ShmrpcError
from shmrpc.host.processes import describe_process
from shmrpc.service.call import Call
from shmrpc.streams.sending import TIME_SLICE
from shmrpc.transport.connection import CloseReason, Connection, Frame
from shmrpc.transport.errors import ChannelError
from shmrpc.transport.shared_memory_ops import ClientSharedMemoryFallback, ClientSharedMemoryOps
from shmrpc.wire import frames
from shmrpc.wire.codec import Body


class ReplySink(Protocol):
    """An object that receives the frames of a call in the place of a future."""

    def done(self) -> bool:
        """Return True if no further frame is expected."""
        ...

    def set_result(self, frame: Frame, /) -> None:
        """Handle the final reply."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Handle the error that takes the place of a final reply."""
        ...


class LoopSession(Session[Connection]):
    """A connection in an event loop, which passes each reply to the future that waits for it."""

    def __init__(
        self, connection: Connection, on_end: Callable[[LoopSession], None], on_go_away: Callable[[LoopSession], None]
    ) -> None:
        #: Operations that need shared memory, or their fallback. The only place that decides between the two.
        self.shared_memory: ClientSharedMemoryOps = connection.shared_memory or ClientSharedMemoryFallback(
            connection.send, connection.max_memory, connection.check_loop
        )
        super().__init__(connection, self.shared_memory)
        self.exchange = self.shared_memory.exchange
        self.pending: dict[int, asyncio.Future[Frame] | ReplySink] = {}
        #: True once new calls must go to another session.
        self.draining = False
        #: Time at which a large one-way call lets other tasks run.
        self._slice_end = 0.0
        self._on_end = on_end
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._deadlines: Deadlines[int] = Deadlines(self._expire)
        #: Endpoint, and start of the wait in nanoseconds, of calls with a deadline, by call id.
        self._watched: dict[int, tuple[str, int]] = {}
        connection.start(self.pending, self._on_frame, self._on_lost, lambda: on_go_away(self))

    async def call_pipelined(self, call: Call, kind: int, body: Body) -> Body:
        """Send a request, and wait for the reply in the event loop, without spinning for it first."""
        self.begin(kind, call.id, body)
        return await self.wait_reply(call.id, None, call)

    async def wait_reply(self, call_id: int, frame: Frame | None, /, call: Call | None = None) -> Body:
        """Wait for the reply in the event loop; return the body of the result.

        ``frame``: a received frame of another call, which is passed on. ``call``: given for a call with a deadline or
        metadata. Raises the error of the call; LocalProtocolError outside of the connection's loop. If the caller is
        cancelled, cancels the call.
        """
        connection = self.connection
        if self.close_reason is not None and frame is None:  # The connection ended while the call was requested.
            raise connection_lost_error(self.close_reason, call_id)
        try:
            connection.check_loop()
        except LocalProtocolError:
            self.cancel(call_id)
            if frame is not None:  # A task of the connection's own loop waits for it.
                with contextlib.suppress(RuntimeError):
                    self.loop.call_soon_threadsafe(self._on_frame, *frame)
            raise
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        pending = self.pending
        pending[call_id] = future
        timed = call is not None and call.deadline is not None
        if timed:
            self.watch(call)  # type: ignore[arg-type]
        try:
            try:
                if frame is not None:
                    self._on_frame(*frame)
                self.shared_memory.listen()
            except BaseException as error:
                future.cancel()
                connection.interrupted(error)
                raise
            if future.done():
                await _yield_once()
            reply = await future
        except asyncio.CancelledError:
            if future.cancelled() or not future.done():
                self.cancel(call_id)
            raise
        finally:
            del pending[call_id]
            if timed:
                self.unwatch(call)  # type: ignore[arg-type]
            if self.draining:
                self.close_if_idle()
            # The traceback of the future's error refers to this frame. Without the local variable there is no reference
            # cycle, and a failed call is freed at once.
            del future
        # A cancelled call does not get here, so its session keeps listening: the late reply must leave the ring.
        if not pending:
            self.shared_memory.unpark()
        if reply[0] == frames.RESULT:
            return reply[2]
        return result_body(reply, call)

    def check_loop(self) -> None:
        """Raise LocalProtocolError outside of the connection's loop, RuntimeError without one; return after the end."""
        if self.close_reason is None:
            self.connection.check_loop()

    def is_draining(self) -> bool:
        """Return True if new calls must go to another session."""
        return self.draining

    async def yield_to_loop(self) -> None:
        """Let other tasks run once per time slice, because large one-way calls would starve them."""
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + TIME_SLICE

    def begin_stream(self, call: Call, stream_exchange: ReplySink) -> None:
        """Pass the frames of a call to ``stream_exchange`` from now on."""
        self.pending[call.id] = stream_exchange
        if call.deadline is not None:
            self.watch(call)

    def end_stream(self, call: Call) -> None:
        """Stop passing frames of a call, and cancel the call if it is in flight. Drops frames that arrive later.

        Closes a draining session after its last call.
        """
        self.shared_memory.unroute(call.id)
        stream_exchange = self.pending.pop(call.id, None)
        if stream_exchange is None:
            return
        if call.deadline is not None:
            self.unwatch(call)
        if not stream_exchange.done():
            self.cancel(call.id)
        if not self.pending:
            self.shared_memory.unpark()
            self.close_if_idle()

    def watch(self, call: Call) -> None:
        """Let the call, which has a deadline, fail with DeadlineExceeded then, until :meth:`unwatch`."""
        assert call.deadline is not None
        self._watched[call.id] = call.endpoint, self._read_progress.sample()
        self._deadlines.add(call.id, call.deadline)

    def unwatch(self, call: Call) -> None:
        """Forget the deadline of a call that has ended."""
        self._watched.pop(call.id, None)
        self._deadlines.discard(call.id)

    def _expire(self, call_id: int) -> None:
        """Cancel a call whose deadline has passed, and let its future raise DeadlineExceeded."""
        future = self.pending.get(call_id)
        if future is not None and not future.done():
            endpoint, since = self._watched[call_id]
            taken_back = self.cancel(call_id)
            future.set_exception(self._read_progress.deadline_error(endpoint, since, taken_back=taken_back))

    def cancel(self, call_id: int) -> bool:
        """Withdraw a call that waits for room, or tell the server to cancel it. Returns True if it was withdrawn.

        Raises nothing if the connection has ended.
        """
        with contextlib.suppress(ChannelError):
            if self.shared_memory.take_back(call_id):
                return True
            self.send(frames.CANCEL, call_id, frames.NIL)
        return False

    async def wait_for_room(self, call: Call) -> None:
        """Wait until all sent frames are in the ring; see the base class."""
        if call.deadline is None:
            return await self.connection.wait_for_room()
        since = self._read_progress.sample()
        try:
            async with asyncio.timeout(max(0.0, seconds_until(call.deadline))):
                await self.connection.wait_for_room()
        except TimeoutError:
            if self.shared_memory.take_back(call.id):
                raise self._read_progress.deadline_error(call.endpoint, since, taken_back=True) from None

    def _on_frame(self, opcode: int, call_id: int, body: Body) -> None:
        """Pass a received frame to the future or exchange of its call. Drops the replies of calls that have ended."""
        if opcode <= frames.FAILURE or opcode == frames.RESULT_WITH:
            future = self.pending.get(call_id)
            if future is not None and not future.done():
                future.set_result((opcode, call_id, body))
            return
        try:
            stream_exchange = self.pending.get(call_id)
            if isinstance(stream_exchange, StreamExchange):
                stream_exchange.feed(opcode, body)
            else:
                check_unexpected_frame(opcode, call_id, body, under_way=stream_exchange is not None)
        except RemoteProtocolError as error:
            self.connection.fault(error)

    def drain(self) -> None:
        """Accept no new calls, and close the connection after the last call in flight."""
        self.draining = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close a draining session without calls in flight; check again soon while it has pipelined calls."""
        if self.draining and not self.pending and self.close_reason is None:
            channel = self.shared_memory.channel
            if channel is not None and channel.has_pipelined_calls():  # Check again once they may have finished.
                self.loop.call_later(0.001, self.close_if_idle)
                return
            self.close(
                ConnectionLost(f"the server of {self.service!r} ({describe_process(self.pid)}) is shutting down")
            )

    def close(self, error: ShmrpcError) -> None:
        """Close the connection; calls in flight fail, with ``error`` as the reason. Idempotent.

        Call this in the loop's thread.
        """
        self.connection.close()
        if self.close_reason is None:
            self._on_lost(CloseReason(error))

    def drop(self) -> None:
        """Close the connection of a client that was dropped open, with a ResourceWarning. Safe in any thread."""
        if self.loop.is_closed() or threading.get_ident() == self._thread:
            self.connection.drop()
        else:
            with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile, and the connection with it.
                self.loop.call_soon_threadsafe(self.connection.drop)

    def _on_lost(self, end: CloseReason) -> None:
        """End the session: let the calls in flight fail, and call the reconnector."""
        self.close_reason = end
        try:
            self._fail_all(end)
        except BaseException:  # Raised by a signal handler: fail the other calls, too.
            self._fail_all(end)
            raise
        finally:
            self._on_end(self)

    def _fail_all(self, end: CloseReason) -> None:
        """Stop the deadlines, and let each call in flight raise an error for the end of the connection."""
        self._deadlines.close()
        for call_id, future in list(self.pending.items()):
            if not future.done():
                future.set_exception(connection_lost_error(end, call_id))

    def _closing_error(self, error: ChannelError) -> ShmrpcError | None:
        """Report ``error`` as a fault of the server, unless the connection has ended; see the base class."""
        if self.close_reason is None:
            self.connection.fault(error)
        return None if self.close_reason is None else self.close_reason.error

    def note_interruption(self, error: BaseException) -> None:
        """Close the connection after an error such as KeyboardInterrupt, because received frames may have been lost.

        Does nothing for an Exception, a CancelledError or a GeneratorExit, also one that a signal handler raised.

        A function that may return another call's frame can raise such an error. Its caller passes each exception to
        convert_error(), which calls this method.
        """
        if not isinstance(error, (Exception, asyncio.CancelledError, GeneratorExit)):
            self.connection.interrupted(error)


@types.coroutine
def _yield_once() -> Generator[None, None, None]:
    """Let the event loop run once."""
    yield
