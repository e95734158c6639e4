"""A pool within a worker of another pool."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from shmrpc.pools.pool import Pool, PoolStats, check_worker_count
from shmrpc.pools.progress import ReportEnded
from shmrpc.pools.task_future import TaskFuture, cancel_running

_R = TypeVar("_R")


class InlinePool(Pool):
    """A pool within a worker of another pool, which runs each task at once in that worker. It never closes."""

    def __init__(self, size: int) -> None:
        self._size, self._completed = size, 0

    def __repr__(self) -> str:
        return self._describe("shmrpc.pool", "open")

    def _describe(self, maker: str, state: str) -> str:
        """Return the repr of the pool. ``maker``: name of the function that has made the pool."""
        return f"<{maker} within a worker, which runs its tasks itself, {state}>"

    async def __aenter__(self) -> Self:
        """Return the pool: there is nothing to start."""
        return self

    async def close(self) -> None:
        """Do nothing: there are no workers."""

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function in this thread, await an awaitable result, and return it. Raises what it raises."""
        self._completed += 1
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Call the function; return a future, which is done unless the function is async.

        An async function runs in the running event loop, and can be cancelled until it begins; raises RuntimeError if
        there is no loop. An exception of the function that is no Exception, such as SystemExit, passes.
        """
        future: TaskFuture[Any] = TaskFuture()
        if inspect.iscoroutinefunction(function):
            future._loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self._run_submitted(future, function, args, kwargs))
            task.add_done_callback(functools.partial(_copy_outcome, future))
            return future
        self._completed += 1
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    async def _run_submitted(
        self, future: TaskFuture[Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a task and return its result, unless its future is cancelled. Raises what the function raises."""
        return await self.run(function, *args, **kwargs) if future.set_running_or_notify_cancel() else None

    async def _map(
        self,
        function: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        ordered: bool,
        report: ReportEnded | None,
    ) -> AsyncGenerator[Any, None]:
        """Run the tasks one after the other, each when its result is read; yield the results."""
        for ended, args in enumerate(zip(*iterables, strict=False), 1):
            results = [await self.run(function, *args)]
            del args
            if report is not None:
                report(ended)
            yield results.pop()
            await asyncio.sleep(0)

    async def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Return the values unchanged: tasks run in this process."""
        return list(values)

    def resize(self, workers: int) -> None:
        """Record the number of workers, which has no effect here. Raises ValueError or TypeError as a pool does."""
        self._size = check_worker_count(workers)

    def stats(self) -> PoolStats:
        """Return the number of tasks; there are no workers."""
        return PoolStats([], self._completed, 0)


def _copy_outcome(future: TaskFuture[Any], task: asyncio.Task[Any]) -> None:
    """Set the outcome of a task that has ended in a future, unless the future was cancelled before."""
    if task.cancelled():  # Perhaps before its first step.
        cancel_running([future])
    elif future.cancelled():
        return
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
