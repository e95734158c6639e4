"""Our pools, as a rival's are written."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import shmrpc
from benchmark.pool_work import Pools, Team, pools
from benchmark.processes import Rendezvous


class _InLoop:
    def __init__(self, pool: shmrpc.Pool) -> None:
        self.run: Callable[..., Any] = pool.run
        self.share: Callable[..., Any] = pool.broadcast
        self.pool = pool

    async def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        futures = [self.pool.submit(function, item) for item in items]
        return [await future for future in futures]

    async def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return [result async for result in self.pool.map(function, items)]


class _InThreads:
    def __init__(self, pool: shmrpc.sync.Pool) -> None:
        self.share, self._pool = pool.broadcast, pool

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.submit(function, *args).result()

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        futures = [self._pool.submit(function, item) for item in items]
        return [future.result() for future in futures]

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(function, items))


@contextlib.asynccontextmanager
async def _open_in_loop(workers: int) -> AsyncIterator[Team]:
    async with shmrpc.pool(workers) as pool:
        yield _InLoop(pool)


@contextlib.contextmanager
def _open_in_threads(workers: int) -> Iterator[Team]:
    with shmrpc.sync.pool(workers) as pool:
        yield _InThreads(pool)


def connect_uvloop(place: Rendezvous) -> AbstractContextManager[Pools]:
    """For uvloop."""
    return pools(_open_in_loop, "uvloop")


def connect_asyncio(place: Rendezvous) -> AbstractContextManager[Pools]:
    """For asyncio's own loop."""
    return pools(_open_in_loop, "asyncio")


def connect_threads(place: Rendezvous) -> AbstractContextManager[Pools]:
    """For threads."""
    return pools(_open_in_threads)
