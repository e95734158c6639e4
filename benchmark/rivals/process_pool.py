"""ProcessPoolExecutor through the loop: a pool of one process, which the client starts itself."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmark.processes import Place, prepare
from benchmark.work import add, echo


def _begin(place: Place) -> None:
    prepare(place, None)
    if len(os.sched_getaffinity(0)) == 1:
        # The client is pinned; the process that works for it shall not be so to the same CPU.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


class _Client:
    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._run = asyncio.get_running_loop().run_in_executor

    async def add(self, a: int, b: int) -> int:
        return await self._run(self._pool, add, a, b)

    async def echo(self, value: Any) -> Any:
        return await self._run(self._pool, echo, value)


@contextlib.asynccontextmanager
async def connect(place: Place) -> AsyncIterator[_Client]:
    """A client."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin, initargs=(place,)) as pool:
        yield _Client(pool)
