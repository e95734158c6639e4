"""The two ends of a stream in an event loop, and the credit between them.

Who receives gives credit, in bytes; who sends may send while any is left, so it oversteps by one item at
most. Credit is given back as items are consumed, a quarter of the window at a time: a slow consumer slows its own
producer, what is kept for it stays bounded, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec

from shmrpc.errors import RemoteProtocolError
from shmrpc.values.unsendable import UNSENDABLE, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.frames import Rejected

#: Bytes that may be under way in one stream.
WINDOW: Final = 128 << 10
#: What an item costs besides its bytes: small ones take memory too.
OVERHEAD: Final = 48
#: Seconds after which a producer that never waits lets the loop turn.
SLICE: Final = 300e-6
#: How many items, and these as a MessagePack array with a long header; 0, and one item as it is.
Part = tuple[int, Body]
_ARRAY_HEADER: Final = 5


def unsendable_item(item: Any, error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> Exception:
    """The rejection of an item that encoding has failed with. What is not of ``kinds``, or a handler's, stays."""
    if isinstance(error, Rejected) or not is_unsendable(error, kinds):
        return error
    return Rejected("encode", f"an item, {type(item).__qualname__}, cannot be sent: {reason(error)}")


class Incoming:
    """The receiving end: items wait here until they are asked for. It is a stream without its meaning."""

    __slots__ = (
        "_allowed",
        "_consumed",
        "_end",
        "_ended",
        "_grant",
        "_held",
        "_parts",
        "_slice_end",
        "_taken",
        "_waiter",
    )

    def __init__(self, grant: Callable[[int], None], allowed: int = WINDOW) -> None:
        self._parts: list[Part] = []
        self._grant = grant
        #: Bytes: what may come yet, what waits here, what was taken last and is in use, what was consumed since
        #: credit was last given back.
        self._allowed = allowed
        self._held = self._taken = self._consumed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._slice_end = 0.0
        self._ended = False
        self._end: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def open(self) -> None:
        """Gives the sender its first credit."""
        self._allowed += WINDOW
        self._grant(WINDOW)

    def feed(self, part: Part) -> None:
        """Items have come. RemoteProtocolError if there was no credit for them.

        Once it has ended they are dropped, all of them: what is read is a prefix of what was sent.
        """
        if self._ended:
            return
        if self._allowed <= 0:
            raise RemoteProtocolError("it sent an item for which it had no credit")
        count, data = part
        size = len(data) - _ARRAY_HEADER + OVERHEAD * count if count else len(data) + OVERHEAD
        self._allowed -= size
        self._held += size
        self._parts.append(part)
        if self._waiter is not None:
            self._wake()

    def drop(self) -> None:
        """Nobody takes what waits here."""
        self._parts.clear()
        self._held = 0

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more will come; ``error`` is raised after the last item."""
        if not self._ended:
            self._ended = True
            self._end = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> list[Part]:
        """The items that are there. Those that were taken before have been consumed."""
        self._settle()
        self._taken, self._held = self._held, 0
        parts, self._parts = self._parts, []
        return parts

    def _settle(self) -> None:
        """Gives credit back for what has been consumed, once it is worth it."""
        self._consumed += self._taken
        self._taken = 0
        if self._consumed >= WINDOW // 4 and not self._ended:
            granted, self._consumed = self._consumed, 0
            self._allowed += granted
            self._grant(granted)

    async def ready(self, pull: Callable[[], object] | None = None) -> bool:
        """Waits until there are items: True; or the end: False, or its error raised, once.

        ``pull`` may bring what is there already. The loop has its turn now and then.
        """
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + SLICE
        if pull is not None and not self._parts:
            pull()
        if not self._parts:
            self._settle()
        while not self._parts and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            self._slice_end = time.monotonic() + SLICE
        if self._parts:
            return True
        error, self._end = self._end, None
        if error is None:
            return False
        try:
            raise error
        finally:
            del error  # It has this frame in its traceback.


class Sender(Protocol):
    """What puts items on their way: the core's, or :class:`PlainSender`."""

    def send(self, payload: Body, /) -> bool:
        """Sends an item. False if there has to be a pause before the next one."""
        ...

    def grant(self, size: int, /) -> None:
        """The receiver has consumed so many bytes."""
        ...

    def resume(self) -> bool:
        """Whether there is credit. The loop has just had its turn."""
        ...


class PlainSender:
    """A sender for a transport that has none of its own."""

    def __init__(self, send: Callable[[Body], object], credit: int) -> None:
        self._send = send
        self._credit = credit
        self._slice_end = time.monotonic() + SLICE

    def send(self, payload: Body) -> bool:
        """Sends an item. False if there has to be a pause before the next one."""
        self._send(payload)
        self._credit -= len(payload) + OVERHEAD
        return self._credit > 0 and time.monotonic() < self._slice_end

    def grant(self, size: int) -> None:
        """The receiver has consumed so many bytes."""
        self._credit += size

    def resume(self) -> bool:
        """Whether there is credit. The loop has just had its turn."""
        self._slice_end = time.monotonic() + SLICE
        return self._credit > 0


