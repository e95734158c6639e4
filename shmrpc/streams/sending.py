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

#: The body for an item: a codec's encoder, or a function.
EncodeItem = _core.Encoder | Callable[[Any], Body]
#: What to raise for an item, of what encoding it has raised.
ConvertError = Callable[[Any, Exception], Exception]
#: Seconds after which a producer that never waits lets the loop turn.
TIME_SLICE: Final = 300e-6


class ContextSource(Iterable[Any]):
    """A source whose items are made context a context manager, which is left whenever the loop goes on."""

    def __init__(self, source: Generator[Any, None, None], context: AbstractContextManager[object]) -> None:
        self.source, self.context = source, context

    def __iter__(self) -> Iterator[Any]:
        return self.source

    def close(self) -> None:
        """Ends the source."""
        self.source.close()


class Sender(Protocol):
    """What puts items on their way: the core's, or :class:`PlainSender`."""

    def send(self, payload: Body, /) -> bool:
        """Sends an item. False if there has to be a pause before the next one."""
        ...

    def send_all(self, items: Iterator[Any], encode: EncodeItem, convert_error: ConvertError, /) -> bool:
        """Sends what ``items`` yields.

        True if there has to be a pause before the next one, False at the end. What ``encode`` raises is raised as what
        ``convert_error`` makes of the item and the exception.
        """
        ...

    def send_each(
        self, items: AsyncIterator[Any], encode: EncodeItem, convert_error: ConvertError, /
    ) -> Awaitable[bool]:
        """The same for an asynchronous iterator."""
        ...

    def grant(self, size: int, /) -> None:
        """Adds credit: the receiver has consumed this many bytes."""
        ...

    def resume(self) -> bool:
        """Whether there is credit. The loop has just had its turn."""
        ...


class PlainSender:
    """A sender for a transport that has none of its own."""

    def __init__(self, send: Callable[[Body], object], credit: int) -> None:
        self._send = send
        self._window = SendWindow(credit)
        self._slice_end = time.monotonic() + TIME_SLICE

    def send(self, payload: Body) -> bool:
        """Sends an item. False if there has to be a pause before the next one."""
        self._send(payload)
        self._window.spend(weight(payload))
        return self._window.is_open and time.monotonic() < self._slice_end

    def send_all(self, items: Iterator[Any], encode: EncodeItem, convert_error: ConvertError) -> bool:
        """Sends what ``items`` yields. True if there has to be a pause before the next one, False at the end."""
        return any(not self.send(encode_item(item, encode, convert_error)) for item in items)

    async def send_each(self, items: AsyncIterator[Any], encode: EncodeItem, convert_error: ConvertError) -> bool:
        """The same for an asynchronous iterator."""
        while True:
            try:  # Its __aiter__, which may begin anew, has been called.
                item = await anext(items)
            except StopAsyncIteration:
                return False
            if not self.send(encode_item(item, encode, convert_error)):
                return True

    def grant(self, size: int) -> None:
        """Adds credit: the receiver has consumed this many bytes."""
        self._window.grant(size)

    def resume(self) -> bool:
        """Whether there is credit. The loop has just had its turn."""
        self._slice_end = time.monotonic() + TIME_SLICE
        return self._window.is_open


class OutgoingStream:
    """The sending end. ``on_pause`` is called with 1 when it only lets the loop turn, and with -1 when it goes on."""

    __slots__ = ("_closed", "_must_pause", "_on_pause", "_sender", "_waiter", "has_started")

    def __init__(self, sender: Sender, on_pause: Callable[[int], None] = lambda change: None) -> None:
        self._sender = sender
        self._on_pause = on_pause
        #: Whether an item was ever asked for.
        self.has_started = False
        self._waiter: asyncio.Future[None] | None = None
        #: For :meth:`write`: whether there has to be a pause before the next item, and whether none is wanted.
        self._must_pause = True
        self._closed = False

    def grant(self, size: int) -> None:
        """Adds credit: the receiver has consumed this many bytes."""
        self._sender.grant(size)
        self._wake()

    def close(self) -> None:
        """Stops sending: no more is wanted, and a writer that waits goes on."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def may_resume(self) -> bool:
        """Whether there is credit, and more is wanted. Whoever lets it send has just done something else."""
        return not self._closed and self._sender.resume()

    async def wait_writable(self) -> bool:
        """Waits until there is credit: True; or until no more is wanted: False."""
        if self._must_pause and not self._closed:
            await self._pause()
            self._must_pause = False
        return not self._closed

    async def write(self, body: Body) -> bool:
        """Sends an item once there is credit for it; False if no more is wanted. One at a time."""
        if not await self.wait_writable():
            return False
        self._must_pause = not self._sender.send(body)
        return True

    async def _pause(self) -> None:
        """Lets the loop turn, and waits until there is credit."""
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
        """Sends what ``items`` yields, as far as there is credit, to its end; closes it if it was begun.

        ``before_first`` is called before the first item is sent.
        Raises CallRejected for an item with which ``encode`` fails with one of ``unsendable``.
        """
        if not self._sender.resume():
            await self._pause()
        self.has_started = True  # From here on: before, nothing was asked of the source.
        failure: BaseException | None = None
        try:
            await self._send_all(items, encode, unsendable, before_first)
        except BaseException as error:
            failure = error
        try:
            # Not context the clause: what the source does at its end has nothing to do with what we handle.
            close = getattr(items, "aclose", None) or getattr(items, "close", None)
            if close is not None:
                closing = close()
                if isinstance(closing, Awaitable):
                    await closing
            if failure is not None:
                raise failure
        finally:
            del failure  # It has this frame in its traceback.

    async def _send_all(
        self,
        items: AsyncIterable[Any] | Iterable[Any],
        encode: EncodeItem,
        unsendable: tuple[type[Exception], ...],
        before_first: Callable[[], object] | None,
    ) -> None:
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
    """The body for an item. What ``encode`` raises is raised as what ``convert_error`` makes of it."""
    try:
        return encode_function(encode)(item)
    except Exception as error:
        raise convert_error(item, error) from None


def encode_function(encode: EncodeItem) -> Callable[[Any], Body]:
    """What encodes an item, as a function."""
    return encode.encode if isinstance(encode, _core.Encoder) else encode
