"""A call with streams in threads: the one that reads the answer also sends what there is credit for."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from shmrpc import _core
from shmrpc.client.common.call_errors import connection_lost_error
from shmrpc.client.common.stream_exchange import StreamExchange
from shmrpc.client.common.uploads import SourceUpload
from shmrpc.client.threads.coroutine_runner import iter_steps
from shmrpc.client.threads.session import ThreadSession
from shmrpc.errors import EndOfStream, RemoteProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.streams.credit import WORTH_GRANTING, ReceiveWindow, weight
from shmrpc.streams.items import ItemRun
from shmrpc.transport.connection import Frame
from shmrpc.transport.errors import Backlog, ChannelError
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec

#: Seconds between two looks of a thread whether another one has received what it waits for.
PAUSE: Final = 0.001
_END: Final = object()


class ThreadStreamExchange(StreamExchange):
    """A call with streams, as threads drive it: they take its frames from the core one by one."""

    _session: ThreadSession
    _sources: list[_StepwiseSource]

    def __init__(self, session: ThreadSession, call: Call, *, streams: bool) -> None:
        super().__init__(session, call, streams=streams)
        #: The opcode of its items; None without a stream.
        self._item = frames.ITEM if streams else None
        #: Items that have come and were not taken so far.
        self._items: deque[Body] = deque()
        #: Bytes that were taken since credit was given back.
        self._taken = 0
        #: What it lets in, the core sees to.
        self._window = ReceiveWindow(extra=session.connection.extra_credit)
        #: Whose turn it is to receive, where several threads write and read.
        self._receiving = _core.ReentrantLock()

    def add_item(self, body: Body) -> None:
        """Keeps an item of the answer until it is read."""
        self._items.append(body)

    def begin(self, kind: int, body: Body) -> None:
        """Sends the request. Close it afterwards, also if this raises."""
        self._pending = self._session.calls.begin(kind, self.call.id, body)

    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        self._sources.append(_StepwiseSource(self._session, self.call, codec, number, source))
        return self._sources[-1]

    async def wait_ready(self) -> bool:
        """Waits until there are items: True; or the end: False, or its error raised; gives credit back before."""
        self._settle()
        while not self._items and not self.ended:
            self.wait(lambda: bool(self._items))
        if self._items:
            return True
        if self.error is not None:
            raise self.error
        return False

    def take_runs(self) -> list[ItemRun]:
        """The items that are there."""
        parts: list[ItemRun] = []
        while self._items:
            body = self._items.popleft()
            self._taken += weight(body)
            parts.append((0, body))
        return parts

    def next_item(self) -> Body | None:
        """The next item, for which it waits; None at the end. For one thread that reads."""
        if self._taken >= WORTH_GRANTING:
            self._settle()
        if self._items:
            body = self._items.popleft()
        else:
            try:
                while True:
                    if self.error is not None:
                        raise self.error
                    if self.body is not None:
                        return None
                    frame = self._next_frame()
                    if frame[0] == self._item:  # The short way of what comes most.
                        body = frame[2]
                        break
                    self._feed(frame)
            except ChannelError as error:
                raise self._lost(error) from None
        self._taken += weight(body)
        return body

    def _settle(self) -> None:
        """Gives credit back for items that have been read, once it is worth it."""
        granted, self._taken = self._window.consume(self._taken), 0
        if granted and not self.ended and self._session.close_reason is None:
            with contextlib.suppress(ChannelError):  # Whoever receives next says so.
                self._session.send(frames.CREDIT, self.call.id, frames.encode_credit(granted))

    def wait(self, has_come: Callable[[], bool]) -> None:
        """Waits until something has come for this call, which this thread or another one has received.

        ``has_come``: whether it is what the caller waits for. It is asked again once nobody else can receive: another
        thread may have received it since the caller looked, and then there may be no further frame to wait for.
        """
        self._receive(lambda: None if has_come() else self._next_frame(), PAUSE)

    def receive_all(self) -> None:
        """Takes what has come."""
        while not self.ended and self._receive(lambda: self._session.poll_frame(self._pending), 0.0):
            pass

    def _receive(self, take: Callable[[], Frame | None], pause: float) -> bool:
        """Takes one frame if no other thread does; else sleeps ``pause`` seconds. Whether one was taken."""
        if (turn := self._receiving.try_acquire()) is None:
            if pause:
                time.sleep(pause)
            return False
        try:
            if self.ended or (frame := take()) is None:
                return False
            self._feed(frame)
        except (ShmrpcError, ChannelError) as error:
            self.fail(self._lost(error))
            self.end()
        finally:
            turn.release()
        return True

    def _feed(self, frame: Frame) -> None:
        """Takes a frame that has come. Raises ChannelError for one that no server may send here."""
        try:
            self.feed(frame[0], frame[2])
        except RemoteProtocolError as error:
            raise ChannelError(str(error)) from None

    def _next_frame(self) -> Frame:
        """The next frame; until it is there, what the sources yield is sent as far as there is credit."""
        session = self._session
        looked = time.monotonic()
        while self._step_sources():
            session.check_stopped(self.call.id)
            # A source may be slow, and the server gone meanwhile.
            if time.monotonic() - looked > session.connection.life_check:
                looked = time.monotonic()
                session.drive()
            frame = session.poll_frame(self._pending)
            if frame is not None:
                return frame
        return session.next_frame(self._pending, self.call)

    def _step_sources(self) -> bool:
        """Lets each source go on; False if none can."""
        if not self._sources or self._session.close_reason is not None:
            return False
        return any([source.step() for source in self._sources])  # noqa: C419  # All of them.

    def _lost(self, error: Exception) -> Exception:
        """The error for the call, which had been sent, when the connection has failed with one."""
        unsent, ended = self._session.convert_error(self.call.endpoint, error), self._session.close_reason
        return (
            connection_lost_error(ended, self.call.id)
            if ended is not None and isinstance(error, ChannelError)
            else unsent
        )

    async def close(self) -> None:
        """Ends the call and its sources: a handler that has not ended is cancelled."""
        self.end()
        self._drop_uploads()
        self.error = None  # Its traceback has whoever was told of it.

    def end(self) -> None:
        """Ends the call."""
        self._session.calls.close(self.call.id)
        self.fail(EndOfStream(f"{self.call.endpoint}() was ended by its caller"))


class _StepwiseSource(SourceUpload):
    """Whichever thread reads the answer lets the source go on, until credit or its slice of time is used up."""

    def __init__(self, session: ThreadSession, call: Call, codec: Codec, number: int, source: Any) -> None:
        super().__init__(session, call, codec, number)
        self._closed = False
        self._source = _AsyncAdapter(source)
        #: What is left of sending it; None as long as there was no credit.
        self._steps: Generator[Any, None, None] | None = None

    def step(self) -> bool:
        """Goes on, if there is credit; whether it has."""
        if self._closed or not self.outgoing.may_resume():
            return False
        if self._steps is None:
            self._steps = iter_steps(lambda: self._send_all(self._source), [])
        try:
            self._closed = next(self._steps, _END) is _END
        except Exception as error:  # The source's own, or that of a signal's handler.
            self._closed = True
            if self._is_complete and not isinstance(error, (ChannelError, Backlog)):
                raise  # The handler may have all items, and so nothing to fail with.
            self._fail(error)
        return True

    def close(self) -> None:
        """Ends it: a generator's ``finally`` runs."""
        self._closed = True
        if self._steps is not None:
            with contextlib.suppress(ValueError):  # It is being run: the source itself ended the call.
                self._steps.close()


class _AsyncAdapter:
    """A plain iterable as an async one."""

    def __init__(self, source: Any) -> None:
        self._items: Iterator[Any] = iter(source)
        #: A list's iterator has none, and what is no iterator is the caller's.
        self.close = getattr(source, "close", None) if self._items is source else None

    def __aiter__(self) -> _AsyncAdapter:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