class Outgoing:
    """The sending end. ``turning`` is called with 1 when it only lets the loop turn, and with -1 when it goes on."""

    __slots__ = ("_closed", "_must_pause", "_sender", "_turning", "_waiter", "touched")

    def __init__(self, sender: Sender, turning: Callable[[int], None] = lambda change: None) -> None:
        self._sender = sender
        self._turning = turning
        #: Whether an item was ever asked for.
        self.touched = False
        self._waiter: asyncio.Future[None] | None = None
        #: For :meth:`write`: whether there has to be a pause before the next item, and whether none is wanted.
        self._must_pause = True
        self._closed = False

    def grant(self, size: int) -> None:
        """The receiver has consumed so many bytes."""
        self._sender.grant(size)
        self._wake()

    def close(self) -> None:
        """No more is wanted: whoever waits to write goes on."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def may_write(self) -> bool:
        """Waits until there is credit: True; or until no more is wanted: False."""
        if self._must_pause and not self._closed:
            await self._pause()
            self._must_pause = False
        return not self._closed

    async def write(self, body: Body) -> bool:
        """Sends an item once there is credit for it; False if no more is wanted. One at a time."""
        if not await self.may_write():
            return False
        self._must_pause = not self._sender.send(body)
        return True

    async def _pause(self) -> None:
        """Lets the loop turn, and waits until there is credit."""
        self._turning(1)
        try:
            await asyncio.sleep(0)
        finally:
            self._turning(-1)
        while not self._closed and not self._sender.resume():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def pump(
        self,
        items: AsyncIterable[Any] | Iterable[Any],
        encode: Callable[[Any], Body],
        unsendable: tuple[type[Exception], ...] = (Exception,),
        before_first: Callable[[], object] | None = None,
    ) -> None:
        """Sends what ``items`` yields, as far as there is credit, to its end; closes it if it was begun.

        ``before_first`` is called before the first item is sent.
        Raises Rejected for an item with which ``encode`` fails with one of ``unsendable``.
        """
        if not self._sender.resume():
            await self._pause()
        self.touched = True  # From here on: before, nothing was asked of the source.
        failure: BaseException | None = None
        try:
            await self._send_all(items, encode, unsendable, before_first)
        except BaseException as error:
            failure = error
        try:
            # Not within the clause: what the source does at its end has nothing to do with what we handle.
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
        encode: Callable[[Any], Body],
        unsendable: tuple[type[Exception], ...],
        before_first: Callable[[], object] | None,
    ) -> None:
        send = self._sender.send
        source = items if isinstance(items, AsyncIterable) else _turned(items)
        async for item in source:
            try:
                body = encode(item)
            except Exception as error:
                raise unsendable_item(item, error, unsendable) from None
            if before_first is not None:
                before_first()
                before_first = None
            if not send(body):
                await self._pause()


async def _turned(items: Iterable[Any]) -> AsyncIterator[Any]:
    """A plain iterable as an async one."""
    for item in items:
        yield item


_split = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Reader:
    """Turns what has come into items of a type."""

    def __init__(self, codec: Codec, kind: Any) -> None:
        #: The item in a body.
        self.one = codec.decode if kind is Any else codec.decoder(kind)
        self._many = codec.decoder(list.__class_getitem__(kind))

    def many(self, data: Body) -> Iterable[Any]:
        """The items in an array; one of UNREADABLE at the one that cannot be read, after those before it."""
        try:
            items = self._many(data)
        except UNREADABLE:
            return self._one_by_one(data)
        return items  # type: ignore[no-any-return]

    def _one_by_one(self, data: Body) -> Iterator[Any]:
        for body in _split.decode(data):
            yield self.one(bytes(body))


async def received(
    incoming: Incoming, reader: Reader, explain: Callable[[Exception], Exception], stop: Callable[[], object]
) -> AsyncGenerator[Any, None]:
    """The items that come, until the end of the stream. ``stop`` is called if this side ends it sooner.

    ``explain`` makes the error of an item that cannot be read.
    """
    try:
        while await incoming.ready():
            for count, data in incoming.take():
                try:
                    if not count:
                        yield reader.one(data)  # By no name, which would keep it until the next one comes.
                        continue
                    for item in reader.many(data):
                        yield item
                except UNREADABLE as error:  # No further: the caller's stream may fail with one of them.
                    raise explain(error) from None
    finally:
        if not incoming.ended:
            incoming.finish()
            stop()
