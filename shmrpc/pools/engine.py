"""What a pool does: which worker gets which task, and what becomes of the tasks of one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from shmrpc.basics.loops import running_loop
from shmrpc.errors import (
    ConnectionLost,
    DecodeError,
    EncodeError,
    LocalProtocolError,
    PoolBroken,
    RemoteError,
    WorkerDied,
)
from shmrpc.host.resource_limits import descriptor_errno, no_descriptor_error
from shmrpc.pools.processes.spawner import Settings, Starter, WorkerProcess
from shmrpc.pools.scheduling.chunks import LONG, Chunk, Source, Submitted
from shmrpc.pools.scheduling.remote_worker import RemoteWorker
from shmrpc.pools.task_future import TaskFuture, withdraw
from shmrpc.pools.transfer.functions import Function, Functions, reference_of
from shmrpc.pools.transfer.log_forwarding import levels
from shmrpc.pools.transfer.remote_failure import Failed, of_task, read
from shmrpc.pools.transfer.shared_values import SharedValues
from shmrpc.pools.worker.task_runner import TaskStopped
from shmrpc.values.pickling import LazyPickle

if sys.version_info >= (3, 12):
    from asyncio import current_task
else:  # That one is Python's there, and takes longer than all that a pool does with a task.

    def current_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
        """The task that runs in this loop."""
        return asyncio.tasks._current_tasks.get(loop)  # type: ignore[attr-defined,no-any-return]


logger = logging.getLogger("shmrpc.pool")

#: Workers that die one after the other before they are ready, until the pool gives up.
DEATHS: Final = 5
#: Seconds for which a worker whose connection has ended is asked how it has.
_DYING: Final = 1.0
_STARTING: Final = "shmrpc-worker-starting"
#: Seconds between two looks for results that nothing has woken us for, and for tasks that wait behind a slow one.
_LOOK: Final = 1e-3
#: Seconds between two looks for what workers that stand still, or are busy, have not begun.
_WATCH: Final = 20e-3


class StopIterationOfTaskError(RuntimeError):
    """A task has raised StopIteration, which no coroutine can: its cause."""

    def __init__(self, stop: StopIteration, name: str) -> None:
        super().__init__(f"{name}() raised {stop!r}, which cannot be raised in a coroutine: see submit()")
        self.__cause__ = self.stop = stop


class _LieError(Exception):
    """A worker has said what cannot be true: something has written over its memory."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a pool was asked for."""

    settings: Settings
    initializer: Callable[..., Any] | None
    initargs: tuple[Any, ...]
    retries: int
    grace: float
    max_tasks_per_child: int | None


