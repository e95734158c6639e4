"""The source of tasks that were submitted one by one."""

from __future__ import annotations

from collections import deque
from typing import Any

from shmrpc.pools.scheduling.chunks import Chunk, TaskSource
from shmrpc.pools.task_future import TaskFuture, cancel_running, mark_running, set_results
from shmrpc.pools.transfer.functions import TaskFunction


class SubmitSource(TaskSource):
    """Tasks that were submitted one by one, each with a future."""

    def __init__(self, function: TaskFunction, *, single: bool) -> None:
        super().__init__(function, single=single)
        #: Tasks that are in no chunk: the future, and the only argument or a list of the arguments.
        self.waiting: deque[tuple[TaskFuture[Any], Any]] = deque()
        self._futures: dict[Chunk, list[TaskFuture[Any]]] = {}
        #: True if the dispatcher reads the source in this iteration of the event loop.
        self.is_pending = False

    def take_only_task(self) -> tuple[TaskFuture[Any], tuple[Any, ...]] | None:
        """Remove the only waiting task; return its future, which is not marked as running, and its arguments.

        Return None if several tasks wait, or none, or if a chunk was put back.
        """
        if len(self.waiting) != 1 or self._returned:
            return None
        future, item = self.waiting.popleft()
        return future, (item,) if self.single else tuple(item)

    def cancel_unbegun(self) -> None:
        """Cancel the futures of tasks that have not begun, including those of chunks that were put back."""
        for future, _ in self.waiting:
            future.cancel()
        for chunk in self._returned:
            cancel_running(self._futures.pop(chunk))
        self._returned.clear()

    def _make_chunk(self, size: int) -> Chunk | None:
        """Make a chunk of at most ``size`` waiting tasks, and mark them as running; return None if there are none.

        Drops cancelled tasks.
        """
        waiting = self.waiting
        running: list[tuple[TaskFuture[Any], Any]] = []
        while waiting and not running:
            running = mark_running([waiting.popleft() for _ in range(min(size, len(waiting)))])
        if not running:
            return None
        futures, items = map(list, zip(*running, strict=True))
        chunk = Chunk(self, items)
        self._futures[chunk] = futures
        return chunk

    def _insert_after(self, chunk: Chunk, rest: Chunk) -> None:
        """Move the futures of the later tasks of a chunk to its rest."""
        futures = self._futures[chunk]
        self._futures[chunk], self._futures[rest] = futures[: chunk.limit], futures[chunk.limit :]
        self._forget_if_delivered(chunk)

    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Set the results of the next futures of a chunk."""
        futures = self._futures[chunk]
        set_results(futures[chunk.delivered :] if chunk.delivered else futures, results)
        chunk.delivered += len(results)
        self._forget_if_delivered(chunk)

    def _forget_if_delivered(self, chunk: Chunk) -> None:
        """Drop the futures of a chunk once all have their results."""
        if chunk.delivered == chunk.limit:
            del self._futures[chunk]

    def fail(self, error: BaseException) -> None:
        """Fail the futures of all tasks without a result, waiting and in chunks, and forget them."""
        waiting = [future for future, _ in self.waiting]
        self.waiting.clear()
        running = [future for chunk, futures in self._futures.items() for future in futures[chunk.delivered :]]
        self._futures.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        for future in running:
            future.set_exception(error)
