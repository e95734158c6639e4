"""Work stealing: idle workers get the tasks that busy and stopped workers have not begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shmrpc.pools.scheduling.chunks import Chunk, TaskSource
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.remote_worker import RemoteWorker
from shmrpc.pools.scheduling.scheduler import Scheduler
from shmrpc.pools.scheduling.worker_set import WorkerSet

#: Seconds between two polls for results that caused no wake-up, and for tasks that wait behind a slow one.
_REBALANCE_INTERVAL: Final = 1e-3
#: Seconds between two checks for stopped workers, and for tasks that busy workers have not begun.
CHECK_INTERVAL: Final = 20e-3


class WorkStealer:
    """Two timers that take tasks back from workers, for idle ones.

    The check runs as long as workers have tasks that they have not begun, the rebalancing as long as chunks of several
    tasks run. ``requeue`` is called with a source into which chunks were put back.
    """

    def __init__(
        self,
        lifecycle: PoolLifecycle,
        workers: WorkerSet,
        scheduler: Scheduler,
        requeue: Callable[[TaskSource], None],
    ) -> None:
        self._lifecycle, self._workers, self._scheduler, self._requeue = lifecycle, workers, scheduler, requeue
        self.check_timer: asyncio.TimerHandle | None = None
        self._rebalance_timer: asyncio.TimerHandle | None = None
        #: Number of chunks of several tasks that workers have.
        self._batch_chunks = 0

    def stop(self) -> None:
        """Stop the timers for good."""
        for timer in (self._rebalance_timer, self.check_timer):
            if timer is not None:
                timer.cancel()

    def chunk_started(self, chunk: Chunk) -> None:
        """Count a chunk that a worker has got, if it has several tasks, and start the check."""
        self._batch_chunks += len(chunk.items) > 1
        self.check_later()

    def chunk_ended(self, chunk: Chunk) -> None:
        """Discount a chunk that a worker no longer has, if it was made of several tasks."""
        self._batch_chunks -= len(chunk.items) > 1

    def check_later(self) -> None:
        """Start the timer of the check, unless it runs."""
        if self.check_timer is None:
            self.check_timer = self._lifecycle.loop.call_later(CHECK_INTERVAL, self._check_workers)

    def _check_workers(self) -> None:
        """Check the workers that are stopped or have tasks not begun; repeat the check later if there are any.

        While a worker is idle, find newly stopped workers, and take back all tasks that a stopped worker has not begun,
        and the coroutines that a busy worker has not begun.
        """
        self.check_timer = None
        waiting = [worker for worker in self._workers.workers if worker.is_stopped or worker.has_unbegun()]
        if not waiting:
            return
        self.check_later()
        idle = self._scheduler.idle
        for worker in waiting:
            if worker.is_stopped or idle:
                self._update_stopped(worker)
        for worker in waiting:
            if not idle:
                break
            if worker.is_stopped:
                self._reclaim_tasks(worker)
            elif worker.slots:
                worker.coroutines.preempt_unbegun()

    def _update_stopped(self, worker: RemoteWorker) -> None:
        """Record whether a signal has stopped the worker, which then gets no tasks, or has let the worker go on."""
        was_stopped, worker.is_stopped = worker.is_stopped, worker.process.is_stopped()
        if worker.is_stopped:
            self._scheduler.remove(worker)
        elif was_stopped and not worker.slots:
            self._scheduler.mark_idle(worker)

    def _reclaim_tasks(self, worker: RemoteWorker) -> None:
        """Take back all tasks that a worker has not begun, and requeue them."""
        worker.coroutines.preempt_unbegun()
        for slot, chunk in list(worker.slots.items()):
            if chunk is None:
                worker.preempt_call(slot)
            elif (limit := worker.progress.shorten(slot, 0)) < chunk.limit:
                chunk.source.split(chunk, limit)
                self._requeue(chunk.source)

    def rebalance_later(self) -> None:
        """Start the timer of the rebalancing, unless it runs or no worker has tasks to steal."""
        if self._rebalance_timer is None and (self._batch_chunks or self._has_queued_chunk()):
            self._rebalance_timer = self._lifecycle.loop.call_later(_REBALANCE_INTERVAL, self._rebalance)

    def _has_queued_chunk(self) -> bool:
        """Return True if a chunk is queued behind another one while a worker is idle."""
        return bool(self._scheduler.idle) and any(len(worker.slots) > 1 for worker in self._workers.workers)

    def _rebalance(self) -> None:
        """Receive results that caused no wake-up, and steal tasks; repeat later if tasks may be stolen then."""
        self._rebalance_timer = None
        if self._batch_chunks:
            for worker in self._workers.workers:
                if any(chunk is not None and len(chunk.items) > 1 for chunk in worker.slots.values()):
                    worker.receive_results()
        self.steal_tasks()
        self.rebalance_later()

    def steal_tasks(self) -> None:
        """If a worker is idle, requeue tasks of the chunk with the most tasks that have not begun.

        Takes half of these tasks, or all of a chunk that waits behind another one.
        """
        candidates = [
            (chunk.limit - worker.progress.count_begun(slot), worker, slot, chunk)
            for worker in self._workers.workers
            for slot, chunk in worker.slots.items()
            # A chunk that has not begun waits behind another one, or is still on its way.
            if chunk is not None and (len(worker.slots) > 1 or worker.progress.count_begun(slot))
        ]
        if not self._scheduler.idle or not candidates:
            return
        unbegun, worker, slot, chunk = max(candidates, key=lambda each: each[0])
        if unbegun > 0:
            begun = worker.progress.count_begun(slot)
            # A chunk behind another one waits as a whole; of a chunk that runs, the worker keeps one half.
            keep = begun + unbegun // 2 if begun else 0
            limit = worker.progress.shorten(slot, keep)
            if limit < chunk.limit:
                chunk.source.split(chunk, limit)
                self._requeue(chunk.source)