class Engine:
    """The workers of a pool, and the tasks that wait for them. In one loop."""

    def __init__(self, size: int, options: Options) -> None:
        self.size, self.options = size, options
        self._made_by = os.getpid()
        self._starter = Starter(options.settings)
        self.functions = Functions(self._dropped)
        #: The values that its workers share.
        self.shared = SharedValues(self._released)
        self.workers: list[RemoteWorker] = []
        #: Those that have nothing to do, the one that was busy last at the end: its caches are warm.
        self._idle: list[RemoteWorker] = []
        #: Single calls that wait for a worker.
        self._turns: deque[asyncio.Future[RemoteWorker]] = deque()
        self._sources: deque[Source] = deque()
        self._numbers: set[int] = set()
        self._running: set[asyncio.Task[Any]] = set()
        #: Tasks of the pool that are a call each, and have a future.
        self._singles: set[asyncio.Task[None]] = set()
        #: What brings workers to their ends, and is not to be cancelled.
        self._endings: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        #: Chunks of several tasks that workers have.
        self._several = 0
        self._wanted: asyncio.Handle | None = None
        self._want_of: dict[Submitted, None] = {}
        self._deaths = 0
        #: Whether what waits for a worker is cancelled.
        self._gives_up = False
        #: True if workers that end may take their time, as replaced workers do.
        self._is_patient = True
        self.completed = 0
        self.replaced = 0
        #: Why nothing is run, yet or any more.
        self.ended: Exception | None = LocalProtocolError(
            "this pool is not open: use `async with shmrpc.pool(...) as pool:`"
        )

    async def open(self) -> None:
        """Starts the workers. Raises PoolBroken if they cannot begin, with the initializer's error as its cause."""
        self.loop, self.ended = running_loop(), None
        self.resize(self.size)
        try:
            await asyncio.wait([task for task in self._running if task.get_name() == _STARTING])
            while not self.workers and self.ended is None:
                await asyncio.wait(self._running)
        except BaseException:
            await self.close()
            raise
        if self.ended is not None:
            ended = self.ended
            await self.close()
            raise ended

    def resize(self, size: int) -> None:
        """Starts workers, or lets some end after what they are doing, until there are that many."""
        self.size = size
        for number in range(size):
            if number not in self._numbers:
                self.begin(self._start(number), _STARTING)
                self._numbers.add(number)
        for worker in list(self.workers):
            if worker.number >= size:
                self._retire(worker)

    def begin(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Runs something until it ends, or the pool does."""
        task = self.loop.create_task(coroutine, name=name or None)
        self._running.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error if isinstance(error, Exception) else PoolBroken(f"the pool has given up: {error!r}"))

    async def _start(self, number: int) -> None:
        """Starts a worker, again if it dies before it is ready."""
        while self.ended is None and number < self.size:
            worker: RemoteWorker | None = None
            try:
                worker = RemoteWorker(number, await self._process(number))
                await worker.connect()
                failed = await self._initialize(worker)
                if type(failed) is Failed:
                    raise _of_initializer(failed.error())
            except asyncio.CancelledError:
                if worker is not None:
                    self._end(worker)
                raise
            except EncodeError as error:  # No other worker would get the initializer's arguments.
                if worker is not None:
                    await asyncio.shield(self._end(worker))
                self._break(error)
                return
            except Exception as error:
                if worker is not None:
                    if isinstance(error, ConnectionLost):
                        await worker.settled(_DYING)
                    await asyncio.shield(self._end(worker))
                self._deaths += 1
                if self._deaths >= DEATHS or (isinstance(error, OSError) and worker is None):
                    self._break(_broken(error, worker))
                continue
            self._deaths = 0
            if self.ended is not None or number >= self.size:
                await worker.end(self.options.grace)
                break
            self.workers.append(worker)
            self.loop.add_reader(worker.process.pidfd, self._lost, worker)
            self._free(worker)
            return
        self._numbers.discard(number)

    async def _initialize(self, worker: RemoteWorker) -> Any:
        """Has a worker import the program and call the initializer; None, or what that has raised."""
        names = await worker.prepare()
        if type(names) is Failed:
            return names
        if not self.functions.names:
            self.functions.names = frozenset(names)
        initializer = self.options.initializer
        reference = None if initializer is None else reference_of(initializer, self.functions.by_value)
        return await worker.initialize(reference, self.options.initargs, levels())

    async def _process(self, number: int) -> WorkerProcess:
        """Starts a process, in a thread, since that takes some milliseconds."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._starter.start, number))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._keep(_undo(starting))
            raise

    def _end(self, worker: RemoteWorker) -> asyncio.Task[None]:
        """Brings a worker to its end, which is not waited for here."""
        worker.gone = True
        return self._keep(worker.end(self.options.grace, lambda: self._is_patient))

    def _keep(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _lost(self, worker: RemoteWorker) -> None:
        """A worker has died, or is killed; another one takes its place. Again: nothing."""
        if worker.gone:
            return
        worker.was_at_work = any(map(worker.progress.begun, worker.chunks))
        self.loop.remove_reader(worker.process.pidfd)
        self.workers.remove(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if not worker.retiring:
            worker.process.kill()
        self.begin(self._replace(worker, self._end(worker)))

    async def _replace(self, worker: RemoteWorker, ending: asyncio.Task[None]) -> None:
        # The threads that tasks have left there may go on for long.
        await asyncio.wait([ending], timeout=self.options.grace if worker.retiring else None)
        if not worker.retiring:
            await worker.settled(_DYING)
            logger.warning("worker %d (process %d) %s", worker.number, worker.pid, _how(worker))
        if self.ended is None and worker.number < self.size:
            self.replaced += 1
            await self._start(worker.number)
        else:
            self._numbers.discard(worker.number)

    def _retire(self, worker: RemoteWorker) -> None:
        """Lets a worker end, once it does nothing any more."""
        worker.retiring = True
        if worker in self._idle:
            self._idle.remove(worker)
        if not worker.chunks and not worker.tasks_in_loop and not worker.gone:
            self._lost(worker)

    def _free(self, worker: RemoteWorker) -> None:
        """A worker has nothing to do."""
        if worker.gone or worker.stopped:
            return
        most = self.options.max_tasks_per_child
        if worker.retiring or (most is not None and worker.tasks >= most):
            self._retire(worker)
            return
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                worker.chunks[0] = None
                turn.set_result(worker)
                return
        self._idle.append(worker)
        if self._sources:
            self.dispatch()

    def check(self) -> None:
        """Raises what has ended the pool."""
        if self.ended is not None:
            raise self.ended

    async def run(self, function: Callable[..., Any] | Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one task."""
        if self.ended is not None:
            raise self.ended
        known, args = self.functions.of(function, args)
        there: Any = args
        if self.shared.places:
            there = tuple(self.shared.placed(args))
            kwargs = dict(zip(kwargs, self.shared.placed(kwargs.values()), strict=True))
        if known.is_async:
            return await self._run_in_loop(known, there, kwargs)
        retries, deaths = self.options.retries, 0
        while True:
            worker = self._idle.pop() if self._idle else await self._turn()
            worker.open_call(current_task(self.loop))
            if self._watching is None:
                self._watch_later()
            try:
                if known.number not in worker.known:
                    await worker.know(known)
                if kwargs:
                    result = await worker.run_named(0, known.number, (list(there), kwargs))
                else:
                    result = await worker.run(0, known.number, there)
            except asyncio.CancelledError:
                if worker.call_was_taken():
                    self.begin(self._leave(worker, 0))
                    self.check()
                    continue
                self._stop(worker, 0)
                raise
            except ConnectionLost:
                self._lost(worker)
                begun = worker.progress.begun(0) > 0
                deaths += not begun and not worker.killed
                if (begun and not retries) or deaths >= DEATHS:
                    raise await self._died(worker, known, begun=begun) from None
                retries -= begun
                self.check()
                continue
            except (EncodeError, DecodeError, RemoteError) as describe_argument_errors:
                self._left(worker, 0)
                raise of_task(describe_argument_errors, known.name) from describe_argument_errors.__cause__
            except BaseException:  # Nobody knows how far it came.
                self._stop(worker, 0)
                raise
            self.completed += 1
            worker.caller = None
            del worker.chunks[0]
            if worker.chunks or worker.gone or worker.stopped or worker.retiring or self._turns or self._sources:
                self._left(worker, 0)
            elif self.options.max_tasks_per_child is not None:
                self._free(worker)
            else:
                self._idle.append(worker)  # As _free() does, in short.
            if type(result) is LazyPickle:
                result = read(result, known.name)
            if type(result) is Failed:
                error = result.error()
                if isinstance(error, TaskStopped) and self.ended is not None:
                    raise self.ended
                try:
                    raise _of_coroutine(error, known.name)
                finally:
                    del error  # Its traceback has this frame.
            return result

    def fulfil(
        self, future: TaskFuture[Any], function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Has one task run, whose result the future gets."""
        single = self.loop.create_task(self._fulfil(future, function, args, kwargs))
        self._singles.add(single)
        single.add_done_callback(functools.partial(self._fulfilled, future))

    async def _fulfil(
        self, future: TaskFuture[Any], function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = await self.run(function, args, kwargs)
        except asyncio.CancelledError:
            raise
        except StopIterationOfTaskError as error:
            future.set_exception(error.stop)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del future  # The traceback of an exception that it holds has this frame.

    def _fulfilled(self, future: TaskFuture[Any], single: asyncio.Task[None]) -> None:
        self._singles.discard(single)
        if not future.done():  # It was cancelled, perhaps before its first step.
            if self.ended is None:
                withdraw([future])
            else:
                future.set_exception(self.ended)

    async def _turn(self) -> RemoteWorker:
        """Waits for a worker that has nothing to do."""
        if self._gives_up:
            raise asyncio.CancelledError
        turn: asyncio.Future[RemoteWorker] = self.loop.create_future()
        self._turns.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._left(turn.result(), 0)
            raise

    def _left(self, worker: RemoteWorker, slot: int) -> None:
        """What was in a slot has ended."""
        worker.chunks.pop(slot, None)
        worker.ending.discard(slot)
        if not worker.chunks:
            self._free(worker)
        elif self._sources:
            self.dispatch()

    def _stop(self, worker: RemoteWorker, slot: int) -> None:
        """Ends the task in a slot: taken back if it was not begun, interrupted, and at last killed with its worker."""
        worker.ending.add(slot)
        self.begin(self._interrupt(worker, slot))

    async def _interrupt(self, worker: RemoteWorker, slot: int) -> None:
        try:
            if worker.gone:
                return
            worker.progress.take_back(slot, 0)
            try:
                async with asyncio.timeout(self.options.grace):
                    worker.interrupt(slot)
                    await worker.ready()
            except TimeoutError:
                worker.kill(self._why)
            except ConnectionLost:
                pass
        finally:
            self._left(worker, slot)

    @property
    def _why(self) -> str:
        return f"was killed by its pool, since a task that was cancelled had not ended {self.options.grace:g} s later,"

    async def _leave(self, worker: RemoteWorker, slot: int) -> None:
        """Leaves a slot, whose task was taken back, once the worker has seen that."""
        try:
            with contextlib.suppress(ConnectionLost):
                await worker.ready()
        finally:
            self._left(worker, slot)

    async def _run_in_loop(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a task of an async function, in the worker that is to begin it soonest."""
        retries, deaths = self.options.retries, 0
        task = asyncio.current_task()
        assert task is not None
        while True:
            self.check()
            there = [worker for worker in self.workers if worker.takes_tasks]
            if not there:
                self._left(await self._turn(), 0)
                continue
            # One that has a task, or tasks, which hold its loop, begins it later.
            worker = min(there, key=lambda each: (bool(each.chunks), each.tasks_in_loop))
            waiting = worker.seat(task)
            if waiting is None:
                await asyncio.sleep(_WATCH)
                continue
            self._watch_later()
            answered = False
            try:
                await worker.know(function)
                result = await worker.run_async(waiting.seat, function.number, (list(args), kwargs))
                answered = True
            except asyncio.CancelledError:
                if waiting.was_taken():
                    continue
                raise
            except ConnectionLost:
                begun = worker.has_begun(waiting)
                self._lost(worker)
                deaths += not begun and not worker.killed
                if (begun and not retries) or deaths >= DEATHS:
                    raise await self._died(worker, function, begun=begun) from None
                retries -= begun
                continue
            except (EncodeError, DecodeError, RemoteError) as error:
                raise of_task(error, function.name) from error.__cause__
            finally:
                if worker.leave_seat(waiting, answered=answered) and not worker.gone:
                    self.begin(self._free_seats(worker))
                if worker.retiring:
                    self._retire(worker)
            self.completed += 1
            if type(result) is LazyPickle:
                result = read(result, function.name)
            if type(result) is Failed:
                raise _of_coroutine(result.error(), function.name)
            return result

    async def _free_seats(self, worker: RemoteWorker) -> None:
        with contextlib.suppress(ConnectionLost):
            await worker.free_seats()

    def add(self, source: Source) -> None:
        """Adds a source of chunks, or says that one has some again."""
        if self.ended is not None:
            source.fail(self.ended)
            return
        if source not in self._sources:
            self._sources.append(source)
        self.dispatch()

    def wanted(self, source: Submitted) -> None:
        """Says that a source has some: what comes in this turn of the loop is given to workers together."""
        if self._wanted is None:
            self._wanted = self.loop.call_soon(self._want)
        self._want_of[source] = None
        source.is_wanted = True

    def _want(self) -> None:
        self._wanted = None
        sources = list(self._want_of)
        self._want_of.clear()
        for source in sources:
            source.is_wanted = False
            if self._idle and not self._sources and (single := source.take_single()) is not None:
                future, args = single  # A call is quicker than a chunk, whose results are a stream.
                self.fulfil(future, source.function, args, {})
            else:
                self.add(source)

    def cancel_waiting(self) -> None:
        """Cancels what was submitted and not begun, also what workers have."""
        self._gives_up = True
        sources: set[Source] = {*self._sources, *self._want_of}
        for worker in self.workers:
            for slot, chunk in worker.chunks.items():
                if chunk is None or not isinstance(chunk.source, Submitted):
                    continue
                if (limit := worker.progress.take_back(slot, 0)) < chunk.limit:
                    chunk.source.split(chunk, limit)
                    sources.add(chunk.source)
        for source in sources:
            source.cancel()
        for turn in self._turns:
            turn.cancel()

    def remove(self, source: Source) -> None:
        """Nobody wants the results of a source any more: what runs of it is stopped."""
        if source in self._sources:
            self._sources.remove(source)
        for worker in self.workers:
            for slot, chunk in list(worker.chunks.items()):
                if chunk is not None and chunk.source is source:
                    chunk.limit = worker.progress.take_back(slot, 0)
                    if chunk.limit > len(chunk.results):
                        worker.ending.add(slot)
                        self.begin(self._interrupt_chunk(worker, slot, chunk))

    async def _interrupt_chunk(self, worker: RemoteWorker, slot: int, chunk: Chunk) -> None:
        if worker.chunks.get(slot) is not chunk:
            return
        worker.interrupt(slot)
        await asyncio.sleep(self.options.grace)
        if worker.chunks.get(slot) is chunk and not worker.gone:
            worker.kill(self._why)

    def dispatch(self) -> None:
        """Gives chunks to the workers that have room for one."""
        for worker, slot in self._seats():
            chunk = self._next()
            if chunk is None:
                break
            if chunk.deaths and worker.chunks:  # It is to be seen of what a worker dies.
                chunk.source.give_back(chunk)
                continue
            if not worker.chunks:
                self._idle.remove(worker)
            worker.open(slot, chunk)
            self._several += len(chunk.items) > 1
            self.begin(self._drive(worker, slot, chunk))
            self._watch_later()
        self._look_later()

    def _seats(self) -> Iterator[tuple[RemoteWorker, int]]:
        """Where a chunk may go: to workers that have nothing to do, and behind short chunks."""
        for worker in reversed(self._idle.copy()):
            yield worker, 0
        for worker in self.workers:
            if len(worker.chunks) == 1 and worker.takes_tasks:
                (slot, chunk), *_ = worker.chunks.items()
                if chunk is not None and not chunk.deaths and (chunk.source.function.seconds or LONG) < LONG:
                    yield worker, 1 - slot

    def _next(self) -> Chunk | None:
        """The next chunk: sources take turns."""
        for _ in range(len(self._sources)):
            source = self._sources[0]
            chunk = source.take()
            if chunk is not None:
                self._sources.rotate(-1)
                return chunk
            self._sources.popleft()  # It comes back when it has some.
        return None

    async def _drive(self, worker: RemoteWorker, slot: int, chunk: Chunk) -> None:
        """Has a worker run a chunk."""
        source, got = chunk.source, 0
        try:
            seconds: Any = None
            async for results in worker.perform(slot, chunk, self.shared):
                if got + len(results) > chunk.limit:
                    seconds, *more = results[chunk.limit - got :]
                    if more or type(seconds) is not float:
                        raise _LieError(f"has given more results than the {chunk.limit} that were wanted")
                    results = results[: chunk.limit - got]
                    if got + len(results):
                        source.function.took(seconds / (got + len(results)))
                got += len(results)
                self.completed += len(results)
                if results:
                    source.deliver(chunk, results)
            if seconds is None:
                raise _LieError(f"has ended {chunk.limit} tasks with {got} results")
        except ConnectionLost:
            await self._recover(worker, slot, chunk, got)
        except _LieError as lie:
            logger.error("worker %d (process %d) %s: it is killed", worker.number, worker.pid, lie)
            await self._recover(worker, slot, chunk, got)
        except Exception as error:  # Of one task: its arguments or its result cannot be sent.
            self._part(chunk, got, worker.progress.begun(slot), error)
        finally:
            self._several -= len(chunk.items) > 1
            self._left(worker, slot)

    async def _recover(self, worker: RemoteWorker, slot: int, chunk: Chunk, got: int) -> None:
        """A worker has died with a chunk: what it had not begun goes to others, and one task is in doubt."""
        begun = worker.progress.begun(slot)
        self._lost(worker)
        source = chunk.source
        if source.is_over or got >= chunk.limit:
            return
        if begun > got and chunk.retries >= self.options.retries:
            source.deliver(chunk, [Failed.of(await self._died(worker, source.function))])
            begun, got = got, got + 1
        if begun == got == 0 and not worker.killed and not worker.was_at_work:
            chunk.deaths += 1
        if chunk.deaths >= DEATHS:  # The arguments kill whoever reads them: those of one task.
            if chunk.limit == 1:
                source.deliver(chunk, [Failed.of(await self._died(worker, source.function, begun=False))])
            else:
                for part in (source.split(chunk, chunk.limit // 2), source.split(chunk, 0)):
                    part.deaths = DEATHS - 1
                self.add(source)
        elif got < chunk.limit and not source.is_over:
            rest = source.split(chunk, got)
            if begun > got:
                rest.retries = chunk.retries + 1
            elif not got:
                rest.deaths = chunk.deaths
            self.add(source)

    async def _died(self, worker: RemoteWorker, function: Function, *, begun: bool = True) -> Exception:
        """The error of the task with which a worker has died, the last one of several if it was not ``begun``."""
        if self.ended is not None:
            return self.ended
        await worker.settled(_DYING)
        who = f"worker {worker.number} (process {worker.pid})"
        if not begun:
            return WorkerDied(
                f"{who} {_how(worker)} before it began {function.name}(), as {DEATHS - 1} others did: do they die of "
                "its arguments?"
            )
        return WorkerDied(
            f"{who} {_how(worker)} while it ran {function.name}(): nobody knows how far it came; pool(retries=1) runs "
            "such a task once more"
        )

    def _part(self, chunk: Chunk, got: int, begun: int, error: Exception) -> None:
        source = chunk.source
        if begun > got or chunk.limit - got == 1:  # The task that was begun is not run again.
            source.deliver(chunk, [Failed.of(of_task(error, source.function.name))])
            if got + 1 < chunk.limit:
                source.split(chunk, got + 1)
                self.add(source)
        elif got < chunk.limit:
            middle = got + (chunk.limit - got) // 2
            source.split(chunk, middle)
            source.split(chunk, got)
            self.add(source)

    def _watch_later(self) -> None:
        """Looks in a while whether what workers were given has begun."""
        if self._watching is None:
            self._watching = self.loop.call_later(_WATCH, self._watch)

    def _watch(self) -> None:
        """Finds workers that stand still; what they and busy ones have not begun goes to those with nothing to do."""
        self._watching = None
        waiting = [worker for worker in self.workers if worker.stopped or worker.has_unbegun]
        if not waiting:
            return
        self._watch_later()
        for worker in waiting:
            if worker.stopped or self._idle:
                self._see(worker)
        for worker in waiting:
            if not self._idle:
                break
            if worker.stopped:
                self._take_all(worker)
            elif worker.chunks:
                worker.take_coroutines()

    def _see(self, worker: RemoteWorker) -> None:
        """Notes whether a worker stands still: it gets no tasks then."""
        was, worker.stopped = worker.stopped, worker.process.is_stopped()
        if worker.stopped and worker in self._idle:
            self._idle.remove(worker)
        elif was and not worker.stopped and not worker.chunks:
            self._free(worker)

    def _take_all(self, worker: RemoteWorker) -> None:
        """Takes back what a worker has not begun."""
        worker.take_coroutines()
        for slot, chunk in list(worker.chunks.items()):
            if chunk is None:
                worker.take_call(slot)
            elif (limit := worker.progress.take_back(slot, 0)) < chunk.limit:
                chunk.source.split(chunk, limit)
                self.add(chunk.source)

    def _look_later(self) -> None:
        """Looks after the chunks in a moment, if there is anything to look for."""
        waits_behind = self._idle and any(len(worker.chunks) > 1 for worker in self.workers)
        if self._look is None and (self._several or waits_behind):
            self._look = self.loop.call_later(_LOOK, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        if self._several:
            for worker in self.workers:
                if any(chunk is not None and len(chunk.items) > 1 for chunk in worker.chunks.values()):
                    worker.look()
        self._take_back()
        self._look_later()

    def _take_back(self) -> None:
        """Takes back what waits behind a slow task, while another worker has nothing to do."""
        waiting = [
            (chunk.limit - worker.progress.begun(slot), worker, slot, chunk)
            for worker in self.workers
            for slot, chunk in worker.chunks.items()
            # A chunk that is not begun waits behind another one, or is still on its way.
            if chunk is not None and (len(worker.chunks) > 1 or worker.progress.begun(slot))
        ]
        if not self._idle or not waiting:
            return
        left, worker, slot, chunk = max(waiting, key=lambda each: each[0])
        if left > 0:
            begun = worker.progress.begun(slot)
            # Behind another chunk all of it waits; else the half of what is left is fair.
            keep = begun + left // 2 if begun else 0
            limit = worker.progress.take_back(slot, keep)
            if limit < chunk.limit:
                chunk.source.split(chunk, limit)
                self.add(chunk.source)

    def _released(self, file: int) -> None:
        """Nobody has the values of a file any more. In any thread."""
        self._tell_later(lambda worker: worker.forget_file(file))

    def _dropped(self, function: int) -> None:
        """Nothing has a function any more. In any thread."""
        self._tell_later(lambda worker: worker.forget(function))

    def _tell_later(self, tell: Callable[[RemoteWorker], Coroutine[Any, Any, None]]) -> None:
        if self._made_by == os.getpid():
            with contextlib.suppress(RuntimeError):  # The loop has been closed since.
                self.loop.call_soon_threadsafe(self._tell, tell)

    def _tell(self, tell: Callable[[RemoteWorker], Coroutine[Any, Any, None]]) -> None:
        """Tells all workers something that no task waits for."""
        if self.ended is None:
            for worker in self.workers:
                self.begin(tell(worker))

    def _break(self, error: Exception) -> None:
        """Ends the pool: every task fails with this."""
        if self.ended is None:
            self.ended = error
        for turn in self._turns:
            if not turn.done():
                turn.set_exception(self.ended)
        self._turns.clear()
        sources = {*self._sources}
        for worker in self.workers:
            sources |= {chunk.source for chunk in worker.chunks.values() if chunk is not None}
        for source in sources:
            source.fail(self.ended)
        self._sources.clear()

    @property
    def is_busy(self) -> bool:
        """Whether there is something to do, or something is done."""
        if self._sources or self._turns or self._want_of or self._singles:
            return True
        return any(worker.chunks or worker.tasks_in_loop for worker in self.workers)

    async def close(self, *, is_patient: bool = False) -> None:
        """Ends all workers; tasks that are under way fail. ``is_patient``: the threads that tasks have left go on."""
        self._is_patient = is_patient
        self._break(LocalProtocolError("the pool is closed"))
        self._starter.stop()
        for timer in (self._look, self._watching):
            if timer is not None:
                timer.cancel()
        for worker in self.workers:
            self.loop.remove_reader(worker.process.pidfd)
            for slot in worker.chunks:
                worker.progress.take_back(slot, 0)
                worker.interrupt(slot)
            self._end(worker)
        self.shared.close()
        self.workers.clear()
        self._idle.clear()
        for task in [*self._running, *self._singles]:
            task.cancel()
        while left := self._running | self._singles | self._endings:
            await asyncio.wait(left)
        await asyncio.to_thread(self._starter.close)


def _of_coroutine(error: BaseException, name: str) -> BaseException:
    return StopIterationOfTaskError(error, name) if isinstance(error, StopIteration) else error


async def _undo(starting: asyncio.Future[WorkerProcess]) -> None:
    """Ends a process that nobody wants any more, once it is there."""
    try:
        process = await starting
    except OSError:
        return
    process.kill()
    await asyncio.to_thread(process.wait, _DYING)
    process.close()


def _how(worker: RemoteWorker) -> str:
    """How a worker has ended."""
    if worker.killed:
        return worker.killed
    status = worker.process.status()
    if status is None:
        if worker.process.has_ended():
            return "has ended, and how cannot be known: this process ignores SIGCHLD, or their template has died,"
        return "has closed its connection"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _of_initializer(error: BaseException) -> Exception:
    """What an initializer has raised, as what can end a pool: not SystemExit, which would end the program."""
    if isinstance(error, Exception):
        return error
    ended = LocalProtocolError(f"the initializer has ended with {error!r}")
    ended.__cause__ = error
    return ended


def _broken(error: Exception, worker: RemoteWorker | None) -> PoolBroken:
    number = descriptor_errno(error)
    what, why = (
        "could not begin; the last",
        str(error if number is None else no_descriptor_error(number, "for a worker")),
    )
    if worker is not None and isinstance(error, ConnectionLost):
        what, why = "died before they were ready; the last", _how(worker)
    broken = PoolBroken(
        f"the pool has given up: {DEATHS} workers, one after the other, {what}: {why}"
        if worker is not None
        else f"the pool has given up: no worker can be started: {why}"
    )
    broken.__cause__ = error
    return broken
