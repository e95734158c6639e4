"""ThreadPoolExecutor through the loop: the same functions in another thread of the same process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmark.processes import Place
from benchmark.work import add, echo


class _Client:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._run = asyncio.get_running_loop().run_in_executor

    async def add(self, a: int, b: int) -> int:
        return await self._run(self._pool, add, a, b)

    async def echo(self, value: Any) -> Any:
        return await self._run(self._pool, echo, value)


@contextlib.asynccontextmanager
async def connect(place: Place) -> AsyncIterator[_Client]:
    """A client. One thread, as there is one server process elsewhere."""
    with ThreadPoolExecutor(1) as pool:
        yield _Client(pool)
