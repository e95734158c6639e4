"""A pool in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, ParamSpec, Self, SupportsIndex, TypeVar, overload

from shmrpc.basics.checks import check_whole, public_class
from shmrpc.basics.drivers import AsyncioOnly
from shmrpc.errors import LocalProtocolError, PoolBroken
from shmrpc.pools.engine import PoolEngine
from shmrpc.pools.progress import OnProgress, ReportEnded, report_progress
from shmrpc.pools.scheduling.map_source import MapSource
from shmrpc.pools.scheduling.submit_source import SubmitSource
from shmrpc.pools.task_future import TaskFuture
from shmrpc.pools.transfer.functions import TaskFunction
from shmrpc.pools.transfer.remote_failure import unwrap_result

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")

#: Creates a future without a call of its constructor, which sets nothing.
_new_future: Final = TaskFuture.__new__
#: Maximum number of chunks of a map() with unread results, per worker.
_MAX_UNREAD_CHUNKS: Final = 4
#: Maximum number of tasks of an async function that a map() runs at a time, per worker.
_MAX_COROUTINES: Final = 64


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """Statistics of a worker."""

    pid: int
    #: Number of tasks that the worker was given since its start.
    tasks: int
    #: True if the worker has tasks now.
    busy: bool


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """Statistics of a pool: see :meth:`Pool.stats`."""

    #: Workers that are ready, by number.
    workers: list[WorkerStats]
    #: Number of tasks whose result or exception a worker has sent, also if the worker has ended since. Tasks that fail
    #: because their worker dies, or because their arguments or result cannot be sent, do not count.
    completed: int
    #: Number of workers that took the place of others.
    replaced: int


@public_class("shmrpc.Pool")
class Pool(AsyncioOnly):
    """Processes that run functions; made by :func:`pool`, used as ``async with``."""

    def __init__(self, engine: PoolEngine) -> None:
        if not isinstance(engine, PoolEngine):
            raise TypeError("shmrpc.Pool is a type: open one by shmrpc.pool(workers)")
        self._engine = engine
        self._is_open = False

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the pool, and the name of the function that makes pools, for an error."""
        return "this pool", "pool"

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the pool as ``async with`` does: ``pool = await shmrpc.pool(4)``. The caller has to close the pool."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        """Start the workers, and wait until all are ready. A failed start closes the pool.

        Raises PoolBroken if workers cannot start, with the initializer's exception as its cause; EncodeError for
        ``initargs`` that cannot be sent; LocalProtocolError if the pool was opened before, or no loop of asyncio runs.
        """
        if self._is_open:
            raise LocalProtocolError("this pool was opened before: create another one")
        self._is_open = True
        await self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        error = self._engine.lifecycle.closed_error
        state = "open" if error is None else "closed" if self._is_open else "not open"
        return self._describe("shmrpc.pool", "broken" if isinstance(error, PoolBroken) else state)

    def _describe(self, maker: str, state: str) -> str:
        """Return the text of ``repr()``. ``maker``: the function that makes such a pool."""
        size = self._engine.workers.size
        return f"<{maker} of {size} {'worker' if size == 1 else 'workers'}, {state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_copy()

    async def close(self) -> None:
        """Interrupt the running tasks, end the workers, and wait for their end. Idempotent.

        Tasks that wait or run fail with LocalProtocolError. A worker that lives ``grace`` seconds later is killed.
        """
        await self._engine.close()

    @overload
    async def run(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...
    @overload
    async def run(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function in a worker and return its result.

        Cancelling the await ends the task: a waiting task is taken back, a task of an async function is cancelled, and
        any other task has an exception raised in it; if that task has not ended after ``grace`` seconds, its worker is
        killed.

        Raises what the function raises, with the worker's traceback as its cause; WorkerDied if the worker dies with
        the task; EncodeError for a function, arguments or a result that cannot be sent, DecodeError if they cannot be
        read; PoolBroken if workers can no longer be started; LocalProtocolError if the pool is not open; RuntimeError
        in the place of StopIteration; TypeError for no function.
        """
        return self._engine.calls.run(function, args, kwargs)

    @overload
    def submit(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> TaskFuture[_R]: ...
    @overload
    def submit(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> TaskFuture[_R]: ...
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Submit a call of the function to the workers; return a future, which coroutines await and threads wait for.

        Call this in the pool's event loop. Raises LocalProtocolError if the pool is not open, PoolBroken if it has
        broken, and EncodeError or TypeError for a function that cannot be sent. The future raises as :meth:`run` does,
        but StopIteration itself.
        """
        lifecycle = self._engine.lifecycle
        lifecycle.check_open()
        future: TaskFuture[Any] = _new_future(TaskFuture)
        future._loop = lifecycle.loop
        self._submit(future, function, args, kwargs)
        return future

    def _submit(
        self,
        future: TaskFuture[Any],
        function: Callable[..., Any] | TaskFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Start a task, as a single call or in a chunk with others of its function; the result resolves the future.

        The caller has checked that the pool is open. Raises as :meth:`FunctionRegistry.lookup` does.
        """
        engine = self._engine
        known, args = engine.functions.lookup(function, args)
        if known.is_async or kwargs:
            engine.calls.run_submitted(future, known, args, kwargs)
            return
        single = len(args) == 1
        source = known.submit_sources.get(single)
        if source is None:
            source = known.submit_sources[single] = SubmitSource(known, single=single)
        source.waiting.append((future, args[0] if single else [*args]))
        if not source.is_pending:
            engine.dispatcher.schedule_dispatch(source)

    @overload
    def map(
        self,
        function: Callable[[_A], Coroutine[Any, Any, _R]],
        items: Iterable[_A],
        /,
        *,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        function: Callable[[_A], _R],
        items: Iterable[_A],
        /,
        *,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        function: Callable[[_A, _B], _R],
        items: Iterable[_A],
        others: Iterable[_B],
        /,
        *,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        function: Callable[..., _R],
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[_R, None]: ...
    def map(
        self,
        function: Any,
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call the function with the items of each iterable, as ``map()`` does; yield the results in order.

        Tasks start with the first read; closing the iterator stops them. The iterables may be infinite: the event loop
        takes items from them as long as there is room for their results. The pool measures
        how many tasks to send at a time. ``ordered=False`` yields each result as soon as its task ends. A task that
        fails raises when its result is due, and stops the other tasks.

        ``on_progress`` is called, while the results are read, with the number of tasks that have ended, and their
        total: the shortest length of the iterables that have one, else None. If ``on_progress`` is a text, a progress
        bar of rich shows it.

        Raises TypeError without an iterable, and for an asynchronous one. Reading raises what an iterable raises, the
        errors of :meth:`run`, and ImportError for a progress bar without rich.
        """
        for each in iterables:
            if hasattr(each, "__aiter__"):
                raise TypeError(
                    f"map() takes no async iterables such as this {type(each).__name__}: iterate over it and submit() "
                    "each item"
                )
        if not iterables:
            raise TypeError("map() expected a function and at least one iterable")
        if on_progress is None:
            return self._map(function, iterables, ordered, None)
        return self._map_reported(function, iterables, ordered, on_progress)

    async def _map_reported(
        self,
        function: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        ordered: bool,
        on_progress: OnProgress,
    ) -> AsyncGenerator[Any, None]:
        """Map as :meth:`map` does, and report the progress."""
        with report_progress(on_progress, iterables) as report:
            async with contextlib.aclosing(self._map(function, iterables, ordered, report)) as results:
                held: dict[str, Any] = {}
                async for held["result"] in results:
                    yield held.pop("result")  # Drops the reference while the reader has the result.

    async def _map(
        self,
        function: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        ordered: bool,
        report: ReportEnded | None,
    ) -> AsyncGenerator[Any, None]:
        """Map as :meth:`map` does. ``report`` is called with the total number of tasks that have ended."""
        engine = self._engine
        engine.lifecycle.check_open()
        known, bound = engine.functions.lookup(function, ())
        if bound:  # The object and the name of a method go with each item.
            iterables = [*map(itertools.repeat, bound), *iterables]
        if known.is_async:
            held: dict[str, Any] = {}
            async for held["result"] in self._map_async(known, iterables, ordered, report):
                yield held.pop("result")  # Drops the reference while the reader has the result.
            return
        source = self._start_map(known, iterables, ordered=ordered)
        source.report = report
        try:
            while (results := await source.read()) is not None:
                results.reverse()
                while results:  # pop() drops the reference while the reader has the result.
                    yield unwrap_result(results.pop())
        finally:
            source.close()
            engine.dispatcher.remove(source)

    def _start_map(self, known: TaskFunction, iterables: Sequence[Iterable[Any]], *, ordered: bool) -> MapSource:
        """Start the tasks of a map; return their source, which the reader closes and removes from the dispatcher."""
        engine = self._engine
        max_unread = _MAX_UNREAD_CHUNKS * max(1, engine.workers.size)
        source = MapSource(known, iterables, ordered, max_unread, lambda: engine.dispatcher.add(source))
        engine.dispatcher.add(source)
        return source

    async def _map_async(
        self, known: TaskFunction, iterables: Sequence[Iterable[Any]], ordered: bool, report: ReportEnded | None
    ) -> AsyncGenerator[Any, None]:
        """Map an async function by concurrent single calls; yield the results. The end cancels the running calls."""
        engine, calls = self._engine, zip(*iterables, strict=False)
        running: dict[asyncio.Task[Any], None] = {}
        ended = 0
        try:
            while True:
                maximum = _MAX_COROUTINES * max(1, engine.workers.size)
                while len(running) < maximum and (args := next(calls, None)) is not None:
                    running[asyncio.ensure_future(engine.calls.run(known, args, {}))] = None
                if not running:
                    return
                first = next(iter(running))
                if ordered:
                    await asyncio.wait([first])
                else:
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    first = next(each for each in running if each in done)
                    del done
                del running[first]
                results = [first.result()]
                del first
                ended += 1
                if report is not None:
                    report(ended)
                yield results.pop()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def broadcast(self, value: _R) -> _R:
        """Write a value into memory that all workers share, and return the shared value.

        Pass the returned value to tasks as an argument of its own, not within another one: workers map its memory, and
        nothing is sent or copied. Arrays in the returned value are read-only; each worker makes one copy of everything
        else in the value. The memory is freed with the last reference to the value, or, for a list or a dict, with the
        pool. A value of less than 1 KiB is returned itself, and sent with each task.

        Raises SharedMemoryError if there is no memory, what pickle raises for the value, and the error with which the
        pool has closed.
        """
        return (await self.scatter([value]))[0]

    async def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Share several values, such as the rows of an array; return the shared values. See :meth:`broadcast`."""
        self._engine.lifecycle.check_open()
        return await asyncio.to_thread(self._engine.shared.share, list(values))

    async def do(self, source: str, /, *iterables: Iterable[Any]) -> list[Any]:
        """Map a function given as source text, such as ``"lambda a, b: a + b"``; return the list of results.

        Raises SyntaxError for invalid text, TypeError if the text is no function, and what its evaluation, :meth:`map`
        and the reader of the map raise. Evaluates the text in this process: it must be trusted.
        """
        function = eval(compile(source, "<do>", "eval"), {})
        if not callable(function):
            raise TypeError(f"do() expected the text of a function, such as 'lambda a, b: a + b', got {source!r}")
        return [result async for result in self.map(function, *iterables)]

    def resize(self, workers: int) -> None:
        """Change the number of workers, without a wait. Surplus workers end after their present tasks.

        Raises ValueError or TypeError unless the number is from 1 to 4096, or the error with which the pool has closed.
        """
        self._engine.lifecycle.check_open()
        self._engine.workers.resize(check_worker_count(workers))

    def stats(self) -> PoolStats:
        """Return statistics of the pool and its workers, also of a closed pool, which has no workers."""
        workers = sorted(self._engine.workers.workers, key=lambda worker: worker.number)
        return PoolStats(
            [WorkerStats(worker.pid, worker.task_count, worker.is_busy) for worker in workers],
            self._engine.completed,
            self._engine.workers.replaced,
        )


def refuse_copy() -> NoReturn:
    """Raise the TypeError for a pool that is pickled or copied."""
    raise TypeError(
        "a pool cannot be copied or pickled: its workers belong to this process; in a task, open a pool by "
        "shmrpc.pool() or shmrpc.sync.pool()"
    )


def check_worker_count(workers: int) -> int:
    """Return the number of workers as an int. Raises ValueError or TypeError unless it is from 1 to 4096."""
    count = check_whole("workers", workers, "a number of processes")
    if not 1 <= count <= 4096:
        raise ValueError(f"workers: expected 1 to 4096 processes, got {workers}")
    return count
