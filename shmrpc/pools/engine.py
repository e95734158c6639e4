"""The engine of a pool: it wires the parts of :mod:`shmrpc.pools.scheduling`, and opens and closes them.

A task on its way through a pool::

    run()             submit()              map()
      |                   |                   |
      |              SubmitSource         MapSource     task sources: tasks of one function, as chunks
      |       alone    |      |               |
      |    +-----------+      |   +-----------+
      v    v                  v   v
    CallRunner            ChunkDispatcher               single calls; chunks of many tasks
      |    ^                |   ^
      |    |   idle worker  |   |
      |    +--- Scheduler --|---+                       idle workers, and what waits for one
      |          ^     ^    |
      |          |     |    |
      |   WorkerSet  WorkStealer                        starts, replaces and ends workers; takes tasks that have
      |          |          |                           not begun back from busy workers, and requeues them
      v          v          v
    RemoteWorker, one for each worker: two slots for chunks or a call, and seats for coroutines
      |      ^      |
      |      |      +-- Progress: shared memory in which both sides record which tasks begin or are taken back
      |      |
    --|------|------------------------------------------- the connection to the worker process
      v      |
    TaskRunner: calls the function, and returns its result or a RemoteFailure

The tasks of a worker that dies are recovered by the part that sent them, CallRunner or ChunkDispatcher. PoolLifecycle
holds the error of a closed pool, and the asyncio tasks that end with the pool. A part calls only the parts that it was
given; calls in the other direction are callbacks that PoolEngine passes to the constructors.
"""

from __future__ import annotations

import dataclasses

from shmrpc.errors import LocalProtocolError
from shmrpc.pools.scheduling.call_runner import CallRunner
from shmrpc.pools.scheduling.chunk_dispatcher import ChunkDispatcher
from shmrpc.pools.scheduling.chunks import TaskSource
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.scheduler import Scheduler
from shmrpc.pools.scheduling.stealing import WorkStealer
from shmrpc.pools.scheduling.worker_set import WorkerOptions, WorkerSet
from shmrpc.pools.transfer.functions import FunctionRegistry
from shmrpc.pools.transfer.shared_values import SharedValues


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """Options of a pool, checked."""

    workers: WorkerOptions
    #: Number of times that a task runs again after its worker has died.
    retries: int


class PoolEngine:
    """The parts of a pool, in one event loop."""

    def __init__(self, size: int, options: EngineOptions) -> None:
        self.lifecycle = PoolLifecycle(self._on_fail)
        self.functions = FunctionRegistry(self._on_function_dropped)
        #: Values in memory that all workers share.
        self.shared = SharedValues(self._on_file_released)
        self.workers = WorkerSet(
            size,
            options.workers,
            self.lifecycle,
            self.functions,
            on_ready=lambda worker: self.scheduler.mark_idle(worker),
            on_removed=lambda worker: self.scheduler.remove(worker),
        )
        self.scheduler = Scheduler(self.lifecycle, self.workers, lambda: self.dispatcher.dispatch())
        self._stealer = WorkStealer(self.lifecycle, self.workers, self.scheduler, self._requeue)
        self.calls = CallRunner(
            self.lifecycle,
            self.workers,
            self.scheduler,
            self._stealer,
            self.functions,
            self.shared,
            options.retries,
        )
        self.dispatcher = ChunkDispatcher(
            self.lifecycle,
            self.workers,
            self.scheduler,
            self._stealer,
            self.calls,
            self.shared,
            options.retries,
        )

    def _requeue(self, source: TaskSource) -> None:
        """Dispatch the chunks that were put back into a source."""
        self.dispatcher.add(source)

    def _on_fail(self, error: Exception) -> None:
        """Fail the calls that wait for a worker, and all tasks of chunks, because the pool has broken or closed."""
        self.scheduler.fail(error)

    def _on_function_dropped(self, number: int) -> None:
        """Have the workers forget a function that nothing refers to. Runs in any thread."""
        self.workers.broadcast_soon(lambda worker: worker.forget_function(number))

    def _on_file_released(self, inode: int) -> None:
        """Have the workers forget a file of shared values. Runs in any thread."""
        self.workers.broadcast_soon(lambda worker: worker.forget_file(inode))

    async def open(self) -> None:
        """Start the workers, and wait until all are ready. Closes the engine if that fails.

        Raises PoolBroken if workers cannot start, with what the initializer raised as its cause; EncodeError for
        arguments of the initializer that cannot be sent; LocalProtocolError if no loop of asyncio runs.
        """
        self.lifecycle.open()
        try:
            await self.workers.start()
        except BaseException:
            await self.close()
            raise
        if (error := self.lifecycle.closed_error) is not None:
            await self.close()
            raise error

    @property
    def is_busy(self) -> bool:
        """True if tasks wait or run."""
        if self.scheduler.sources or self.scheduler.waiters or self.dispatcher.pending_sources or self.lifecycle.calls:
            return True
        return any(worker.is_busy for worker in self.workers.workers)

    @property
    def completed(self) -> int:
        """Number of tasks whose result, or whose exception, a worker has sent."""
        return self.calls.completed + self.dispatcher.completed

    def cancel_waiting(self) -> None:
        """Cancel the calls that wait for a worker, now and from now on, and the submitted tasks of chunks not begun.

        Tasks of maps, and single calls that a worker has, go on.
        """
        self.dispatcher.cancel_submitted()
        self.scheduler.cancel_waiters()

    async def close(self, *, is_patient: bool = False) -> None:
        """End all workers, and wait for their end; tasks that wait or run fail with LocalProtocolError. Idempotent.

        ``is_patient``: wait for the threads and children that tasks have left in the workers.
        """
        self.workers.is_patient = is_patient
        self.lifecycle.fail(LocalProtocolError("the pool is closed"))
        self.workers.stop_spawning()
        self._stealer.stop()
        self.workers.shut_down_all()
        self.shared.close()
        self.scheduler.idle.clear()
        await self.lifecycle.stop()
        await self.workers.close_spawner()
