"""A call with streams in threads: the thread that reads the reply also sends the items of the sources."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from shmrpc import _core
from shmrpc.client.common.call_errors import connection_lost_error, ended_by_caller_error
from shmrpc.client.common.stream_exchange import StreamExchange
from shmrpc.client.common.uploads import SourceUpload
from shmrpc.client.threads.coroutine_runner import iter_steps
from shmrpc.client.threads.session import ThreadSession
from shmrpc.errors import RemoteProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.streams.credit import WORTH_GRANTING, ReceiveWindow, weight
from shmrpc.streams.items import ItemRun
from shmrpc.transport.connection import Frame
from shmrpc.transport.errors import Backlog, ChannelError
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec

#: Seconds between checks for a frame that another thread receives.
PAUSE: Final = 0.001
_END: Final = object()


class ThreadStreamExchange(StreamExchange):
    """A call with streams, whose threads receive one frame at a time from the core."""

    _session: ThreadSession
    _sources: list[_StepwiseSource]

    def __init__(self, session: ThreadSession, call: Call, *, streams: bool) -> None:
        super().__init__(session, call, streams=streams)
        #: Opcode of the reply's items; None without a stream.
        self._item = frames.ITEM if streams else None
        #: Received items that were not taken.
        self._items: deque[Body] = deque()
        #: Bytes taken since credit was last returned.
        self._taken = 0
        #: Credit of the reply's stream. The core enforces it.
        self._window = ReceiveWindow(extra=session.connection.extra_credit)
        #: Lock of the thread that receives, if several threads write and read.
        self._receiving = _core.ReentrantLock()

    def add_item(self, body: Body) -> None:
        """Store an item of the reply until it is read."""
        self._items.append(body)

    def begin(self, kind: int, body: Body) -> None:
        """Send the request. The caller must call close() afterwards, also if this raises."""
        self._pending = self._session.calls.begin(kind, self.call.id, body)

    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        """Create the upload of a source, which runs in steps while a thread waits for the reply."""
        self._sources.append(_StepwiseSource(self._session, self.call, codec, number, source))
        return self._sources[-1]

    async def wait_ready(self) -> bool:
        """Return credit, then wait for items; see the base class."""
        self._return_credit()
        while not self._items and not self.ended:
            self.wait(lambda: bool(self._items))
        if self._items:
            return True
        if self.error is not None:
            raise self.error
        return False

    def take_runs(self) -> list[ItemRun]:
        """Remove the received items and return them."""
        parts: list[ItemRun] = []
        while self._items:
            body = self._items.popleft()
            self._taken += weight(body)
            parts.append((0, body))
        return parts

    def next_item(self) -> Body | None:
        """Wait for the next item and return it; return None at the end. Raises the error of a failed call.

        For a single reading thread. Sends items of the sources while it waits.
        """
        if self._taken >= WORTH_GRANTING:
            self._return_credit()
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
                    if frame[0] == self._item:  # The fast path of the most frequent frame.
                        body = frame[2]
                        break
                    self._feed(frame)
            except ChannelError as error:
                raise self._convert_error(error) from None
        self._taken += weight(body)
        return body

    def _return_credit(self) -> None:
        """Return the credit of items that were read, once there is enough for a frame."""
        granted, self._taken = self._window.consume(self._taken), 0
        if granted and not self.ended and self._session.close_reason is None:
            with contextlib.suppress(ChannelError):  # The next receive raises it.
                self._session.send(frames.CREDIT, self.call.id, frames.encode_credit(granted))

    def wait(self, has_come: Callable[[], bool]) -> None:
        """Wait until this thread or another one has received a frame of this call.

        ``has_come`` returns True if the awaited frame has arrived. This method calls it once no other thread can
        receive, because another thread may have received the last frame after the caller's check.
        """
        self._receive(lambda: None if has_come() else self._next_frame(), PAUSE)

    def receive_all(self) -> None:
        """Handle all frames that have arrived. Does nothing if another thread receives."""
        while not self.ended and self._receive(lambda: self._session.poll_frame(self._pending), 0.0):
            pass

    def _receive(self, take: Callable[[], Frame | None], pause: float) -> bool:
        """Handle the frame that ``take`` returns; sleep ``pause`` seconds instead if another thread receives.

        Returns True if this thread has handled a frame, or has ended the call after an error.
        """
        if (guard := self._receiving.try_acquire()) is None:
            if pause:
                time.sleep(pause)
            return False
        try:
            if self.ended or (frame := take()) is None:
                return False
            self._feed(frame)
        except (ShmrpcError, ChannelError) as error:
            self.fail(self._convert_error(error))
            self.end()
        finally:
            guard.release()
        return True

    def _feed(self, frame: Frame) -> None:
        """Handle a received frame. Raises ChannelError for a frame that no server may send here."""
        try:
            self.feed(frame[0], frame[2])
        except RemoteProtocolError as error:
            raise ChannelError(str(error)) from None

    def _next_frame(self) -> Frame:
        """Wait for the next frame and return it. Sends items of the sources meanwhile, as far as there is credit."""
        session = self._session
        checked = time.monotonic()
        while self._step_sources():
            session.check_stopped(self.call.id)
            # A source may be slow, and the server may die meanwhile.
            if time.monotonic() - checked > session.connection.life_check:
                checked = time.monotonic()
                session.drive()
            frame = session.poll_frame(self._pending)
            if frame is not None:
                return frame
        return session.next_frame(self._pending, self.call)

    def _step_sources(self) -> bool:
        """Run each source for a step. Returns False if none has run. Raises as :meth:`_StepwiseSource.step` does."""
        if not self._sources or self._session.close_reason is not None:
            return False
        return any([source.step() for source in self._sources])  # noqa: C419  # All of them.

    def _convert_error(self, error: Exception) -> Exception:
        """Return the error to raise in the caller for an internal error after the request was sent."""
        converted, ended = self._session.convert_error(self.call.endpoint, error), self._session.close_reason
        if ended is not None and isinstance(error, ChannelError):
            return connection_lost_error(ended, self.call.id)
        return converted

    async def close(self) -> None:
        """End the call and its sources, and discard the uploads."""
        self.end()
        self._drop_uploads()
        self.error = None  # Its traceback refers to the frames of its readers.

    def end(self) -> None:
        """End the call and its sources without waiting; see the base class."""
        self._session.calls.close(self.call.id)
        self.fail(ended_by_caller_error(self.call.endpoint))


class _StepwiseSource(SourceUpload):
    """An upload that runs in the thread that reads the reply. A step ends when credit or the time slice is used up."""

    def __init__(self, session: ThreadSession, call: Call, codec: Codec, number: int, source: Any) -> None:
        super().__init__(session, call, codec, number)
        self._closed = False
        self._source = _AsyncAdapter(source)
        #: Remaining steps of the upload; None before the first credit.
        self._steps: Generator[Any, None, None] | None = None

    def step(self) -> bool:
        """Run the source for a step if there is credit. Returns True if it ran.

        Raises the error of a source that fails after the end of the stream was sent.
        """
        if self._closed or not self.outgoing.may_resume():
            return False
        if self._steps is None:
            self._steps = iter_steps(lambda: self._send_all(self._source), [])
        try:
            self._closed = next(self._steps, _END) is _END
        except Exception as error:  # Raised by the source, or by a signal handler.
            self._closed = True
            if self._is_complete and not isinstance(error, (ChannelError, Backlog)):
                raise  # The handler may have received all items already, and cannot fail with this error.
            self._fail(error)
        return True

    def close(self) -> None:
        """End the source. Runs the ``finally`` clauses of a generator."""
        self._closed = True
        if self._steps is not None:
            with contextlib.suppress(ValueError):  # The source is running: it has ended the call itself.
                self._steps.close()


class _AsyncAdapter:
    """An asynchronous iterator over a plain iterable."""

    def __init__(self, source: Any) -> None:
        self._items: Iterator[Any] = iter(source)
        #: Method that closes the source; None if the iterable is not its own iterator, and belongs to the caller.
        self.close = getattr(source, "close", None) if self._items is source else None

    def __aiter__(self) -> _AsyncAdapter:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
