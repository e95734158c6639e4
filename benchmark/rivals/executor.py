"""The client of an executor that is used through the loop, whatever its workers are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any

from benchmark.work import add, echo


class ExecutorClient:
    """Calls are work for the executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._run = asyncio.get_running_loop().run_in_executor

    async def add(self, a: int, b: int) -> int:
        """Return the small call."""
        return await self._run(self._executor, add, a, b)

    async def echo(self, value: Any) -> Any:
        """Return the large call."""
        return await self._run(self._executor, echo, value)
