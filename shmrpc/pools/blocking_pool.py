"""A pool for threads: an executor whose pool runs in an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NoReturn, ParamSpec, SupportsIndex, TypeVar, Unpack, overload

from shmrpc.basics.checks import public_class
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.basics.green_threads import check_threads
from shmrpc.basics.timeouts import end_of_wait
from shmrpc.errors import LocalProtocolError
from shmrpc.pools.factory import PoolOptions, pool
from shmrpc.pools.inline_pool import InlinePool
from shmrpc.pools.loop_thread import LoopThread
from shmrpc.pools.map_results import AsyncMapResults, MapResults, start_map
from shmrpc.pools.pool import Pool, PoolStats, refuse_copy
from shmrpc.pools.progress import OnProgress, ReportEnded, report_progress
from shmrpc.pools.task_future import TaskFuture
from shmrpc.pools.transfer.functions import TaskFunction
from shmrpc.pools.transfer.remote_failure import unwrap_result

_P = ParamSpec("_P")
_R = TypeVar("_R")

_open: Final = weakref.WeakSet["BlockingPool"]()


def _shut_down_all() -> None:
    """Shut down all pools at the end of the program, and wait for all their tasks."""
    for each in list(_open):
        each.shutdown()


# Like the executors of the standard library, pools finish all tasks before the program ends.
threading._register_atexit(_shut_down_all)  # type: ignore[attr-defined]


@public_class("shmrpc.sync.Pool")
class BlockingPool(ThreadsOnly, concurrent.futures.Executor):
    """Processes that run functions, for threads; made by :func:`shmrpc.sync.pool`.

    A :class:`concurrent.futures.Executor`, also for ``loop.run_in_executor()``. The end of its ``with`` block waits for
    all submitted tasks; if an exception ends the block, tasks that have not begun are cancelled.
    """

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the pool, and the name of the function that makes pools, for an error."""
        return "this pool", "pool"

    def __init__(self, pool: Pool) -> None:
        if not isinstance(pool, Pool):
            raise TypeError("shmrpc.sync.Pool is a type: open one by shmrpc.sync.pool(workers)")
        self._pool = pool
        self._owner_pid = os.getpid()
        #: Submitted tasks on their way to the pool's loop.
        self._submitted: deque[tuple[TaskFuture[Any], TaskFunction, tuple[Any, ...], dict[str, Any]]] = deque()
        #: True if the loop is about to take the submitted tasks.
        self._is_notified = False
        self._is_shut_down = False
        self._lock = threading.RLock()  # Reentrant, because pickling within it may submit more tasks.
        self._loop_thread = LoopThread(pool)
        self._loop = self._loop_thread.loop
        _open.add(self)

    @property
    def _max_workers(self) -> int:
        """Number of workers, which some users of executors read."""
        return self._pool._engine.workers.size

    def __repr__(self) -> str:
        return self._pool._describe("shmrpc.sync.pool", "shut down" if self._is_shut_down else "open")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_copy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(cancel_futures=kind is not None)

    @overload
    def submit(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> TaskFuture[_R]: ...
    @overload
    def submit(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> TaskFuture[_R]: ...
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Submit a call of the function to the workers; return its future.

        Safe in any thread. Raises RuntimeError after :meth:`shutdown`, and LocalProtocolError in a forked child. The
        future raises as :meth:`shmrpc.Pool.run` does, also for a function that cannot be sent and for a broken pool,
        but StopIteration itself.
        """
        self._check_open()
        future: TaskFuture[Any] = TaskFuture()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            try:
                known, args = self._pool._engine.functions.lookup(function, args)
            except Exception as error:
                return _fail(future, error)
            self._submitted.append((future, known, args, kwargs))
            if self._is_notified:
                return future
            self._loop.call_soon_threadsafe(self._take_submitted)
            self._is_notified = True  # Set last: a signal handler that raises before costs only a wake-up.
        return future

    def _check_open(self) -> None:
        """Raise RuntimeError after :meth:`shutdown`, and LocalProtocolError in a forked child."""
        if self._owner_pid != os.getpid():
            raise LocalProtocolError(f"this pool was made in process {self._owner_pid}: make one in this process")
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _take_submitted(self) -> None:
        """Submit the tasks that threads have queued to the pool; fail those that it refuses. Runs in the loop."""
        with self._lock:
            self._is_notified = False
        while self._submitted:
            future, known, args, kwargs = self._submitted.popleft()
            try:
                self._pool._engine.lifecycle.check_open()
                self._pool._submit(future, known, args, kwargs)
            except Exception as error:
                _fail(future, error)

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, _R]],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Iterator[_R]: ...
    @overload
    def map(
        self,
        fn: Callable[..., _R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Iterator[_R]: ...
    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Any]:
        """Call the function with the items of each iterable, which are collected first; yield the results in order.

        The tasks start at once. ``chunksize`` has no effect, and is accepted as in the standard library.
        ``on_progress``: see :meth:`shmrpc.Pool.map`; the pool's thread calls it, and the reader's at the start and end.

        Raises RuntimeError after :meth:`shutdown`, LocalProtocolError in a forked child, EncodeError or TypeError for a
        function that cannot be sent, and ValueError for a ``chunksize`` below 1. The iterator raises what the next task
        raises, which stops the other tasks, and TimeoutError if the next result is missing ``timeout`` seconds after
        this call. Read the results before :meth:`shutdown`, which waits for no reader: later, the iterator raises
        RuntimeError, and tasks whose results were not read may never run.
        """
        self._check_open()
        if chunksize < 1:
            raise ValueError(f"chunksize: expected 1 or more, got {chunksize}")
        end = end_of_wait(timeout)
        if len(iterables) == 1:
            columns: Sequence[Iterable[Any]] = [list(iterables[0])]
        else:
            columns = list(zip(*zip(*iterables, strict=False), strict=True)) or [()]
        with self._lock:
            known, bound = self._pool._engine.functions.lookup(fn, ())
        results = self._call(start_map(self._pool, known, [*map(itertools.repeat, bound), *columns]))
        progress = None if on_progress is None else report_progress(on_progress, columns)
        return self._iterate(results, end, progress)

    def _iterate(
        self,
        results: MapResults | AsyncMapResults,
        end: float | None,
        progress: AbstractContextManager[ReportEnded] | None,
    ) -> Generator[Any, None, None]:
        """Yield the results of a map; close them at the end. Raises what the next task raises.

        Raises TimeoutError for a result that is missing at ``end``, in seconds of time.monotonic(); None: no limit.
        """
        try:
            with progress or contextlib.nullcontext() as results.source.report:
                while True:
                    batch = self._call(results.read() if end is None else _read_until(results, end))
                    if batch is None:
                        return
                    batch.reverse()
                    while batch:  # pop() drops the reference while the reader has the result.
                        yield unwrap_result(batch.pop())
        finally:
            if self._loop_thread.is_alive():
                self._call(results.close())

    def _call(self, coroutine: Coroutine[Any, Any, _R]) -> _R:
        """Run a coroutine in the pool's loop; wait for its result and return it. Must not run in the pool's thread.

        Raises what the coroutine raises, and RuntimeError if the pool is shut down.
        """
        return self._loop_thread.call(coroutine).result()

    def broadcast(self, value: _R) -> _R:
        """Write a value into memory that all workers share, and return it: see :meth:`shmrpc.Pool.broadcast`.

        Raises RuntimeError after :meth:`shutdown`, and LocalProtocolError in a forked child, besides its errors.
        """
        self._check_open()
        return self._call(self._pool.broadcast(value))

    def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Share several values: see :meth:`shmrpc.Pool.scatter`. Raises as :meth:`broadcast` does."""
        self._check_open()
        return self._call(self._pool.scatter(values))

    def resize(self, workers: int) -> None:
        """Change the number of workers: see :meth:`shmrpc.Pool.resize`. Raises RuntimeError once the pool has ended."""

        async def resize() -> None:
            self._pool.resize(workers)

        self._call(resize())

    def stats(self) -> PoolStats:
        """Return statistics of the pool and its workers. Raises RuntimeError once the pool has ended."""

        async def stats() -> PoolStats:
            return self._pool.stats()

        return self._call(stats())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new tasks, and end the workers once all tasks have ended. Idempotent.

        ``wait``: wait until the workers have ended, unless this is the pool's thread. ``cancel_futures``, which counts
        in the first call: cancel the tasks that have not begun. Does nothing in a forked child.
        """
        if self._owner_pid != os.getpid():
            return
        with self._lock:
            first, self._is_shut_down = not self._is_shut_down, True
        if first and self._loop_thread.is_alive():
            self._loop.call_soon_threadsafe(self._finish, cancel_futures)
        if wait and self._loop_thread.join():
            _open.discard(self)

    def _finish(self, cancel_futures: bool) -> None:
        """End the loop's thread after the last task. Runs in the loop."""
        if cancel_futures:
            for future, *_ in self._submitted:
                future.cancel()
            self._pool._engine.cancel_waiting()
        self._loop_thread.finish()


class InlineBlockingPool(BlockingPool):
    """A pool within a worker of another pool, which runs each task at once in that worker."""

    def __init__(self, pool: InlinePool) -> None:
        self._pool = pool
        self._is_shut_down = False

    @property
    def _max_workers(self) -> int:
        """Number of workers: 1, because this process runs all tasks."""
        return 1

    def _check_open(self) -> None:
        """Raise RuntimeError after :meth:`shutdown`."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Call the function; return its future, which is done. Raises RuntimeError after :meth:`shutdown`."""
        self._check_open()
        return self._pool.submit(_call_here, function, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Any]:
        """Call the function with the items of each iterable, each time that a result is read; yield the results.

        ``timeout`` and ``chunksize`` have no effect. Raises RuntimeError after :meth:`shutdown`. The iterator raises
        what the function raises.
        """
        self._check_open()
        return self._iterate_here(fn, iterables, on_progress)

    def _iterate_here(
        self, fn: Callable[..., Any], iterables: Sequence[Iterable[Any]], on_progress: OnProgress | None
    ) -> Generator[Any, None, None]:
        """Call the function each time that a result is read; yield the results."""
        with contextlib.ExitStack() as stack:
            report = None if on_progress is None else stack.enter_context(report_progress(on_progress, iterables))
            for ended, args in enumerate(zip(*iterables, strict=False), 1):
                results = [_call_here(fn, *args)]
                del args
                if report is not None:
                    report(ended)
                yield results.pop()

    def broadcast(self, value: _R) -> _R:
        """Return the value unchanged: tasks run in this process. Raises RuntimeError after :meth:`shutdown`."""
        self._check_open()
        return value

    def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Return the values unchanged. Raises RuntimeError after :meth:`shutdown`."""
        self._check_open()
        return list(values)

    def resize(self, workers: int) -> None:
        """Record the number of workers, which has no effect here."""
        self._pool.resize(workers)

    def stats(self) -> PoolStats:
        """Return the number of tasks; there are no workers."""
        return self._pool.stats()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new tasks. Maps that have begun go on."""
        self._is_shut_down = True


async def _read_until(results: MapResults | AsyncMapResults, end: float) -> list[Any] | None:
    """Read the next results. Raises TimeoutError if none is there at ``end``, in seconds of time.monotonic()."""
    async with asyncio.timeout(end - time.monotonic()):
        return await results.read()


def _call_here(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in this thread; return its result, or run the coroutine that it returns, in a loop of its own."""
    result = function(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _fail(future: TaskFuture[Any], error: Exception) -> TaskFuture[Any]:
    """Set the exception of a task that cannot begin, unless its future is cancelled; return the future."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
    return future


def blocking_pool(workers: int | None = None, **options: Unpack[PoolOptions]) -> BlockingPool:
    """Return a pool of processes for threads: ``with shmrpc.sync.pool(4) as pool: pool.submit(f, x).result()``.

    The pool is a :class:`concurrent.futures.Executor`. The options are those of :func:`shmrpc.pool`. Waits until all
    workers are ready. Raises as :func:`shmrpc.pool` does; PoolBroken if workers cannot start, EncodeError for
    ``initargs`` that cannot be sent, and LocalProtocolError if gevent or eventlet has replaced what its thread needs.
    """
    check_threads("shmrpc.sync.pool()")
    made = pool(workers, **options)
    return InlineBlockingPool(made) if isinstance(made, InlinePool) else BlockingPool(made)
