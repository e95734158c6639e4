"""Operations of pools of any make, and the client that opens one pool at a time."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

import uvloop

from benchmark.subjects import Loop

_R = TypeVar("_R")


class Team(Protocol):
    """A pool, used as its documentation advises. All that it does may have to be awaited.

    ``renew()``, if it has that, is what its user does once a dead worker has broken it.
    """

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of one task."""

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        """Return the results of tasks that are handed in one by one."""

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        """Return the results of many tasks."""

    def share(self, value: Any) -> Any:
        """Return the argument that gives tasks a value that all of them need."""


class ArgumentTeam:
    """One that has no way to share a value: it is an argument of each task."""

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value


class ExecutorTeam(ArgumentTeam):
    """An executor, as the standard library has them; ``make`` makes another one when it is broken.

    ``chunks``: into how many parts a worker's share of a map is cut; None: what it does by itself.
    """

    def __init__(self, make: Callable[[], Executor], workers: int, chunks: int | None = None) -> None:
        self._make, self._workers, self._chunks = make, workers, chunks
        self.executor = make()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of one task."""
        return self.executor.submit(function, *args).result()

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        """Their results."""
        futures = [self.executor.submit(function, item) for item in items]
        return [future.result() for future in futures]

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        """Their results."""
        if self._chunks is None:
            return list(self.executor.map(function, items))
        size = max(1, len(items) // (self._workers * self._chunks))
        return list(self.executor.map(function, items, chunksize=size))

    def renew(self) -> None:
        """Take another executor."""
        self.close()
        self.executor = self._make()

    def close(self) -> None:
        """End it."""
        self.executor.shutdown()


class Pools:
    """The client of a pool: it has one, of as many workers as were wanted last."""

    def __init__(
        self, opened: Callable[[int], AbstractContextManager[Team] | AbstractAsyncContextManager[Team]], loop: Loop
    ) -> None:
        self._opened, self._loop = opened, loop
        self._workers = 0
        self._runner: asyncio.Runner | None = None
        self._stack: contextlib.ExitStack | contextlib.AsyncExitStack | None = None

    def do(self, workers: int, load: Callable[[Team], Coroutine[Any, Any, _R]]) -> _R:
        """Do a load with a pool of this size. After a failure the next one gets another pool."""
        try:
            if self._workers != workers:
                self.close()
                self._team = self._run(self._open(workers))
                self._workers = workers
            return self._run(load(self._team))
        except BaseException:
            self.close()
            raise

    async def _open(self, workers: int) -> Team:
        made = self._opened(workers)
        if isinstance(made, AbstractContextManager):
            self._stack = contextlib.ExitStack()
            return self._stack.enter_context(made)
        self._stack = contextlib.AsyncExitStack()
        return await self._stack.enter_async_context(made)

    def _run(self, work: Coroutine[Any, Any, _R]) -> _R:
        if self._loop == "none":  # The functions block, and no process forks within a loop.
            try:
                work.send(None)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            raise RuntimeError("a pool without a loop is not awaited")
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if self._loop == "uvloop" else None)
        return self._runner.run(work)

    def close(self) -> None:
        """End the pool, if there is one."""
        self._workers, stack, self._stack = 0, self._stack, None
        if isinstance(stack, contextlib.AsyncExitStack):
            self._run(stack.aclose())
        elif stack is not None:
            stack.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None


@contextlib.contextmanager
def pools(
    opened: Callable[[int], AbstractContextManager[Team] | AbstractAsyncContextManager[Team]], loop: Loop = "none"
) -> Iterator[Pools]:
    """Yield the client, until its block ends."""
    made = Pools(opened, loop)
    try:
        yield made
    finally:
        made.close()


async def of(done: Awaitable[_R] | _R) -> _R:
    """Return a result of a team, after awaiting it if necessary."""
    return await done if inspect.isawaitable(done) else done
