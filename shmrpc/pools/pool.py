"""Pools in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, ParamSpec, Self, SupportsIndex, TypedDict, TypeVar, Unpack, overload

from shmrpc.basics.checks import check_bytes, check_seconds, check_whole, public_class
from shmrpc.basics.drivers import AsyncioOnly
from shmrpc.errors import LocalProtocolError, PoolBroken
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.engine import Engine, Options
from shmrpc.pools.processes.cpus import thread_limits, usable
from shmrpc.pools.processes.spawner import Settings
from shmrpc.pools.progress import OnProgress, Report, reporting
from shmrpc.pools.scheduling.chunks import Mapped, Submitted
from shmrpc.pools.task_future import TaskFuture
from shmrpc.pools.transfer.functions import Function, is_by_name, reference_of
from shmrpc.pools.transfer.main_module import ByValue, has_program, take_place
from shmrpc.pools.transfer.remote_failure import raised
from shmrpc.pools.worker.task_runner import is_worker
from shmrpc.values.pickling import pickle_main_by_value

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")

#: Makes a future without a call of its constructor, which has nothing to do.
_unmade: Final = TaskFuture.__new__
#: Seconds that a task has to end once it is interrupted.
DEFAULT_GRACE: Final = 1.0
#: Chunks of a map() for each worker whose results are not read.
_UNREAD: Final = 4
#: Tasks of an async function for each worker that a map() has under way.
_IN_LOOP: Final = 64
#: Bytes that a worker needs for itself.
_LEAST_MEMORY: Final = 64 << 20


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """What a worker does."""

    pid: int
    #: Tasks that it was given, since it began.
    tasks: int
    #: Whether it has one now.
    busy: bool


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """What a pool does: see :meth:`Pool.stats`."""

    #: Those that are ready, by their number.
    workers: list[WorkerStats]
    #: Tasks that have ended.
    completed: int
    #: Workers that have taken the place of others.
    replaced: int


@public_class("shmrpc.Pool")
class Pool(AsyncioOnly):
    """Processes that run functions; made by :func:`pool`, used as ``async with``."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine, Engine):
            raise TypeError("shmrpc.Pool is a type: open one by shmrpc.pool(workers)")
        self._engine = engine
        self._is_open = False

    def _kind_and_factory(self) -> tuple[str, str]:
        return "this pool", "pool"

    def __await__(self) -> Generator[Any, None, Self]:
        """Starts the workers: ``pool = await shmrpc.pool(4)``; close it yourself then."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        """Starts the workers, and waits until the first one is ready.

        Raises PoolBroken if they cannot begin, with what the initializer raised as its cause.
        """
        if self._is_open:
            raise LocalProtocolError("this pool was opened before; make another one")
        self._is_open = True
        await self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        ended = self._engine.ended
        state = "open" if ended is None else "closed" if self._is_open else "not open"
        return self._described("shmrpc.pool", "broken" if isinstance(ended, PoolBroken) else state)

    def _described(self, maker: str, state: str) -> str:
        size = self._engine.size
        return f"<{maker} of {size} {'worker' if size == 1 else 'workers'}, {state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_copy()

    async def close(self) -> None:
        """Ends the workers. Tasks that are under way are interrupted, and fail. Again: nothing."""
        await self._engine.close()

    @overload
    async def run(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...
    @overload
    async def run(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in a worker; its result.

        Cancelling the await ends the task: one that waits is taken back, one of an async function is cancelled, any
        other has an exception raised in it, and if it has not ended after ``grace`` seconds its worker is killed.

        Raises what the function raises, with the worker's traceback as its cause; WorkerDied if the worker has died
        with it; EncodeError for arguments that cannot be sent; PoolBroken if the pool has given up.
        """
        return self._engine.run(function, args, kwargs)

    @overload
    def submit(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> TaskFuture[_R]: ...
    @overload
    def submit(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> TaskFuture[_R]: ...
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Has the function called in a worker; its future can be awaited, and is one of ``concurrent.futures`` too.

        Raises what has ended the pool. What the task raises is the future's.
        """
        self._engine.check()
        future: TaskFuture[Any] = _unmade(TaskFuture)
        future._loop = self._engine.loop
        self._submit(future, function, args, kwargs)
        return future

    def _submit(
        self,
        future: TaskFuture[Any],
        function: Callable[..., Any] | Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        engine = self._engine
        known, bound = engine.functions.of(function, args)
        if known.is_async or kwargs:
            engine.fulfil(future, known, bound, kwargs)
            return
        single = len(bound) == 1
        source = known.submitted.get(single)
        if source is None:
            source = known.submitted[single] = Submitted(known, single=single)
        source.waiting.append((future, bound[0] if single else [*bound]))
        if not source.is_wanted:
            engine.wanted(source)

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
        """Calls the function with the items of each iterable, as ``map()`` does; gives the results as they come.

        The iterables may be of any length: items are taken as there is room for their results. How many tasks are sent
        at a time is found out. ``ordered=False`` gives each result as soon as it is there. A task that fails raises
        when its turn comes, and ends what others still do.

        ``on_progress`` is called, while the results are read, with how many tasks have ended, and of how many: the
        shortest length of the iterables that have one, else None. A text shows a bar of rich's, with that text.
        """
        for each in iterables:
            if hasattr(each, "__aiter__"):
                raise TypeError(
                    f"map() takes iterables, and no async ones such as this {type(each).__name__}: submit() what comes "
                    "of it, item by item"
                )
        if not iterables:
            raise TypeError("map() expected a function and one iterable at least")
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
        with reporting(on_progress, iterables) as report:
            async with contextlib.aclosing(self._map(function, iterables, ordered, report)) as results:
                kept: dict[str, Any] = {}
                async for kept["it"] in results:
                    yield kept.pop("it")  # Nothing of a result is kept while its reader has it.

    async def _map(
        self, function: Callable[..., Any], iterables: Sequence[Iterable[Any]], ordered: bool, report: Report | None
    ) -> AsyncGenerator[Any, None]:
        engine = self._engine
        engine.check()
        known, bound = engine.functions.of(function, ())
        if bound:  # A method: its object goes with each item.
            iterables = [*map(itertools.repeat, bound), *iterables]
        if known.is_async:
            kept: dict[str, Any] = {}
            async for kept["it"] in self._map_in_loop(known, iterables, ordered, report):
                yield kept.pop("it")  # Nothing of a result is kept while its reader has it.
            return
        source = self._mapped(known, iterables, ordered=ordered)
        source.report = report
        try:
            while (results := await source.read()) is not None:
                results.reverse()
                while results:  # Nothing of a result is kept while its reader has it.
                    yield raised(results.pop())
        finally:
            source.close()
            engine.remove(source)

    def _mapped(self, known: Function, iterables: Sequence[Iterable[Any]], *, ordered: bool) -> Mapped:
        """The tasks of a map, which begin."""
        engine = self._engine
        room = _UNREAD * max(1, engine.size)
        source = Mapped(known, iterables, ordered, room, lambda: engine.add(source))
        engine.add(source)
        return source

    async def _map_in_loop(
        self, known: Function, iterables: Sequence[Iterable[Any]], ordered: bool, report: Report | None
    ) -> AsyncGenerator[Any, None]:
        """The same for an async function, whose tasks are all under way at once."""
        calls = zip(*iterables, strict=False)
        under_way: dict[asyncio.Task[Any], None] = {}
        ended = 0
        try:
            while True:
                while len(under_way) < _IN_LOOP * max(1, self._engine.size) and (args := next(calls, None)) is not None:
                    under_way[asyncio.ensure_future(self._engine.run(known, args, {}))] = None
                if not under_way:
                    return
                first = next(iter(under_way))
                if ordered:
                    await asyncio.wait([first])
                else:
                    done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    first = next(each for each in under_way if each in done)
                    del done
                del under_way[first]
                results = [first.result()]
                del first
                ended += 1
                if report is not None:
                    report(ended)
                yield results.pop()
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)

    async def broadcast(self, value: _R) -> _R:
        """Puts a value into memory that all workers share, and gives it as it lies there.

        Give that to tasks, each time as an argument of its own and not within another one: they get it from where it
        lies, and it is neither sent nor copied. Arrays, and what consists of them, are read-only from then on; of what
        else is in the value each worker makes its own copy once. The memory is given back when nobody has the value
        any more, or if Python cannot see that, as of a list or a dict, with the pool.

        Raises SharedMemoryError if there is no memory, and what pickle raises for the value.
        """
        return (await self.scatter([value]))[0]

    async def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Does the same with each of some values, such as the rows of an array: see :meth:`broadcast`."""
        self._engine.check()
        return await asyncio.to_thread(self._engine.shared.share, list(values))

    async def do(self, source: str, /, *iterables: Iterable[Any]) -> list[Any]:
        """Calls a function that is given as source text, such as ``"lambda a, b: a + b"``, element by element."""
        function = eval(compile(source, "<do>", "eval"), {})
        if not callable(function):
            raise TypeError(f"do() expected the text of a function, such as 'lambda a, b: a + b', got {source!r}")
        return [result async for result in self.map(function, *iterables)]

    def resize(self, workers: int) -> None:
        """Changes the number of workers. Those that are too many end after what they are doing."""
        self._engine.check()
        self._engine.resize(_count(workers))

    def stats(self) -> PoolStats:
        """What the workers do."""
        workers = sorted(self._engine.workers, key=lambda worker: worker.number)
        return PoolStats(
            [WorkerStats(worker.pid, worker.tasks, bool(worker.chunks or worker.tasks_in_loop)) for worker in workers],
            self._engine.completed,
            self._engine.replaced,
        )


class InlinePool(Pool):
    """A pool within a worker of another one: its tasks are run at once, where they are."""

    def __init__(self, size: int) -> None:
        self._size, self._completed = size, 0

    def __repr__(self) -> str:
        return self._described("shmrpc.pool", "open")

    def _described(self, maker: str, state: str) -> str:
        return f"<{maker} within a worker, which runs its tasks itself, {state}>"

    async def __aenter__(self) -> Self:
        """Has nothing to start."""
        return self

    async def close(self) -> None:
        """Has nothing to end."""

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        self._completed += 1
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Calls the function; its future."""
        future: TaskFuture[Any] = TaskFuture()
        if inspect.iscoroutinefunction(function):
            future._loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self.run(function, *args, **kwargs))
            task.add_done_callback(functools.partial(_fulfil, future))
            return future
        self._completed += 1
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    async def _map(
        self, function: Callable[..., Any], iterables: Sequence[Iterable[Any]], ordered: bool, report: Report | None
    ) -> AsyncGenerator[Any, None]:
        for ended, args in enumerate(zip(*iterables, strict=False), 1):
            results = [await self.run(function, *args)]
            del args
            if report is not None:
                report(ended)
            yield results.pop()
            await asyncio.sleep(0)

    async def scatter(self, values: Iterable[_R]) -> list[_R]:
        """Gives the values as they are: tasks run here."""
        return list(values)

    def resize(self, workers: int) -> None:
        """Notes the number, which changes nothing here."""
        self._size = _count(workers)

    def stats(self) -> PoolStats:
        """What was run; there are no workers."""
        return PoolStats([], self._completed, 0)


def _fulfil(future: TaskFuture[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def refuse_copy() -> NoReturn:
    """Raises what a pool says that is pickled or copied."""
    raise TypeError(
        "a pool cannot be copied or pickled: its workers are this process's. In a task, call shmrpc.pool() or "
        "shmrpc.sync.pool(): such a pool runs its tasks where it is"
    )


def _count(workers: int) -> int:
    count = check_whole("workers", workers, "a number of processes")
    if not 1 <= count <= 4096:
        raise ValueError(f"workers: expected 1 to 4096 processes, got {workers}")
    return count


def _check_environment(environment: Any) -> None:
    if not isinstance(environment, Mapping):
        raise TypeError(f"environment: expected a dict of texts, got {environment!r}")
    for name, value in environment.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"environment: expected names and values that are texts, got {name!r}: {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"environment: expected a name without `=`, and no NUL in either, got {name!r}: {value!r}")


class PoolOptions(TypedDict, total=False):
    """The options of a pool: see :func:`pool`."""

    initializer: Callable[..., Any] | None
    initargs: Sequence[Any]
    retries: int
    grace: float
    max_tasks_per_child: int | None
    memory: int | str | None
    affinity: Literal["spread"] | None
    environment: Mapping[str, str]


def pool(workers: int | None = None, **options: Unpack[PoolOptions]) -> Pool:
    """Processes that run functions: ``async with shmrpc.pool(4) as pool: await pool.run(f, x)``.

    ``workers``: how many; by default one for each CPU that this process may use, by its affinity and its cgroup.

    Options, all of them by name:

    - ``initializer``, ``initargs``: a function that each worker calls before its first task, and its arguments. Tasks
      find what it returned as ``shmrpc.worker().state``; an async function is awaited.
    - ``retries``: how often a task is run again with which a worker has died. With 0, as by default, it fails with
      WorkerDied.
    - ``grace``: seconds that a cancelled task has to end; then its worker is killed. 1 by default.
    - ``max_tasks_per_child``: a worker that was given this many tasks is replaced.
    - ``memory``: bytes of data that a worker may have, or a size such as ``"2GiB"``; a task that wants more gets a
      MemoryError.
    - ``affinity="spread"`` keeps each worker on a CPU of its own.
    - ``environment``: variables of the workers, besides this process's own. Numerical libraries are told, by those that
      they know, to use their share of the CPUs.

    Functions that can be imported are found by their names, all others are sent by cloudpickle, each once to each
    worker, and again when what they refer to has changed. Arguments and results travel as those of calls with
    ``codec="pickle"``: arrays through shared memory; what stands twice in the arguments of a task arrives as one
    object. Within a worker a pool runs its tasks at once, in that worker.

    Raises ValueError or TypeError for options that cannot be. Starting raises: :meth:`Pool.__aenter__`.
    """
    if unknown := options.keys() - PoolOptions.__annotations__.keys():
        hint = "; did you mean workers, its first argument?" if "max_workers" in unknown else ""
        raise TypeError(f"pool() has no option {', '.join(sorted(unknown))}{hint}")
    count = usable() if workers is None else _count(workers)
    grace, retries = options.get("grace", DEFAULT_GRACE), options.get("retries", 0)
    check_seconds("grace", grace)
    if check_whole("retries", retries, "a number of times") < 0:
        raise ValueError(f"retries: expected 0 or more, got {retries}")
    most, memory = options.get("max_tasks_per_child"), None
    if most is not None and check_whole("max_tasks_per_child", most, "a number of tasks") < 1:
        raise ValueError(f"max_tasks_per_child: expected 1 or more, got {most}")
    if (size := options.get("memory")) is not None:
        memory = check_bytes("memory", size, _LEAST_MEMORY, None)
    initializer, affinity = options.get("initializer"), options.get("affinity")
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer: expected a function, got {initializer!r}")
    if affinity not in (None, "spread"):
        raise ValueError(f"affinity: expected 'spread' or None, got {affinity!r}")
    environment = options.get("environment", {})
    _check_environment(environment)
    if is_worker():
        return InlinePool(count)
    keep_standard_descriptors()
    settings = Settings(
        {**thread_limits(count), **environment},
        memory,
        tuple(sorted(os.sched_getaffinity(0))) if affinity == "spread" else None,
        by_value=not has_program(),
    )
    if settings.by_value:
        pickle_main_by_value()
    take_place()
    if initializer is not None and not is_by_name(initializer):
        reference_of(initializer, ByValue)  # Which raises for one that cannot be sent.
    return Pool(Engine(count, Options(settings, initializer, tuple(options.get("initargs", ())), retries, grace, most)))
