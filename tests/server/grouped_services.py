"""Services from a class, from groups, and several at a server, importable by a server in another process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import shmrpc


class Counter:
    """State in an instance."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @shmrpc.endpoint
    def increment(self, by: int = 1) -> int:
        self.value += by
        return self.value

    @shmrpc.endpoint(name="value")
    async def read(self) -> int:
        await asyncio.sleep(0)
        return self.value

    @shmrpc.endpoint
    async def down(self) -> AsyncIterator[int]:
        while self.value > 0:
            self.value -= 1
            yield self.value

    @shmrpc.endpoint(run_in="thread")
    def in_thread(self) -> int:
        return self.value

    @staticmethod
    @shmrpc.endpoint
    def double(x: int) -> int:
        return 2 * x

    def private(self) -> None:
        """Not marked, not offered."""


class Derived(Counter):
    @shmrpc.endpoint
    def reset(self) -> int:
        self.value = 0
        return 0


math = shmrpc.Service("tested.math")


@math.endpoint
def add(a: int, b: int) -> int:
    return a + b


@math.group("deep.deeper").endpoint
async def echo(text: str) -> str:
    return text


@contextlib.asynccontextmanager
async def lifespan(service: shmrpc.Service) -> AsyncIterator[list[str]]:
    log = [f"{service.name} began"]
    yield log
    log.append("ended")


service = shmrpc.Service("tested.grouped", lifespan=lifespan)
service.include(Counter(10))
service.include(Derived(100), prefix="other")
service.include(math, prefix="math")


@service.endpoint
def state() -> list[str]:
    return list(shmrpc.current_call().state)
