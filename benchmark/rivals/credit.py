"""Streams by credit, for rivals whose library has no streams: the server sends as many items as the client lets it.

So what has come and was not yet taken is bounded, and no reader of one stream makes the calls beside it wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from typing import Any, Final

#: Items that may be under way.
WINDOW: Final = 8192


class Credit:
    """The server's side of a stream."""

    def __init__(self) -> None:
        #: Items that may still be sent; each sent item subtracts one.
        self.left = WINDOW
        self._granted = asyncio.Event()

    def grant(self, items: int) -> None:
        """Let the source send ``items`` more."""
        self.left += items
        self._granted.set()

    async def more(self) -> None:
        """Wait until there is some."""
        while not self.left:
            self._granted.clear()
            await self._granted.wait()


class Streams:
    """The server's streams that are under way, by what it calls them."""

    def __init__(self) -> None:
        self._running: dict[Hashable, tuple[asyncio.Task[None], Credit]] = {}

    def begin(self, key: Hashable, stream: Callable[[Credit], Coroutine[Any, Any, None]]) -> None:
        """Start a source in a task of its own."""
        credit = Credit()
        task = asyncio.ensure_future(stream(credit))
        self._running[key] = task, credit
        task.add_done_callback(lambda _: self._running.pop(key))

    def hear(self, key: Hashable, name: str, arguments: Sequence[int]) -> None:
        """Handle a message of the client for a source: ``grant``, or ``leave``. The source may have ended meanwhile."""
        if key in self._running:
            task, credit = self._running[key]
            credit.grant(*arguments) if name == "grant" else task.cancel()

    def close(self) -> None:
        """Close all sources, which no client reads any longer."""
        for task, _ in self._running.values():
            task.cancel()


class Items:
    """The client's side: what has come. An item is a list of one; an empty list is the end."""

    def __init__(self, grant: Callable[[int], None]) -> None:
        self._grant = grant
        self._come: deque[list[Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: list[Any]) -> None:
        """Add an item."""
        self._come.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """There will be no more."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def take(self) -> AsyncIterator[Any]:
        """Yield the items, in order."""
        come, taken = self._come, 0
        while True:
            while come:
                item = come.popleft()
                if not item:
                    return
                yield item[0]
                taken += 1
                if taken == WINDOW // 2:
                    self._grant(taken)
                    taken = 0
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
