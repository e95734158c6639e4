"""Chunks: tasks of one function that go to a worker together, and the sources that chunks come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from shmrpc.pools.transfer.functions import TaskFunction

#: Seconds of work that a chunk aims at: far more than sending it takes, and too short a time to wait for.
TARGET_CHUNK_SECONDS: Final = 500e-6
#: Maximum number of tasks in a chunk.
MAX_CHUNK_TASKS: Final = 4096
#: Seconds of a task beyond which no second chunk is queued behind it in its worker.
LONG_TASK_SECONDS: Final = 100e-6


class Chunk:
    """Tasks that go to one worker together, as the arguments of each."""

    __slots__ = ("delivered", "items", "limit", "next", "results", "retries", "source", "unbegun_deaths")

    def __init__(self, source: TaskSource, items: list[Any]) -> None:
        self.source, self.items = source, items
        #: Number of tasks that are still part of the chunk; later ones were taken back.
        self.limit = len(items)
        #: Results of the tasks so far, in order.
        self.results: list[Any] = []
        #: Number of results that their reader, or their futures, have.
        self.delivered = 0
        #: Number of workers that died within the first task of the chunk.
        self.retries = 0
        #: Number of workers that died before they began any task, with this chunk as the first one.
        self.unbegun_deaths = 0
        #: Following chunk, in a source that keeps the order of its chunks.
        self.next: Chunk | None = None


class TaskSource(ABC):
    """A source of chunks of one function. Chunks that were put back come before new ones."""

    def __init__(self, function: TaskFunction, *, single: bool) -> None:
        self.function = function
        #: True if an item is the only argument of a task, False if an item is a list of arguments.
        self.single = single
        self._returned: list[Chunk] = []

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk; return None if there is none at the moment."""
        if self._returned:
            return self._returned.pop()
        return self._make_chunk(self._chunk_size())

    def _chunk_size(self) -> int:
        """Return the number of tasks for a new chunk, from the average duration of a task; 1 before the first one."""
        seconds = self.function.seconds
        if seconds is None:
            return 1
        return max(1, min(MAX_CHUNK_TASKS, int(TARGET_CHUNK_SECONDS / max(seconds, 1e-9))))

    def split(self, chunk: Chunk, limit: int) -> Chunk:
        """End a chunk before task ``limit``, and put the rest back; return the rest as a chunk of its own.

        The caller has taken the tasks of the rest back from the worker. Dispatches nothing.
        """
        rest = Chunk(self, chunk.items[limit : chunk.limit])
        chunk.limit = limit
        self._insert_after(chunk, rest)
        self._returned.append(rest)
        return rest

    def put_back(self, chunk: Chunk) -> None:
        """Put back a chunk that no worker has got: it is the next one. Dispatches nothing."""
        self._returned.append(chunk)

    def cancel_unbegun(self) -> None:  # noqa: B027  A map has no futures.
        """Cancel the futures of tasks that have not begun. Does nothing here."""

    @abstractmethod
    def _insert_after(self, chunk: Chunk, rest: Chunk) -> None:
        """Insert the rest of a chunk behind the chunk."""

    @abstractmethod
    def _make_chunk(self, size: int) -> Chunk | None:
        """Make a chunk of at most ``size`` tasks; return None if no task is available."""

    @abstractmethod
    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Accept the results of the next tasks of a chunk, in order; a RemoteFailure is that of a failed task."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Fail all tasks without a result, because the pool has closed."""

    @property
    def is_abandoned(self) -> bool:
        """True if the results have no reader left."""
        return False
