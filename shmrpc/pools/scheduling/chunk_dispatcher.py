"""The dispatch of chunks to workers, and the recovery of the tasks of a chunk that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from shmrpc.errors import ConnectionLost
from shmrpc.pools.scheduling.call_runner import CallRunner
from shmrpc.pools.scheduling.chunks import LONG_TASK_SECONDS, Chunk, TaskSource
from shmrpc.pools.scheduling.exit_errors import MAX_WORKER_DEATHS
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.remote_worker import RemoteWorker
from shmrpc.pools.scheduling.scheduler import Scheduler
from shmrpc.pools.scheduling.stealing import WorkStealer
from shmrpc.pools.scheduling.submit_source import SubmitSource
from shmrpc.pools.scheduling.worker_set import WorkerSet
from shmrpc.pools.transfer.remote_failure import RemoteFailure, name_task_in_error
from shmrpc.pools.transfer.shared_values import SharedValues

logger = logging.getLogger("shmrpc.pool")


class _CorruptProgressError(Exception):
    """Error for a worker whose results contradict the memory that it shares with its pool: the memory is corrupt."""


class ChunkDispatcher:
    """The dispatcher of chunks: hands them to workers, delivers results, and recovers the tasks of workers that die."""

    def __init__(
        self,
        lifecycle: PoolLifecycle,
        workers: WorkerSet,
        scheduler: Scheduler,
        stealer: WorkStealer,
        calls: CallRunner,
        shared: SharedValues,
        retries: int,
    ) -> None:
        self._lifecycle, self._workers, self._scheduler, self._stealer = lifecycle, workers, scheduler, stealer
        self._calls, self._shared, self._retries = calls, shared, retries
        self._sources = scheduler.sources
        #: Sources that got tasks in this iteration of the event loop, in order.
        self.pending_sources: dict[SubmitSource, None] = {}
        self._dispatch_handle: asyncio.Handle | None = None
        #: Number of tasks of chunks whose results, or whose exceptions, workers have sent.
        self.completed = 0

    def add(self, source: TaskSource) -> None:
        """Add a source that has chunks, and dispatch them; fail the source if the pool has closed."""
        if self._lifecycle.closed_error is not None:
            source.fail(self._lifecycle.closed_error)
            return
        if source not in self._sources:
            self._sources.append(source)
        self.dispatch()

    def schedule_dispatch(self, source: SubmitSource) -> None:
        """Dispatch the tasks that a source gets in this iteration of the event loop, all together, in the next one."""
        if self._dispatch_handle is None:
            self._dispatch_handle = self._lifecycle.loop.call_soon(self._dispatch_pending)
        self.pending_sources[source] = None
        source.is_pending = True

    def _dispatch_pending(self) -> None:
        """Dispatch the tasks of the pending sources; run a task that is alone as a call."""
        self._dispatch_handle = None
        sources = list(self.pending_sources)
        self.pending_sources.clear()
        for source in sources:
            source.is_pending = False
            if self._scheduler.idle and not self._sources and (single := source.take_only_task()) is not None:
                future, args = single  # A call is faster than a chunk, whose results are a stream.
                self._calls.run_submitted(future, source.function, args, {})
            else:
                self.add(source)

    def dispatch(self) -> None:
        """Give chunks to the workers that have a free slot."""
        for worker, slot in self._free_slots():
            chunk = self._next_chunk()
            if chunk is None:
                break
            if chunk.unbegun_deaths and worker.slots:  # Such a chunk runs alone, to show what the worker dies of.
                chunk.source.put_back(chunk)
                continue
            if not worker.slots:
                self._scheduler.idle.remove(worker)
            worker.open_slot(slot, chunk)
            self._stealer.chunk_started(chunk)
            self._lifecycle.start(self._run_chunk(worker, slot, chunk))
        self._stealer.rebalance_later()

    def _free_slots(self) -> Iterator[tuple[RemoteWorker, int]]:
        """Yield the slots that a chunk may take: of idle workers, then of workers with one short chunk."""
        for worker in reversed(self._scheduler.idle.copy()):
            yield worker, 0
        for worker in self._workers.workers:
            if len(worker.slots) == 1 and worker.accepts_tasks:
                (slot, chunk), *_ = worker.slots.items()
                if chunk is None or chunk.unbegun_deaths:
                    continue
                if (chunk.source.function.seconds or LONG_TASK_SECONDS) < LONG_TASK_SECONDS:
                    yield worker, 1 - slot

    def _next_chunk(self) -> Chunk | None:
        """Return the next chunk, in turn from each source; return None if no source has one."""
        for _ in range(len(self._sources)):
            source = self._sources[0]
            chunk = source.next_chunk()
            if chunk is not None:
                self._sources.rotate(-1)
                return chunk
            self._sources.popleft()  # The source is added again when it has chunks.
        return None

    async def _run_chunk(self, worker: RemoteWorker, slot: int, chunk: Chunk) -> None:
        """Have a worker run a chunk; deliver the results to its source; recover the tasks if the worker fails."""
        source, received = chunk.source, 0
        try:
            seconds: Any = None
            async for results in worker.run_chunk(slot, chunk, self._shared):
                if received + len(results) > chunk.limit:
                    seconds, *surplus = results[chunk.limit - received :]
                    if surplus or type(seconds) is not float:
                        raise _CorruptProgressError(f"has sent more than {chunk.limit} results for {chunk.limit} tasks")
                    del results[chunk.limit - received :]
                    if received + len(results):
                        source.function.record_duration(seconds / (received + len(results)))
                received += len(results)
                self.completed += len(results)
                if results:
                    source.deliver(chunk, results)
                results.clear()  # The generators refer to the list until the next results arrive.
            if seconds is None:
                raise _CorruptProgressError(f"has sent {received} results for {chunk.limit} tasks")
        except ConnectionLost:
            await self._recover(worker, slot, chunk, received)
        except _CorruptProgressError as error:
            logger.error("worker %d (process %d) %s: killing it", worker.number, worker.pid, error)
            await self._recover(worker, slot, chunk, received)
        except Exception as error:  # The arguments or the result of one task cannot be sent.
            self._isolate_error(chunk, received, worker.progress.count_begun(slot), error)
        finally:
            self._stealer.chunk_ended(chunk)
            self._scheduler.release_slot(worker, slot)

    async def _recover(self, worker: RemoteWorker, slot: int, chunk: Chunk, received: int) -> None:
        """Replace a worker that has died with a chunk; requeue the tasks that have not begun.

        The task that had begun runs again as often as ``retries`` allows, and fails otherwise. A chunk with which
        MAX_WORKER_DEATHS workers have died before they began any task is requeued in halves; its only task fails.
        """
        begun = worker.progress.count_begun(slot)
        self._workers.replace(worker)
        source = chunk.source
        if source.is_abandoned or received >= chunk.limit:
            return
        if begun > received and chunk.retries >= self._retries:
            error = await self._workers.death_error(worker, source.function)
            source.deliver(chunk, [RemoteFailure.from_exception(error)])
            begun, received = received, received + 1
        if begun == received == 0 and not worker.kill_reason and not worker.was_at_work:
            chunk.unbegun_deaths += 1
        if chunk.unbegun_deaths >= MAX_WORKER_DEATHS:  # The arguments of one task kill the workers that read them.
            if chunk.limit == 1:
                error = await self._workers.death_error(worker, source.function, begun=False)
                source.deliver(chunk, [RemoteFailure.from_exception(error)])
            else:
                for part in (source.split(chunk, chunk.limit // 2), source.split(chunk, 0)):
                    part.unbegun_deaths = MAX_WORKER_DEATHS - 1
                self.add(source)
        elif received < chunk.limit and not source.is_abandoned:
            rest = source.split(chunk, received)
            if begun > received:
                rest.retries = chunk.retries + 1
            elif not received:
                rest.unbegun_deaths = chunk.unbegun_deaths
            self.add(source)

    def _isolate_error(self, chunk: Chunk, received: int, begun: int, error: Exception) -> None:
        """Fail the task of a chunk that caused an error; requeue the others.

        If the task is not known, requeue the chunk in two halves, until the error comes from a chunk of one task.
        """
        source = chunk.source
        if begun > received or chunk.limit - received == 1:  # A task that has begun does not run again.
            source.deliver(chunk, [RemoteFailure.from_exception(name_task_in_error(error, source.function.name))])
            if received + 1 < chunk.limit:
                source.split(chunk, received + 1)
                self.add(source)
        elif received < chunk.limit:
            middle = received + (chunk.limit - received) // 2
            source.split(chunk, middle)
            source.split(chunk, received)
            self.add(source)

    def cancel_submitted(self) -> None:
        """Cancel the submitted tasks of chunks that have not begun, including those that workers have."""
        sources: set[TaskSource] = {*self._sources, *self.pending_sources}
        for worker in self._workers.workers:
            for slot, chunk in worker.slots.items():
                if chunk is None or not isinstance(chunk.source, SubmitSource):
                    continue
                if (limit := worker.progress.shorten(slot, 0)) < chunk.limit:
                    chunk.source.split(chunk, limit)
                    sources.add(chunk.source)
        for source in sources:
            source.cancel_unbegun()

    def remove(self, source: TaskSource) -> None:
        """Remove a source whose results have no reader left, and stop its tasks in the background.

        Takes back those that have not begun. A worker whose task lives on after the grace period is killed.
        """
        if source in self._sources:
            self._sources.remove(source)
        for worker in self._workers.workers:
            for slot, chunk in list(worker.slots.items()):
                if chunk is not None and chunk.source is source:
                    chunk.limit = worker.progress.shorten(slot, 0)
                    if chunk.limit > len(chunk.results):
                        worker.stopping_slots.add(slot)
                        self._lifecycle.start(self._stop_chunk(worker, slot, chunk))

    async def _stop_chunk(self, worker: RemoteWorker, slot: int, chunk: Chunk) -> None:
        """Interrupt the task of a chunk; kill the worker if the chunk has not ended after the grace period."""
        if worker.slots.get(slot) is not chunk:
            return
        worker.interrupt(slot)
        await asyncio.sleep(self._workers.options.grace)
        if worker.slots.get(slot) is chunk and not worker.is_gone:
            self._scheduler.kill_stuck(worker)
