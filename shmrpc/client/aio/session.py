"""One connection of a client in an event loop, and the calls that are under way on it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import types
from collections.abc import Callable, Generator
from typing import Protocol

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
    """What stands among the pending calls where a future does."""

    def done(self) -> bool:
        """Whether nothing more is expected."""
        ...

    def set_result(self, frame: Frame, /) -> None:
        """Takes the final answer."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Takes the reason why there will be none."""
        ...


class LoopSession(Session[Connection]):
    """A connection in an event loop, which gives each answer to the future that waits for it."""

    def __init__(
        self, connection: Connection, on_end: Callable[[LoopSession], None], on_go_away: Callable[[LoopSession], None]
    ) -> None:
        #: What only shared memory can do, or what stands in for it: asked for here, and nowhere else.
        self.shared_memory: ClientSharedMemoryOps = connection.shared_memory or ClientSharedMemoryFallback(
            connection.send, connection.max_memory, connection.check_loop
        )
        super().__init__(connection, self.shared_memory)
        self.exchange = self.shared_memory.exchange
        self.pending: dict[int, asyncio.Future[Frame] | ReplySink] = {}
        #: There is another session for new calls.
        self.draining = False
        #: When large one-way calls let the loop turn.
        self._slice_end = 0.0
        self._on_end = on_end
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._deadlines: Deadlines[int] = Deadlines(self._expire)
        #: By call id: the endpoint, and since when it is waited for.
        self._watched: dict[int, tuple[str, int]] = {}
        connection.start(self.pending, self._on_frame, self._on_lost, lambda: on_go_away(self))

    async def call_pipelined(self, call: Call, kind: int, body: Body) -> Body:
        """Sends a request, and lets the loop go on until its answer comes: the server works on it meanwhile."""
        self.begin(kind, call.id, body)
        return await self.wait_reply(call.id, None, call)

    async def wait_reply(self, call_id: int, frame: Frame | None, /, call: Call | None = None) -> Body:
        """Lets the loop go on until the answer is there; the body of its result.

        ``frame``: one that came in its stead. ``call``: if there is more to it than its arguments.
        """
        connection = self.connection
        if self.close_reason is not None and frame is None:  # It has, while the call was asked for in turn.
            raise connection_lost_error(self.close_reason, call_id)
        try:
            connection.check_loop()
        except LocalProtocolError:
            self.cancel(call_id)
            if frame is not None:  # Somebody in our loop waits for it.
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
            answer = await future
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
            # The traceback of its error has this frame: without the future there is no cycle, and what a failed
            # call holds goes at once.
            del future
        # A call that was cancelled does not come here, and we go on listening: its late answer is to be
        # taken out of the ring.
        if not pending:
            self.shared_memory.unpark()
        if answer[0] == frames.RESULT:
            return answer[2]
        return result_body(answer, call)

    def check_loop(self) -> None:
        """Raise LocalProtocolError in another loop than its own. A call says itself that the session has ended."""
        if self.close_reason is None:
            self.connection.check_loop()

    def is_draining(self) -> bool:
        """Whether there is another session for new calls."""
        return self.draining

    async def yield_to_loop(self) -> None:
        """Lets the loop turn, which one-way calls keep if what is large of them never waits for room in the ring."""
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + TIME_SLICE

    def begin_stream(self, call: Call, stream_exchange: ReplySink) -> None:
        """Gives the frames of a call to ``stream_exchange`` from now on."""
        self.pending[call.id] = stream_exchange
        if call.deadline is not None:
            self.watch(call)

    def end_stream(self, call: Call) -> None:
        """Stops taking items of this call. Those still on the way are dropped."""
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
        """From now on the call ends at its deadline."""
        assert call.deadline is not None
        self._watched[call.id] = call.endpoint, self._read_progress.look()
        self._deadlines.add(call.id, call.deadline)

    def unwatch(self, call: Call) -> None:
        """It has ended."""
        self._watched.pop(call.id, None)
        self._deadlines.discard(call.id)

    def _expire(self, call_id: int) -> None:
        future = self.pending.get(call_id)
        if future is not None and not future.done():
            endpoint, since = self._watched[call_id]
            taken_back = self.cancel(call_id)
            future.set_exception(self._read_progress.error(endpoint, since, taken_back=taken_back))

    def cancel(self, call_id: int) -> bool:
        """Gives up a call. True if it was never sent, since there was no room for it."""
        with contextlib.suppress(ChannelError):
            if self.shared_memory.take_back(call_id):
                return True
            self.send(frames.CANCEL, call_id, frames.NIL)
        return False

    async def wait_for_room(self, call: Call) -> None:
        """Waits until all that was sent has found room; a call whose deadline comes before that is not sent."""
        if call.deadline is None:
            return await self.connection.wait_for_room()
        since = self._read_progress.look()
        try:
            async with asyncio.timeout(max(0.0, (call.deadline - since) / 1e9)):
                await self.connection.wait_for_room()
        except TimeoutError:
            if self.shared_memory.take_back(call.id):
                raise self._read_progress.error(call.endpoint, since, taken_back=True) from None

    def _on_frame(self, opcode: int, call_id: int, body: Body) -> None:
        """Takes in a frame that has come. An answer that nobody waits for any more is dropped."""
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
        """New calls go elsewhere: the connection stays for those under way alone."""
        self.draining = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Closes a session that is left, after its last call."""
        if self.draining and not self.pending and self.close_reason is None:
            channel = self.shared_memory.channel
            if channel is not None and channel.has_pipelined_calls():  # Each has its turn before this is asked again.
                self.loop.call_later(0.001, self.close_if_idle)
                return
            self.close(
                ConnectionLost(f"the server of {self.service!r} ({describe_process(self.pid)}) is shutting down")
            )

    def close(self, error: ShmrpcError) -> None:
        """Closes the connection; calls under way fail."""
        self.connection.close()
        if self.close_reason is None:
            self._on_lost(CloseReason(error))

    def drop(self) -> None:
        """The client was dropped open, in whatever thread the garbage collector ran: closes the connection."""
        if self.loop.is_closed() or threading.get_ident() == self._thread:
            self.connection.drop()
        else:
            with contextlib.suppress(RuntimeError):  # The loop has been closed since; with it goes the connection.
                self.loop.call_soon_threadsafe(self.connection.drop)

    def _on_lost(self, end: CloseReason) -> None:
        self.close_reason = end
        try:
            self._fail_all(end)
        except BaseException:  # Out of a signal handler: the others are to hear of it too.
            self._fail_all(end)
            raise
        finally:
            self._on_end(self)

    def _fail_all(self, end: CloseReason) -> None:
        self._deadlines.close()
        for call_id, future in list(self.pending.items()):
            if not future.done():
                future.set_exception(connection_lost_error(end, call_id))

    def _closing_error(self, error: ChannelError) -> ShmrpcError | None:
        if self.close_reason is None:
            self.connection.fault(error)
        return None if self.close_reason is None else self.close_reason.error

    def note_interruption(self, error: BaseException) -> None:
        """Closes the connection if an exception out of a signal handler came while frames may have been in hand.

        Whoever sends a call that may bring back another's frame hands its exceptions to unsent(), and so
        comes by here.
        """
        if not isinstance(error, (Exception, asyncio.CancelledError, GeneratorExit)):
            self.connection.interrupted(error)


@types.coroutine
def _yield_once() -> Generator[None, None, None]:
    """One turn of the loop for the others."""
    yield
