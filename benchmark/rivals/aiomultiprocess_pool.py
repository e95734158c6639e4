"""aiomultiprocess' Pool. Its tasks are async functions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmark.pool_work import ArgumentTeam, Pools, Team, pools
from benchmark.processes import Rendezvous


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class _Team(ArgumentTeam):
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._pool.apply(_call, (function, *args))

    async def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return await asyncio.gather(*[self._pool.apply(_call, (function, item)) for item in items])

    async def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        return await self._pool.starmap(_call, [(function, item) for item in items])


@contextlib.asynccontextmanager
async def _open(workers: int) -> AsyncIterator[Team]:
    from aiomultiprocess import Pool

    async with Pool(workers) as pool:
        yield _Team(pool)


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Return a client."""
    return pools(_open, "uvloop")
