"""The source of the tasks of a ``map()``, and the queue of their results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shmrpc.pools.scheduling.chunks import Chunk, TaskSource
from shmrpc.pools.transfer.functions import TaskFunction


class MapSource(TaskSource):
    """The tasks of a ``map()``. Items are taken from the iterables as long as there is room for their results.

    ``max_unread``: maximum number of chunks with results that are not read. ``on_room`` is called when the source may
    have a chunk again.
    """

    def __init__(
        self,
        function: TaskFunction,
        iterables: Sequence[Iterable[Any]],
        ordered: bool,
        max_unread: int,
        on_room: Callable[[], None],
    ) -> None:
        super().__init__(function, single=len(iterables) == 1)
        self._items: Iterator[Any] = iter(iterables[0]) if self.single else map(list, zip(*iterables, strict=False))
        self._ordered = ordered
        self._max_unread = max_unread
        self._on_room = on_room
        #: Called with the total number of tasks that have ended, each time that the reader reads.
        self.report: Callable[[int], object] | None = None
        self._ended = 0
        #: First and last chunk with results that are not read.
        self._head: Chunk | None = None
        self._tail: Chunk | None = None
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_exhausted = self._is_closed = False
        self._error: BaseException | None = None

    def _make_chunk(self, size: int) -> Chunk | None:
        """Take items from the iterables for a chunk; return None if there are none, or no room for results.

        An exception of an iterable ends the items; :meth:`read` raises the exception after the results.
        """
        if self._is_exhausted or self._unread >= self._max_unread:
            return None
        items: list[Any] = []
        try:
            items.extend(itertools.islice(self._items, size))  # extend() keeps the items before an exception.
        except BaseException as error:
            self._error = error
        if len(items) < size:
            self._is_exhausted = True
            self._wake_reader()
        if not items:
            return None
        chunk = Chunk(self, items)
        self._unread += 1
        if self._tail is None:
            self._head = chunk
        else:
            self._tail.next = chunk
        self._tail = chunk
        return chunk

    def _insert_after(self, chunk: Chunk, rest: Chunk) -> None:
        """Insert the rest of a chunk behind the chunk, as another chunk that is not read."""
        rest.next, chunk.next = chunk.next, rest
        self._unread += 1
        if self._tail is chunk:
            self._tail = rest

    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Keep the results until they are read."""
        chunk.results.extend(results)
        self._ended += len(results)
        self._wake_reader()

    def fail(self, error: BaseException) -> None:
        """Have the reader raise ``error``, unless an iterable has raised before."""
        if self._error is None:
            self._error = error
        self._is_exhausted = self._is_closed = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        """Wake the reader that waits for results."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_abandoned(self) -> bool:
        """True if the results have no reader left."""
        return self._is_closed

    def close(self) -> None:
        """Drop the chunks that were put back, and make no more: the results have no reader left."""
        self._is_closed = self._is_exhausted = True
        self._returned.clear()

    def _take_ready(self) -> list[Any]:
        """Remove and return the results that can be read now: if ordered, those before the first missing result."""
        ready: list[Any] = []
        previous: Chunk | None = None
        chunk = self._head
        while chunk is not None:
            ready += chunk.results
            chunk.delivered += len(chunk.results)
            chunk.results = []
            if chunk.delivered == chunk.limit:
                self._unread -= 1
                if previous is None:
                    self._head = chunk.next
                else:
                    previous.next = chunk.next
                if self._tail is chunk:
                    self._tail = previous
            elif self._ordered:
                break
            else:
                previous = chunk
            chunk = chunk.next
        return ready

    async def read(self) -> list[Any] | None:
        """Wait for the next results and return them; return None after the last ones, or after :meth:`close`.

        Only one reader at a time. A RemoteFailure is in the place of the result of a task that has failed. Raises what
        an iterable raised, or the error with which the pool has closed.
        """
        while not (ready := self._take_ready()):
            if self.report is not None:
                self.report(self._ended)
            if (self._head is None and self._is_exhausted) or self._is_closed:
                if self._error is not None:
                    raise self._error
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            self._on_room()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._is_exhausted:
            self._on_room()
        if self.report is not None:
            self.report(self._ended)
        return ready
