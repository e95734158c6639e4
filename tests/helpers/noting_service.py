"""A service that records the actions of its handlers, for tests that serve it in their own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import shmrpc


class NotingService(shmrpc.Service):
    """A service whose handlers append to ``done``."""

    def __init__(self, name: str = "tested.near") -> None:
        super().__init__(name)
        self.done: list[str] = []

        @self.endpoint
        async def wait() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.done.append("cancelled")
                raise
            return "waited"

        @self.endpoint
        def note(text: str) -> list[str]:
            self.done.append(text)
            return self.done

        @self.endpoint
        async def ticks(n: int) -> AsyncIterator[int]:
            for i in range(n):
                yield i
                await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> bool:
    """Return True if the condition becomes true within a generous time; the loop keeps running."""
    for _ in range(2000):
        if true():
            return True
        await asyncio.sleep(0.005)
    return False
