"""Pools for threads: an executor, whose pool runs in a loop of its own, in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NoReturn, ParamSpec, SupportsIndex, TypeVar, Unpack, overload

import uvloop

from shmrpc.basics.checks import public_class
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.basics.green_threads import check_threads, has_gevent, run_in_greenlet
from shmrpc.errors import LocalProtocolError
from shmrpc.host.resource_limits import descriptor_errno, no_descriptor_error
from shmrpc.pools.map_results import Results, ResultsInLoop, begin_map
from shmrpc.pools.pool import InlinePool, Pool, PoolOptions, PoolStats, pool, refuse_copy
from shmrpc.pools.progress import OnProgress, Report, reporting
from shmrpc.pools.task_future import TaskFuture
from shmrpc.pools.transfer.functions import Function
from shmrpc.pools.transfer.remote_failure import raised

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Seconds between two looks whether the last task has ended.
_LOOK: Final = 2e-3
_open: Final = weakref.WeakSet["BlockingPool"]()


def _shut_down() -> None:
    for each in list(_open):
        each.shutdown()


# As the executors of the standard library: at the end of the program all tasks are done first.
threading._register_atexit(_shut_down)  # type: ignore[attr-defined]


@public_class("shmrpc.sync.Pool")
class BlockingPool(ThreadsOnly, concurrent.futures.Executor):
    """Processes that run functions, for threads; made by :func:`shmrpc.sync.pool`.

    A :class:`concurrent.futures.Executor`, also for ``loop.run_in_executor()``. At the end of its ``with`` block it
    waits for all tasks; if an exception ends the block, those that have not begun are cancelled.
    """

    def _kind_and_factory(self) -> tuple[str, str]:
        return "this pool", "pool"

    def __init__(self, made: Pool) -> None:
        if not isinstance(made, Pool):
            raise TypeError("shmrpc.sync.Pool is a type: open one by shmrpc.sync.pool(workers)")
        self._pool = made
        self._made_by = os.getpid()
        self._calls: deque[tuple[TaskFuture[Any], Function, tuple[Any, ...], dict[str, Any]]] = deque()
        self._told = self._closing = False
        self._lock = threading.RLock()  # What is pickled within it may submit more.
        begun: concurrent.futures.Future[asyncio.Task[None]] = concurrent.futures.Future()
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended = asyncio.Event()
        arguments = (made, begun, ready, self._ended)
        self._thread = threading.Thread(target=_run, args=arguments, name="shmrpc-pool", daemon=True)
        self._thread.start()
        try:
            self._loop = begun.result().get_loop()
            ready.result()
        except BaseException:  # Ctrl-C, say: workers that were about to begin are not left to the end of the program.
            if not (begun.done() and begun.exception()):
                begun.add_done_callback(_cancel)
            self._thread.join()
            raise
        _open.add(self)

    @property
    def _max_workers(self) -> int:
        """The number of workers, which some users of executors read."""
        return self._pool._engine.size

    def __repr__(self) -> str:
        return self._pool._described("shmrpc.sync.pool", "shut down" if self._closing else "open")

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
        """Has the function called in a worker; its future.

        Raises RuntimeError after :meth:`shutdown`, and in a forked child LocalProtocolError.
        """
        self._check_open()
        future: TaskFuture[Any] = TaskFuture()
        with self._lock:
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            try:
                known, args = self._pool._engine.functions.of(function, args)
            except Exception as error:
                return _failed(future, error)
            self._calls.append((future, known, args, kwargs))
            if self._told:
                return future
            self._loop.call_soon_threadsafe(self._take)
            self._told = True  # Afterwards: if a signal handler raises between, the loop takes once more in vain.
        return future

    def _check_open(self) -> None:
        if self._made_by != os.getpid():
            raise LocalProtocolError(f"this pool was made in process {self._made_by}; make one in this process")
        if self._closing:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _take(self) -> None:
        """Hands on what was submitted. In the loop."""
        with self._lock:
            self._told = False
        while self._calls:
            future, known, args, kwargs = self._calls.popleft()
            try:
                self._pool._engine.check()
                self._pool._submit(future, known, args, kwargs)
            except Exception as error:
                _failed(future, error)

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
        """Calls the function with the items of each iterable, which are collected at once; gives the results in order.

        Raises TimeoutError if the next result is not there ``timeout`` seconds after this was called. ``chunksize`` is
        for those of the standard library: how many tasks are sent at a time is found out. ``on_progress``: see
        :meth:`shmrpc.Pool.map`; it is called in the pool's thread.
        """
        self._check_open()
        if chunksize < 1:
            raise ValueError(f"chunksize: expected 1 or more, got {chunksize}")
        if len(iterables) == 1:
            columns: Sequence[Iterable[Any]] = [list(iterables[0])]
        else:
            columns = list(zip(*zip(*iterables, strict=False), strict=True)) or [()]
        with self._lock:
            known, bound = self._pool._engine.functions.of(fn, ())
        results = self._call(begin_map(self._pool, known, [*map(itertools.repeat, bound), *columns]))
        reported = None if on_progress is None else reporting(on_progress, columns)
        return self._read(results, timeout, reported)

    def _read(
        self, results: Results | ResultsInLoop, timeout: float | None, reported: AbstractContextManager[Report] | None
    ) -> Generator[Any, None, None]:
        end = None if timeout is None else self._loop.time() + timeout
        try:
            with reported or contextlib.nullcontext() as results.source.report:
                yield from self._results(results, end)
        finally:
            if self._thread.is_alive():
                self._call(results.close())

    def _results(self, results: Results | ResultsInLoop, end: float | None) -> Generator[Any, None, None]:
        while True:
            left = None if end is None else max(0.0, end - self._loop.time())
            found = self._call(results.read(), left)
            if found is None:
                return
            found.reverse()
            while found:  # Nothing of a result is kept while its reader has it.
                yield raised(found.pop())

    def _call(self, coroutine: Coroutine[Any, Any, _R], timeout: float | None = None) -> _R:
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the pool is shut down")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def broadcast(self, value: _R) -> _R:
        """Puts a value into memory that all workers share: see :meth:`shmrpc.Pool.broadcast`."""
        self._check_open()
        return self._call(self._pool.broadcast(value))

    def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Does so with each of some values: see :meth:`shmrpc.Pool.scatter`."""
        self._check_open()
        return self._call(self._pool.scatter(values))

    def resize(self, workers: int) -> None:
        """Changes the number of workers: see :meth:`shmrpc.Pool.resize`."""

        async def resize() -> None:
            self._pool.resize(workers)

        self._call(resize())

    def stats(self) -> PoolStats:
        """What the workers do."""

        async def stats() -> PoolStats:
            return self._pool.stats()

        return self._call(stats())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more tasks, and ends the workers once all are done; ``wait``: returns then. Again: nothing new.

        ``cancel_futures`` cancels those that have not begun.
        """
        if self._made_by != os.getpid():
            return
        with self._lock:
            first, self._closing = not self._closing, True
        if first and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end, cancel_futures)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()
            _open.discard(self)

    def _end(self, cancel_futures: bool) -> None:
        if cancel_futures:
            for future, *_ in self._calls:
                future.cancel()
            self._pool._engine.cancel_waiting()
        self._ended.set()


class InlineBlockingPool(BlockingPool):
    """A pool within a worker of another one: its tasks are run at once, where they are."""

    def __init__(self, made: InlinePool) -> None:
        self._pool = made
        self._closing = False

    @property
    def _max_workers(self) -> int:
        return 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Calls the function; its future."""
        if self._closing:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return self._pool.submit(_here, function, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Any]:
        """Calls the function with the items of each iterable, one result after the other."""
        with contextlib.ExitStack() as stack:
            report = None if on_progress is None else stack.enter_context(reporting(on_progress, iterables))
            for ended, args in enumerate(zip(*iterables, strict=False), 1):
                results = [_here(fn, *args)]
                del args
                if report is not None:
                    report(ended)
                yield results.pop()

    def broadcast(self, value: _R) -> _R:
        """Gives the value as it is: tasks run here."""
        return value

    def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Gives the values as they are."""
        return list(values)

    def resize(self, workers: int) -> None:
        """Changes nothing here."""
        self._pool.resize(workers)

    def stats(self) -> PoolStats:
        """What was run."""
        return self._pool.stats()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more tasks."""
        self._closing = True


