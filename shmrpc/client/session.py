"""One connection of a client in an event loop, and the calls that are under way on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import types
from collections.abc import Callable, Generator
from typing import Any, overload

from shmrpc import _core
from shmrpc.basics.deadlines import Deadlines
from shmrpc.client.lateness import Lateness
from shmrpc.client.requests import body_of, ended_call, lost_call, take_metadata, unsendable
from shmrpc.errors import ConnectionLost, DecodeError, LocalProtocolError, RemoteProtocolError, ShmrpcError
from shmrpc.host.processes import process
from shmrpc.service.call import Call
from shmrpc.streams.receiving import Incoming
from shmrpc.streams.sending import Outgoing
from shmrpc.transport.base import Connection, End, Frame
from shmrpc.wire import frames
from shmrpc.wire.codec import Body


class Receiving:
    """A call whose answer is taken as it comes. Among the pending ones it stands where a future does.

    ``streams``: whether it is a stream. ``on_end`` is called at its end.
    """

    def __init__(
        self, session: Session, call: Call, *, streams: bool = True, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self._session = session
        self._call = call
        self._on_end = on_end
        self.streams = streams
        self.incoming = Incoming(self._grant)
        #: The final answer: the body of the result, nil after a stream; or why there is none.
        self.body: Body | None = None
        self.error: BaseException | None = None

    def _grant(self, size: int) -> None:
        with contextlib.suppress(_core.ChannelError):
            self._session.send(frames.CREDIT, self._call.id, frames.encode_credit(size))

    def done(self) -> bool:
        """Whether nothing more is expected."""
        return self.incoming.ended

    def cancelled(self) -> bool:
        """Never: who is enough of it says so to the server."""
        return False

    def set_result(self, frame: Frame) -> None:
        """The final answer: how the stream ended."""
        try:
            self.body = body_of(frame, self._call)
        except ShmrpcError as error:
            self.set_exception(error)
        else:
            self.incoming.finish()
            self._on_end()

    def set_metadata(self, body: Body) -> None:
        """What the handler had set before its first item; RemoteProtocolError if it is none."""
        try:
            take_metadata(body, self._call)
        except DecodeError as error:
            raise RemoteProtocolError(str(error)) from None

    def set_exception(self, error: BaseException) -> None:
        """The stream was cut off."""
        self.error = error
        self.incoming.finish(error)
        self._on_end()


class Session:
    """A connection and its calls. It is what :class:`shmrpc.service.call.CallPeer` describes."""

    def __init__(
        self, connection: Connection, on_end: Callable[[Session], None], on_go_away: Callable[[Session], None]
    ) -> None:
        self.connection = connection
        self.service, self.pid, self.uid, self.state = connection.service, connection.pid, connection.uid, None
        self.numbers = {name: number for number, name in enumerate(connection.endpoints)}
        self.shapes = connection.shapes
        self.exchange, self.begin, self.send = connection.exchange, connection.begin, connection.send
        self.next_id = itertools.count(1).__next__
        self.pending: dict[int, asyncio.Future[Frame] | Receiving] = {}
        #: Streams to the server, by call id and number.
        self.outgoing: dict[tuple[int, int], tuple[Outgoing, Callable[[], object]]] = {}
        self.ended: ShmrpcError | None = None
        #: When large one-way calls let the loop turn.
        self.slice_end = 0.0
        #: There is another session for new calls.
        self.leaving = False
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._deadlines: Deadlines[int] = Deadlines(self._expire)
        self._lateness = Lateness(connection)
        #: By call id: the endpoint, and since when it is waited for.
        self._watched: dict[int, tuple[str, int]] = {}
        connection.start(self.pending, self._on_frame, self._on_lost, lambda: on_go_away(self))

    async def wait(self, call_id: int, frame: Frame | None, call: Call | None = None) -> Body:
        """Lets the loop go on until the answer is there; the body of its result.

        ``frame``: one that came in its stead. ``call``: if there is more to it than its arguments.
        """
        connection = self.connection
        try:
            connection.check_loop()
        except LocalProtocolError:
            self.cancel(call_id)
            if frame is not None:  # Somebody in our loop waits for it.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._on_frame, *frame)
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
                connection.listen()
            except BaseException as error:
                future.cancel()
                connection.interrupted(error)
                raise
            if future.done():
                await _turn()
            answer = await future
        except asyncio.CancelledError:
            if future.cancelled() or not future.done():
                self.cancel(call_id)
            raise
        finally:
            del pending[call_id]
            if timed:
                self.unwatch(call)  # type: ignore[arg-type]
            if self.leaving:
                self.close_if_idle()
            # The traceback of its error has this frame: without the future there is no cycle, and what a failed
            # call holds goes at once.
            del future
        # A call that was cancelled does not come here, and we go on listening: its late answer is to be
        # taken out of the ring.
        if not pending:
            connection.unpark()
        if answer[0] == frames.RESULT:
            return answer[2]
        return body_of(answer, call)

    def allocate(self, size: int) -> Any:
        """So many bytes of memory that the server can be given; SharedMemoryError if there are none."""
        self.connection.check_process()
        if self.ended is not None:
            raise ended_call(self.ended)
        try:
            return self.connection.allocate(size)
        except _core.ChannelError as error:
            raise self.unsent("allocate", error) from None

    def begin_stream(self, call: Call, receiving: Receiving) -> None:
        """From now on the items of a call come to ``receiving``."""
        self.pending[call.id] = receiving
        if call.deadline is not None:
            self.watch(call)

    def end_stream(self, call: Call) -> None:
        """Nobody takes items of this call any more. Those that are on the way yet are dropped."""
        receiving = self.pending.pop(call.id)
        if call.deadline is not None:
            self.unwatch(call)
        if isinstance(receiving, Receiving):
            receiving.incoming.drop()  # The connection knows it until another stream is read.
            receiving.error = None  # Its traceback has who was told of it.
        if not receiving.done():
            self.cancel(call.id)
        if not self.pending:
            self.connection.unpark()
            self.close_if_idle()

    def watch(self, call: Call) -> None:
        """From now on the call ends at its deadline."""
        assert call.deadline is not None
        self._watched[call.id] = call.endpoint, self._lateness.look()
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
            future.set_exception(self._lateness.error(endpoint, since, taken_back=taken_back))

    def cancel(self, call_id: int) -> bool:
        """Nobody waits for this call any more. True if it was never sent: there was no room for it yet."""
        with contextlib.suppress(_core.ChannelError):
            if self.connection.take_back(call_id):
                return True
            self.send(frames.CANCEL, call_id, frames.NIL)
        return False

    async def room(self, call: Call) -> None:
        """Waits until all that was sent has found room; a call whose deadline comes before that is not sent."""
        if call.deadline is None:
            return await self.connection.room()
        since = self._lateness.look()
        try:
            async with asyncio.timeout(max(0.0, (call.deadline - since) / 1e9)):
                await self.connection.room()
        except TimeoutError:
            if self.connection.take_back(call.id):
                raise self._lateness.error(call.endpoint, since, taken_back=True) from None

    def _on_frame(self, opcode: int, call_id: int, body: Body) -> None:
        """A frame has come. An answer that nobody waits for any more is dropped."""
        if opcode <= frames.FAILURE or opcode == frames.RESULT_WITH:
            future = self.pending.get(call_id)
            if future is not None and not future.done():
                future.set_result((opcode, call_id, body))
            return
        try:
            self._on_stream_frame(opcode, call_id, body)
        except RemoteProtocolError as error:
            self.connection.fault(error)

    def _on_stream_frame(self, opcode: int, call_id: int, body: Body) -> None:
        kind, number = opcode & 0xFF, opcode >> 8
        if kind == frames.ITEM and number == 0:
            receiving = self.pending.get(call_id)
            if isinstance(receiving, Receiving) and receiving.streams:
                receiving.incoming.feed((0, body))
            elif receiving is not None:
                raise RemoteProtocolError(f"it sent an item for call {call_id}, which has one result")
        elif opcode == frames.METADATA:
            receiving = self.pending.get(call_id)
            if isinstance(receiving, Receiving):
                receiving.set_metadata(body)
        elif kind in (frames.CREDIT, frames.STOP):
            # For a stream of a call that has ended it is too late, and no fault.
            outgoing, stop = self.outgoing.get((call_id, number), (None, None))
            if stop is not None and kind == frames.STOP:
                stop()
            elif kind == frames.CREDIT:
                size = frames.decode_credit(body)
                if size is None:
                    raise RemoteProtocolError("it sent credit that is no number of bytes")
                if outgoing is not None:
                    outgoing.grant(size)
        else:
            raise RemoteProtocolError(f"it sent opcode {opcode:#x}, which no server sends")

    def leave(self) -> None:
        """New calls go elsewhere: the connection stays for those under way alone."""
        self.leaving = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """A session that is left closes after its last call."""
        if self.leaving and not self.pending and self.ended is None:
            self.close(ConnectionLost(f"the server of {self.service!r} ({process(self.pid)}) is shutting down"))

    def close(self, error: ShmrpcError) -> None:
        """Closes the connection; calls under way fail."""
        self.connection.close()
        if self.ended is None:
            self._on_lost(End(error))

    def drop(self) -> None:
        """The client was dropped open, in whatever thread the garbage collector ran: closes the connection."""
        if self._loop.is_closed() or threading.get_ident() == self._thread:
            self.connection.drop()
        else:
            with contextlib.suppress(RuntimeError):  # The loop has been closed since; with it goes the connection.
                self._loop.call_soon_threadsafe(self.connection.drop)

    def _on_lost(self, end: End) -> None:
        self.ended = end.error
        try:
            self._fail_all(end)
        except BaseException:  # Out of a signal handler: the others are to hear of it too.
            self._fail_all(end)
            raise
        finally:
            self._on_end(self)

    def _fail_all(self, end: End) -> None:
        self._deadlines.close()
        for call_id, future in list(self.pending.items()):
            if not future.done():
                future.set_exception(lost_call(end, call_id))

    @overload
    def unsent(self, name: str, error: Exception) -> Exception: ...
    @overload
    def unsent(self, name: str, error: BaseException) -> BaseException: ...
    def unsent(self, name: str, error: BaseException) -> BaseException:
        """The error for a call that could not be sent; to be raised from the name of the ``except`` clause.

        What is no Exception stays as it is, and may end the connection.
        Another name stays in a frame of the traceback, and the two keep each other and all that the call was given.
        """
        if isinstance(error, _core.ChannelError):
            try:
                self.connection.check_process()
            except LocalProtocolError as forked:
                return forked
            if self.ended is None:
                self.connection.fault(error)
            return ended_call(self.ended or ConnectionLost(str(error)))
        self._note_interruption(error)
        return unsendable(name, error) if isinstance(error, Exception) else error

    def is_answer(self, error: BaseException) -> bool:
        """Whether an exception of a call is what became of it, and not why it could not be sent."""
        self._note_interruption(error)
        return not isinstance(error, Exception) or isinstance(error, ShmrpcError)

    def _note_interruption(self, error: BaseException) -> None:
        """Closes the connection if an exception out of a signal handler came while frames may have been in hand.

        Whoever sends a call that may bring back another's frame hands its exceptions to unsent() or is_answer(), and
        so comes by here.
        """
        if not isinstance(error, (Exception, asyncio.CancelledError, GeneratorExit)):
            self.connection.interrupted(error)


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """One turn of the loop for the others."""
    yield
