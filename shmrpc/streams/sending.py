"""The sending end of a stream, in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from shmrpc import _core
from shmrpc.streams.credit import SendWindow, weight
from shmrpc.streams.items import item_error
from shmrpc.wire.codec import Body

#: Encodes an item: a codec's encoder, or a function.
EncodeItem = _core.Encoder | Callable[[Any], Body]
#: Returns the error to raise for an item, given the error of encoding it.
ConvertError = Callable[[Any, Exception], Exception]
#: Seconds after which a producer that never waits yields to the event loop.
TIME_SLICE: Final = 300e-6


class ContextSource(Iterable[Any]):
    """Source whose items are made within a context manager, which is left while the event loop runs."""

    def __init__(self, source: Generator[Any, None, None], context: AbstractContextManager[object]) -> None:
        self.source, self.context = source, context

    def __iter__(self) -> Iterator[Any]:
        return self.source

    def close(self) -> None:
        """Close the source."""
        self.source.close()


class Sender(Protocol):
    """Sender of a stream's items: the core's, or :class:`PlainSender`."""

    def send(self, payload: Body, /) -> bool:
        """Send an item. Returns False if the caller must pause before the next one."""
        ...

    def send_all(self, items: Iterator[Any], encode: EncodeItem, convert_error: ConvertError, /) -> bool:
        """Send the items of ``items``. Returns True if the caller must pause before the next one, False at the end.

        Raises what ``convert_error`` returns if ``encode`` raises an error for an item.
        """
        ...

    def send_each(
        self, items: AsyncIterator[Any], encode: EncodeItem, convert_error: ConvertError, /
    ) -> Awaitable[bool]:
        """Send the items of an asynchronous iterator, in the same way."""
        ...

    def grant(self, size: int, /) -> None:
        """Add credit: the receiver has consumed ``size`` bytes."""
        ...

    def resume(self) -> bool:
        """Begin a new slice of time, after the event loop has run. Returns True if there is credit."""
        ...


class PlainSender:
    """Sender for transports without a native one. Sends even without credit: the caller must pause when told to.

    ``send`` sends the body of an item; ``credit`` is the first credit in bytes.
    """

    def __init__(self, send: Callable[[Body], object], credit: int) -> None:
        self._send = send
        self._window = SendWindow(credit)
        self._slice_end = time.monotonic() + TIME_SLICE

    def send(self, payload: Body) -> bool:
        """Send an item. Returns False if the caller must pause before the next one."""
        self._send(payload)
        self._window.spend(weight(payload))
        return self._window.is_open and time.monotonic() < self._slice_end

    def send_all(self, items: Iterator[Any], encode: EncodeItem, convert_error: ConvertError) -> bool:
        """Send the items that ``items`` yields. Returns True if the caller must pause, False at the end.

        Raises the errors of ``items``, of sending, and those that ``convert_error`` returns.
        """
        return any(not self.send(encode_item(item, encode, convert_error)) for item in items)

    async def send_each(self, items: AsyncIterator[Any], encode: EncodeItem, convert_error: ConvertError) -> bool:
        """Send the items of an asynchronous iterator, in the same way."""
        while True:
            try:  # The caller has called __aiter__, which might restart the iteration.
                item = await anext(items)
            except StopAsyncIteration:
                return False
            if not self.send(encode_item(item, encode, convert_error)):
                return True

    def grant(self, size: int) -> None:
        """Add credit: the receiver has consumed ``size`` bytes."""
        self._window.grant(size)

    def resume(self) -> bool:
        """Begin a new slice of time, after the event loop has run. Returns True if there is credit."""
        self._slice_end = time.monotonic() + TIME_SLICE
        return self._window.is_open


class OutgoingStream:
    """Sending end of a stream. Calls ``on_pause(1)`` before it lets the event loop run once, ``on_pause(-1)`` after.

    A wait for credit follows only then, without these calls.
    """

    __slots__ = ("_closed", "_must_pause", "_on_pause", "_sender", "_waiter", "has_started")

    def __init__(self, sender: Sender, on_pause: Callable[[int], None] = lambda change: None) -> None:
        self._sender = sender
        self._on_pause = on_pause
        #: True once an item was requested from the source.
        self.has_started = False
        self._waiter: asyncio.Future[None] | None = None
        #: For :meth:`write`: True if the next item has to wait, and True if the receiver takes no more items.
        self._must_pause = True
        self._closed = False

    def grant(self, size: int) -> None:
        """Add credit: the receiver has consumed ``size`` bytes."""
        self._sender.grant(size)
        self._wake()

    def close(self) -> None:
        """Let :meth:`write` send no more items, because the receiver takes none, and wake a waiting writer. Idempotent.

        Does not end :meth:`pump`: cancel its task.
        """
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Wake the writer, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def may_resume(self) -> bool:
        """Begin a new slice of time, after the event loop has run. Returns True if items may be sent."""
        return not self._closed and self._sender.resume()

    async def wait_writable(self) -> bool:
        """Wait for credit. Returns True, or False if the receiver takes no more items. For one writer at a time."""
        if self._must_pause and not self._closed:
            await self._pause()
            self._must_pause = False
        return not self._closed

    async def write(self, body: Body) -> bool:
        """Send an item once there is credit. Returns False if the receiver takes no more. For one writer at a time.

        Raises the errors of the sender.
        """
        if not await self.wait_writable():
            return False
        self._must_pause = not self._sender.send(body)
        return True

    async def _pause(self) -> None:
        """Yield to the event loop, and wait until there is credit or the receiver takes no more items."""
        self._on_pause(1)
        try:
            await asyncio.sleep(0)
        finally:
            self._on_pause(-1)
        while not (self._closed or self._sender.resume()):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def pump(
        self,
        items: AsyncIterable[Any] | Iterable[Any],
        encode: EncodeItem,
        unsendable: tuple[type[Exception], ...] = (Exception,),
        before_first: Callable[[], object] | None = None,
    ) -> None:
        """Send all items of ``items`` as credit allows, then close ``items``, also after an error.

        ``before_first`` is called once the first item is encoded, before it is sent, and not at all without items.
        Raises CallRejected for an item whose encoding raises one of ``unsendable``, the errors of ``items``, and those
        of the sender. An error of closing ``items`` takes the place of an earlier error.
        """
        if not self._sender.resume():
            await self._pause()
        self.has_started = True  # Set before the first item is requested from the source.
        failure: BaseException | None = None
        try:
            await self._send_all(items, encode, unsendable, before_first)
        except BaseException as error:
            failure = error
        try:
            # Outside of the except clause, so that errors of closing the source do not get this error as their context.
            close = getattr(items, "aclose", None) or getattr(items, "close", None)
            if close is not None:
                closing = close()
                if isinstance(closing, Awaitable):
                    await closing
            if failure is not None:
                raise failure
        finally:
            del failure  # Its traceback refers to this frame.

    async def _send_all(
        self,
        items: AsyncIterable[Any] | Iterable[Any],
        encode: EncodeItem,
        unsendable: tuple[type[Exception], ...],
        before_first: Callable[[], object] | None,
    ) -> None:
        """Send all items as :meth:`pump` does, without closing ``items``."""

        def convert_error(item: Any, error: Exception) -> Exception:
            return item_error(item, error, unsendable)

        def send_first(item: Any) -> bool:
            body = encode_item(item, encode, convert_error)
            assert before_first is not None
            before_first()
            return sender.send(body)

        sender = self._sender
        if isinstance(items, AsyncIterable):
            each = aiter(items)
            if before_first is not None:
                try:
                    first = await anext(each)
                except StopAsyncIteration:
                    return
                if not send_first(first):
                    await self._pause()
                del first
            while await sender.send_each(each, encode, convert_error):
                await self._pause()
            return
        source, context = iter(items), items.context if isinstance(items, ContextSource) else nullcontext()
        if before_first is not None:
            for item in source:
                if not send_first(item):
                    await self._pause()
                break
        while True:
            with context:
                is_paused = sender.send_all(source, encode, convert_error)
            if not is_paused:
                return
            await self._pause()


def encode_item(item: Any, encode: EncodeItem, convert_error: ConvertError) -> Body:
    """Encode an item. Raises the error that ``convert_error`` returns for an error of ``encode``."""
    try:
        return encode_function(encode)(item)
    except Exception as error:
        raise convert_error(item, error) from None


def encode_function(encode: EncodeItem) -> Callable[[Any], Body]:
    """Return the function that encodes an item: ``encode`` itself, or the method of an encoder."""
    return encode.encode if isinstance(encode, _core.Encoder) else encode