def _here(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function in this thread, and runs what it returns if that is a coroutine."""
    result = function(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _failed(future: TaskFuture[Any], error: Exception) -> TaskFuture[Any]:
    """A future whose task cannot begin."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
    return future


def _cancel(begun: concurrent.futures.Future[asyncio.Task[None]]) -> None:
    """Gives up the start of a pool. In any thread."""
    task = begun.result()
    with contextlib.suppress(RuntimeError):  # It has ended by itself.
        task.get_loop().call_soon_threadsafe(task.cancel)


def _run(
    made: Pool,
    begun: concurrent.futures.Future[asyncio.Task[None]],
    ready: concurrent.futures.Future[None],
    ended: asyncio.Event,
) -> None:
    """The thread: the pool's loop, from its start to its end."""

    async def live() -> None:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result(task)
        try:
            await made.__aenter__()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        is_done = False
        try:
            await ended.wait()
            while made._engine.is_busy and made._engine.ended is None:
                await asyncio.sleep(_LOOK)
            is_done = True
        except asyncio.CancelledError:  # Who waited for the start was interrupted, just as it was over.
            pass
        finally:
            await made._engine.close(is_patient=is_done)

    living = live()
    try:
        (run_in_greenlet if has_gevent() else uvloop.run)(living)
    except BaseException as error:  # Before it begins, as without a descriptor for its loop.
        living.close()
        number = descriptor_errno(error) if isinstance(error, OSError) else None
        failed = error if number is None else no_descriptor_error(number, "for a pool")
        waiting = [each for each in (begun, ready) if not each.done()]
        if not waiting:  # The constructor has returned, so only the thread's hook can show the error.
            raise
        for each in waiting:
            each.set_exception(failed)


def blocking_pool(workers: int | None = None, **options: Unpack[PoolOptions]) -> BlockingPool:
    """Processes that run functions, for threads: ``with shmrpc.sync.pool(4) as pool: pool.submit(f, x).result()``.

    A :class:`concurrent.futures.Executor`. The options are those of :func:`shmrpc.pool`. Returns once the first worker
    is ready, and raises PoolBroken if none can begin.
    """
    check_threads("shmrpc.sync.pool()")
    made = pool(workers, **options)
    return InlineBlockingPool(made) if isinstance(made, InlinePool) else BlockingPool(made)
