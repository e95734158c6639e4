"""The idle workers of a pool, and the calls and task sources that wait for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from shmrpc.errors import ConnectionLost
from shmrpc.pools.scheduling.chunks import TaskSource
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.remote_worker import RemoteWorker
from shmrpc.pools.scheduling.worker_set import WorkerSet


class Scheduler:
    """The idle workers of a pool, and what waits for them: single calls first, then chunks.

    ``dispatch`` is called when chunks wait and a worker has a free slot.
    """

    def __init__(self, lifecycle: PoolLifecycle, workers: WorkerSet, dispatch: Callable[[], None]) -> None:
        self._lifecycle, self._workers, self._dispatch = lifecycle, workers, dispatch
        #: Workers without tasks, the most recently busy one last: its caches are warm.
        self.idle: list[RemoteWorker] = []
        #: Single calls that wait for a worker.
        self.waiters: deque[asyncio.Future[RemoteWorker]] = deque()
        #: Task sources that may have chunks.
        self.sources: deque[TaskSource] = deque()
        #: True once calls that wait for a worker are cancelled.
        self._is_cancelling = False

    def mark_idle(self, worker: RemoteWorker) -> None:
        """Give a worker without tasks to the first waiting call, or else add it to the idle ones and dispatch chunks.

        Retires the worker instead if that is due. Ignores stopped workers.
        """
        if worker.is_gone or worker.is_stopped or self._workers.retire_if_due(worker):
            return
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                worker.slots[0] = None
                waiter.set_result(worker)
                return
        self.idle.append(worker)
        if self.sources:
            self._dispatch()

    def remove(self, worker: RemoteWorker) -> None:
        """Remove a worker from the idle ones, if it is one of them."""
        if worker in self.idle:
            self.idle.remove(worker)

    async def wait_for_worker(self) -> RemoteWorker:
        """Wait for an idle worker; return it with its first slot reserved, which the caller releases.

        Call this while the pool is open. Raises the error with which the pool closes, and CancelledError after
        :meth:`cancel_waiters`.
        """
        if self._is_cancelling:
            raise asyncio.CancelledError
        waiter: asyncio.Future[RemoteWorker] = self._lifecycle.loop.create_future()
        self.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release_slot(waiter.result(), 0)
            raise

    def release_slot(self, worker: RemoteWorker, slot: int) -> None:
        """Free a slot whose task or chunk has ended, and give the worker the next work.

        The slot may be free already, but the worker must not be among the idle ones.
        """
        worker.slots.pop(slot, None)
        worker.stopping_slots.discard(slot)
        if not worker.slots:
            self.mark_idle(worker)
        elif self.sources:
            self._dispatch()

    def release_slot_after_ping(self, worker: RemoteWorker, slot: int) -> None:
        """Free a slot in the background, once the worker has seen that its task was taken back."""
        self._lifecycle.start(self._release_after_ping(worker, slot))

    async def _release_after_ping(self, worker: RemoteWorker, slot: int) -> None:
        """Free a slot once the worker has answered a ping, or has died."""
        try:
            with contextlib.suppress(ConnectionLost):
                await worker.ping()
        finally:
            self.release_slot(worker, slot)

    def stop_task(self, worker: RemoteWorker, slot: int) -> None:
        """Stop the task in a slot in the background: take it back, else interrupt it, else kill its worker.

        The worker is killed after the grace period. The slot is freed at the end.
        """
        worker.stopping_slots.add(slot)
        self._lifecycle.start(self._stop_task(worker, slot))

    async def _stop_task(self, worker: RemoteWorker, slot: int) -> None:
        """Take back or interrupt the task in a slot; kill its worker after the grace period; free the slot."""
        try:
            if worker.is_gone:
                return
            worker.progress.shorten(slot, 0)
            try:
                async with asyncio.timeout(self._workers.options.grace):
                    worker.interrupt(slot)
                    await worker.ping()
            except TimeoutError:
                self.kill_stuck(worker)
            except ConnectionLost:
                pass
        finally:
            self.release_slot(worker, slot)

    def kill_stuck(self, worker: RemoteWorker) -> None:
        """Kill a worker whose task did not end within the grace period."""
        grace = self._workers.options.grace
        worker.kill(f"was killed by its pool, because a cancelled task had not ended within {grace:g} s,")

    def cancel_waiters(self) -> None:
        """Cancel the calls that wait for a worker, now and from now on."""
        self._is_cancelling = True
        for waiter in self.waiters:
            waiter.cancel()

    def fail(self, error: Exception) -> None:
        """Fail the calls that wait for a worker, and all task sources that have chunks, here or in a worker."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()
        sources = {*self.sources}
        for worker in self._workers.workers:
            sources |= {chunk.source for chunk in worker.slots.values() if chunk is not None}
        for source in sources:
            source.fail(error)
        self.sources.clear()
