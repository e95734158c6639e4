"""The two ends of a stream in an event loop, and the credit between them.

Who receives gives credit, in bytes; who sends may send while any is left, so it oversteps by one item at
most. Credit is given back as items are consumed, half a window at a time: a slow consumer slows its own
producer, what is kept for it stays bounded, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.protocol.frames import Rejected

#: Bytes that may be under way in one stream.
WINDOW: Final = 128 << 10
#: What an item costs besides its bytes: small ones take memory too.
OVERHEAD: Final = 64
#: Seconds after which a producer that never waits lets the loop turn.
SLICE: Final = 300e-6
#: Items between two looks at the clock.
_ITEMS_PER_LOOK: Final = 32


class Incoming:
    """The receiving end: items wait here until they are asked for. It is a stream without its meaning."""

    __slots__ = ("_allowed", "_consumed", "_end", "_ended", "_grant", "_slice_end", "_waiter", "bodies")

    def __init__(self, grant: Callable[[int], None], allowed: int = WINDOW) -> None:
        self.bodies: deque[bytes] = deque()
        self._grant = grant
        self._allowed = allowed
        self._consumed = 0
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

    def feed(self, body: bytes) -> None:
        """An item has come. RemoteProtocolError if there was no credit for it."""
        if self._allowed <= 0:
            raise RemoteProtocolError("it sent an item for which it had no credit")
        self._allowed -= len(body) + OVERHEAD
        self.bodies.append(body)
        if self._waiter is not None:
            self._wake()

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more will come; ``error`` is raised after the last item."""
        if not self._ended:
            self._ended = True
            self._end = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bytes:
        """The next item; there must be one."""
        body = self.bodies.popleft()
        self._consumed += len(body) + OVERHEAD
        if self._consumed >= WINDOW // 2 and not self._ended:
            granted, self._consumed = self._consumed, 0
            self._allowed += granted
            self._grant(granted)
        return body

    async def ready(self, pull: Callable[[], object] | None = None) -> bool:
        """Waits until there are items: True; or the end: False, or its error raised, once.

        ``pull`` may bring what is there already. The loop has its turn now and then.
        """
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + SLICE
        if pull is not None and not self.bodies:
            pull()
        while not self.bodies and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            self._slice_end = time.monotonic() + SLICE
        if self.bodies:
            return True
        error, self._end = self._end, None
        if error is not None:
            raise error
        return False


class Outgoing:
    """The sending end's credit."""

    __slots__ = ("_credit", "_waiter")

    def __init__(self, credit: int = WINDOW) -> None:
        self._credit = credit
        self._waiter: asyncio.Future[None] | None = None

    def grant(self, size: int) -> None:
        """The receiver has consumed so many bytes."""
        self._credit += size
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def room(self) -> None:
        """Waits until there is credit."""
        while self._credit <= 0:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def pump(
        self,
        items: AsyncIterable[Any] | Iterable[Any],
        encode: Callable[[Any], bytes],
        send: Callable[[bytes], object],
    ) -> None:
        """Sends what ``items`` yields, as far as there is credit, to its end; closes it in any case."""
        close = getattr(items, "aclose", None) or getattr(items, "close", None)
        try:
            source = items if isinstance(items, AsyncIterable) else _turned(items)
            looks, slice_end = 0, time.monotonic() + SLICE
            async for item in source:
                try:
                    body = encode(item)
                except Exception as error:
                    raise Rejected("encode", f"an item, {type(item).__qualname__}, cannot be sent: {error}") from None
                if self._credit <= 0:
                    await self.room()
                self._credit -= len(body) + OVERHEAD
                send(body)
                looks += 1
                if looks == _ITEMS_PER_LOOK:
                    looks = 0
                    if time.monotonic() > slice_end:
                        await asyncio.sleep(0)
                        slice_end = time.monotonic() + SLICE
        finally:
            if close is not None:
                closing = close()
                if isinstance(closing, Awaitable):
                    await closing


async def _turned(items: Iterable[Any]) -> AsyncIterator[Any]:
    """A plain iterable as an async one."""
    for item in items:
        yield item


async def received(
    incoming: Incoming, decode: Callable[[bytes], Any], stop: Callable[[], object]
) -> AsyncGenerator[Any, None]:
    """The items that come, until the end of the stream. ``stop`` is called if this side ends it sooner."""
    try:
        while await incoming.ready():
            while incoming.bodies:
                yield decode(incoming.take())
    finally:
        if not incoming.ended:
            incoming.finish()
            stop()
