"""The workers of a pool: their start, their replacement, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from shmrpc.errors import ConnectionLost, EncodeError
from shmrpc.pools.processes.spawned_process import SpawnedProcess
from shmrpc.pools.processes.spawner import Spawner, SpawnSettings
from shmrpc.pools.scheduling.exit_errors import (
    MAX_WORKER_DEATHS,
    describe_exit,
    initializer_error,
    pool_broken_error,
    worker_died_error,
)
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.remote_worker import RemoteWorker
from shmrpc.pools.transfer.functions import FunctionRegistry, TaskFunction, make_reference
from shmrpc.pools.transfer.log_forwarding import current_levels
from shmrpc.pools.transfer.remote_failure import RemoteFailure

logger = logging.getLogger("shmrpc.pool")

#: Seconds to wait for the exit status of a worker whose connection has ended.
_EXIT_STATUS_SECONDS: Final = 1.0
_STARTING: Final = "shmrpc-worker-starting"


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """Options of a pool that concern its workers."""

    settings: SpawnSettings
    initializer: Callable[..., Any] | None
    initargs: tuple[Any, ...]
    #: Seconds that a cancelled task, and a worker that shuts down, have to end.
    grace: float
    #: Number of tasks after which a worker is replaced.
    max_tasks_per_child: int | None


class WorkerSet:
    """The workers of a pool. A worker that ends is replaced as long as its number is below ``size``.

    ``on_ready`` is called with a worker that can take tasks, ``on_removed`` with a worker that no longer can.
    """

    def __init__(
        self,
        size: int,
        options: WorkerOptions,
        lifecycle: PoolLifecycle,
        functions: FunctionRegistry,
        *,
        on_ready: Callable[[RemoteWorker], None],
        on_removed: Callable[[RemoteWorker], None],
    ) -> None:
        self.size, self.options = size, options
        self._lifecycle, self._functions = lifecycle, functions
        self._on_ready, self._on_removed = on_ready, on_removed
        self._owner_pid = os.getpid()
        self._spawner = Spawner(options.settings)
        #: Workers that are ready.
        self.workers: list[RemoteWorker] = []
        #: Numbers of the workers that are starting or ready.
        self._numbers: set[int] = set()
        #: Number of workers in a row that died before they were ready.
        self._failed_starts = 0
        #: True if workers may finish what their tasks have left behind before they end.
        self.is_patient = True
        #: Number of workers that took the place of others.
        self.replaced = 0

    async def start(self) -> None:
        """Start the workers, and wait until all are ready, or the pool has broken, which the caller checks."""
        lifecycle = self._lifecycle
        self.resize(self.size)
        await asyncio.wait([task for task in lifecycle.background if task.get_name() == _STARTING])
        while not self.workers and lifecycle.closed_error is None:
            await asyncio.wait(lifecycle.background)

    def resize(self, size: int) -> None:
        """Change the number of workers in the background. Surplus workers end after their present tasks."""
        self.size = size
        for number in range(size):
            if number not in self._numbers:
                self._lifecycle.start(self._start_worker(number), _STARTING)
                self._numbers.add(number)
        for worker in list(self.workers):
            if worker.number >= size:
                self.retire(worker)

    async def _start_worker(self, number: int) -> None:
        """Start a worker; try again if that fails, as long as the pool is open and wants the worker.

        Breaks the pool after MAX_WORKER_DEATHS failures in a row, of any workers; at once if no process can be started,
        or if the initializer's arguments cannot be sent.
        """
        while self._is_wanted(number):
            worker: RemoteWorker | None = None
            try:
                worker = await self._spawn(number)
                await worker.connect()
                failure = await self._initialize(worker)
                if type(failure) is RemoteFailure:
                    raise initializer_error(failure.to_exception())
            except asyncio.CancelledError:
                if worker is not None:
                    self._shut_down(worker)
                raise
            except EncodeError as error:  # No other worker would get the initializer's arguments.
                if worker is not None:
                    await asyncio.shield(self._shut_down(worker))
                self._lifecycle.fail(error)
                return
            except Exception as error:
                if worker is not None:
                    if isinstance(error, ConnectionLost):
                        await worker.wait_for_exit(_EXIT_STATUS_SECONDS)
                    await asyncio.shield(self._shut_down(worker))
                self._failed_starts += 1
                if self._failed_starts >= MAX_WORKER_DEATHS or (isinstance(error, OSError) and worker is None):
                    self._lifecycle.fail(pool_broken_error(error, worker))
                continue
            self._failed_starts = 0
            if not self._is_wanted(number):
                await worker.shut_down(self.options.grace)
                break
            self.workers.append(worker)
            self._lifecycle.loop.add_reader(worker.process.pidfd, self.replace, worker)
            self._on_ready(worker)
            return
        self._numbers.discard(number)

    def _is_wanted(self, number: int) -> bool:
        """Return True if the pool is open and has a worker with this number."""
        return self._lifecycle.closed_error is None and number < self.size

    async def _initialize(self, worker: RemoteWorker) -> Any:
        """Have a worker import the program and call the initializer; return None, or a RemoteFailure.

        Raises EncodeError if the initializer or its arguments cannot be sent, ConnectionLost if the worker dies.
        """
        names = await worker.import_program()
        if type(names) is RemoteFailure:
            return names
        functions = self._functions
        if not functions.program_names:
            functions.program_names = frozenset(names)
        initializer = self.options.initializer
        reference = None if initializer is None else make_reference(initializer, functions.by_value_pickler)
        return await worker.initialize(reference, self.options.initargs, current_levels())

    async def _spawn(self, number: int) -> RemoteWorker:
        """Start a process in a thread, and return its worker.

        Raises OSError. If that happens after the start of the process, or if cancelled, kills it in the background.
        """
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawner.spawn, number))
        try:
            return RemoteWorker(number, await asyncio.shield(spawning))
        except BaseException:
            self._lifecycle.start_shutdown(_discard(spawning))
            raise

    def _shut_down(self, worker: RemoteWorker) -> asyncio.Task[None]:
        """Mark a worker as gone, and shut it down in the background; return the asyncio task that does so."""
        worker.is_gone = True
        return self._lifecycle.start_shutdown(worker.shut_down(self.options.grace, lambda: self.is_patient))

    def replace(self, worker: RemoteWorker) -> None:
        """Remove a worker that has died or retired, and start another one in its place. Idempotent.

        Kills the process, unless the worker has retired.
        """
        if worker.is_gone:
            return
        worker.was_at_work = any(map(worker.progress.count_begun, worker.slots))
        self._lifecycle.loop.remove_reader(worker.process.pidfd)
        self.workers.remove(worker)
        self._on_removed(worker)
        if not worker.is_retiring:
            worker.process.kill()
        self._lifecycle.start(self._start_replacement(worker, self._shut_down(worker)))

    async def _start_replacement(self, worker: RemoteWorker, shutdown: asyncio.Task[None]) -> None:
        """Wait for the end of a worker, then start another one with its number, if the pool still has it.

        The wait for a retired worker ends after the grace period.
        """
        # Threads that the tasks of a retired worker have left may run for long.
        await asyncio.wait([shutdown], timeout=self.options.grace if worker.is_retiring else None)
        if not worker.is_retiring:
            await worker.wait_for_exit(_EXIT_STATUS_SECONDS)
            logger.warning("worker %d (process %d) %s", worker.number, worker.pid, describe_exit(worker))
        if self._is_wanted(worker.number):
            self.replaced += 1
            await self._start_worker(worker.number)
        else:
            self._numbers.discard(worker.number)

    def retire(self, worker: RemoteWorker) -> None:
        """Give a worker no more tasks, and replace it once it has finished its present ones."""
        worker.is_retiring = True
        self._on_removed(worker)
        if not worker.is_busy and not worker.is_gone:
            self.replace(worker)

    def retire_if_due(self, worker: RemoteWorker) -> bool:
        """Retire a worker if it is retiring or was given its maximum number of tasks; return True if so."""
        maximum = self.options.max_tasks_per_child
        if worker.is_retiring or (maximum is not None and worker.task_count >= maximum):
            self.retire(worker)
            return True
        return False

    async def death_error(self, worker: RemoteWorker, function: TaskFunction, *, begun: bool = True) -> Exception:
        """Return the error of a task with which a worker has died, or the error with which the pool has closed.

        Waits at most a second for the exit status. ``begun``: False if several workers died before they began the task.
        """
        if self._lifecycle.closed_error is not None:
            return self._lifecycle.closed_error
        await worker.wait_for_exit(_EXIT_STATUS_SECONDS)
        return worker_died_error(worker, function.name, begun=begun)

    def broadcast_soon(self, notify: Callable[[RemoteWorker], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine for each worker in the pool's loop, without waiting for it. Safe in any thread.

        Does nothing in a forked child, and once the pool or its loop has closed.
        """
        if self._owner_pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # The loop has been closed.
                self._lifecycle.loop.call_soon_threadsafe(self._broadcast, notify)

    def _broadcast(self, notify: Callable[[RemoteWorker], Coroutine[Any, Any, None]]) -> None:
        """Start the coroutine of :meth:`broadcast_soon` for each worker, while the pool is open."""
        if self._lifecycle.closed_error is None:
            for worker in self.workers:
                self._lifecycle.start(notify(worker))

    def stop_spawning(self) -> None:
        """Start no more processes."""
        self._spawner.stop()

    def shut_down_all(self) -> None:
        """Interrupt the tasks of all workers, and shut the workers down in the background."""
        for worker in self.workers:
            self._lifecycle.loop.remove_reader(worker.process.pidfd)
            for slot in worker.slots:
                worker.progress.shorten(slot, 0)
                worker.interrupt(slot)
            self._shut_down(worker)
        self.workers.clear()

    async def close_spawner(self) -> None:
        """End the fork server, and wait for its end. Call this once all workers have ended."""
        await asyncio.to_thread(self._spawner.close)


async def _discard(spawning: asyncio.Future[SpawnedProcess]) -> None:
    """Wait for a process that is starting, and kill it. Does nothing if the start has failed."""
    try:
        process = await spawning
    except Exception:
        return
    process.kill()
    await asyncio.to_thread(process.wait, _EXIT_STATUS_SECONDS)
    process.close()
