"""Tasks of one function, in chunks: where they come from, and where their results go."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from shmrpc.pools.task_future import TaskFuture, begin, settle, withdraw
from shmrpc.pools.transfer.functions import Function

#: The work that a chunk is to be, in seconds: far more than it takes to send it, and no time to wait for.
WORK: Final = 500e-6
#: Tasks of a chunk at most.
MOST: Final = 4096
#: Seconds of a task beyond which a worker has no second chunk waiting.
LONG: Final = 100e-6


class Chunk:
    """Tasks that one worker is given at once: the arguments of each."""

    __slots__ = ("deaths", "items", "limit", "next", "read", "results", "retries", "source")

    def __init__(self, source: Source, items: list[Any]) -> None:
        self.source, self.items = source, items
        #: Before which task it ends, since others were taken back.
        self.limit = len(items)
        #: What has come of them, in order.
        self.results: list[Any] = []
        #: How many results were read.
        self.read = 0
        #: How often a worker has died within its first task.
        self.retries = 0
        #: How often one has died that had begun nothing, this first of all.
        self.deaths = 0
        #: The chunk behind it, for a source that keeps their order.
        self.next: Chunk | None = None


class Source(ABC):
    """Where chunks come from. Those that were given back come again, before all others."""

    def __init__(self, function: Function, *, single: bool) -> None:
        self.function = function
        #: Whether an item is a task's only argument, and not its arguments.
        self.single = single
        self._returned: list[Chunk] = []

    def take(self) -> Chunk | None:
        """The next chunk; None if there is none at the moment."""
        if self._returned:
            return self._returned.pop()
        return self._take(self._size())

    def _size(self) -> int:
        seconds = self.function.seconds
        if seconds is None:
            return 1
        return max(1, min(MOST, int(WORK / max(seconds, 1e-9))))

    def split(self, chunk: Chunk, limit: int) -> Chunk:
        """Ends a chunk before a task; those from there on are given back, as the chunk that is returned."""
        rest = Chunk(self, chunk.items[limit : chunk.limit])
        chunk.limit = limit
        self._link(chunk, rest)
        self._returned.append(rest)
        return rest

    def give_back(self, chunk: Chunk) -> None:
        """Takes back a chunk that no worker has got."""
        self._returned.append(chunk)

    def cancel(self) -> None:  # noqa: B027  A map has none of these.
        """Cancels the tasks of it that have a future, and were not begun."""

    @abstractmethod
    def _link(self, chunk: Chunk, rest: Chunk) -> None:
        """Puts what was split off behind the rest of its chunk."""

    @abstractmethod
    def _take(self, size: int) -> Chunk | None: ...

    @abstractmethod
    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Takes the results of its next tasks."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Nothing more will come: the pool has ended."""

    @property
    def is_over(self) -> bool:
        """Whether nobody wants its results any more."""
        return False


class Submitted(Source):
    """Tasks that were submitted one by one, with a future for each."""

    def __init__(self, function: Function, *, single: bool) -> None:
        super().__init__(function, single=single)
        #: Tasks that were not begun: the future of each, and its only argument, or a list of them.
        self.waiting: deque[tuple[TaskFuture[Any], Any]] = deque()
        self._futures: dict[Chunk, list[TaskFuture[Any]]] = {}
        #: Whether the engine will look at it in this turn of the loop.
        self.is_wanted = False

    def take_single(self) -> tuple[TaskFuture[Any], tuple[Any, ...]] | None:
        """The future and the arguments of its task, if it has one and no more."""
        if len(self.waiting) != 1 or self._returned:
            return None
        future, item = self.waiting.popleft()
        return future, (item,) if self.single else tuple(item)

    def cancel(self) -> None:
        """Cancels those that were not begun, also of chunks that were given back."""
        for future, _ in self.waiting:
            future.cancel()
        for chunk in self._returned:
            withdraw(self._futures.pop(chunk))
        self._returned.clear()

    def _take(self, size: int) -> Chunk | None:
        waiting = self.waiting
        begun: list[tuple[TaskFuture[Any], Any]] = []
        while waiting and not begun:
            begun = begin([waiting.popleft() for _ in range(min(size, len(waiting)))])
        if not begun:
            return None
        futures, items = map(list, zip(*begun, strict=True))
        chunk = Chunk(self, items)
        self._futures[chunk] = futures
        return chunk

    def _link(self, chunk: Chunk, rest: Chunk) -> None:
        futures = self._futures[chunk]
        self._futures[chunk], self._futures[rest] = futures[: chunk.limit], futures[chunk.limit :]
        self._forget(chunk)

    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Gives each future its result."""
        futures = self._futures[chunk]
        settle(futures[chunk.read :] if chunk.read else futures, results)
        chunk.read += len(results)
        self._forget(chunk)

    def _forget(self, chunk: Chunk) -> None:
        """Forgets the futures of a chunk once all have their results."""
        if chunk.read == chunk.limit:
            del self._futures[chunk]

    def fail(self, error: BaseException) -> None:
        """Every future ends."""
        waiting = [future for future, _ in self.waiting]
        self.waiting.clear()
        given = [future for chunk, futures in self._futures.items() for future in futures[chunk.read :]]
        self._futures.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        for future in given:
            future.set_exception(error)


class Mapped(Source):
    """The tasks of a ``map()``: taken from the iterables as there is room for their results."""

    def __init__(
        self,
        function: Function,
        iterables: Sequence[Iterable[Any]],
        ordered: bool,
        room: int,
        wanted: Callable[[], None],
    ) -> None:
        super().__init__(function, single=len(iterables) == 1)
        self._items: Iterator[Any] = iter(iterables[0]) if self.single else map(list, zip(*iterables, strict=False))
        self._ordered = ordered
        #: Chunks whose results are not read, at most.
        self._room = room
        self._wanted = wanted
        #: Is told how many tasks have ended.
        self.report: Callable[[int], object] | None = None
        self._ended = 0
        self._head: Chunk | None = None
        self._tail: Chunk | None = None
        self._unread = 0
        self._ready: list[list[Any]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._exhausted = self._closed = False
        self._error: BaseException | None = None

    def _take(self, size: int) -> Chunk | None:
        if self._exhausted or self._unread >= self._room:
            return None
        items: list[Any] = []
        try:
            items.extend(itertools.islice(self._items, size))  # Which has those before an error, too.
        except BaseException as error:
            self._error = error
        if len(items) < size:
            self._exhausted = True
            self._wake()
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

    def _link(self, chunk: Chunk, rest: Chunk) -> None:
        rest.next, chunk.next = chunk.next, rest
        self._unread += 1
        if self._tail is chunk:
            self._tail = rest

    def deliver(self, chunk: Chunk, results: list[Any]) -> None:
        """Keeps the results until they are read."""
        chunk.results.extend(results)
        self._ended += len(results)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Whoever reads is told."""
        if self._error is None:
            self._error = error
        self._exhausted = self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_over(self) -> bool:
        """Whether the reader has gone."""
        return self._closed

    def close(self) -> None:
        """The reader has gone."""
        self._closed = self._exhausted = True
        self._returned.clear()

    def _next(self) -> list[Any]:
        """The results that can be read now, and forgets them."""
        ready: list[Any] = []
        before: Chunk | None = None
        chunk = self._head
        while chunk is not None:
            ready += chunk.results
            chunk.read += len(chunk.results)
            chunk.results = []
            if chunk.read == chunk.limit:
                self._unread -= 1
                if before is None:
                    self._head = chunk.next
                else:
                    before.next = chunk.next
                if self._tail is chunk:
                    self._tail = before
            elif self._ordered:
                break
            else:
                before = chunk
            chunk = chunk.next
        return ready

    async def read(self) -> list[Any] | None:
        """The next results, some at a time; None at the end. Raises what the iterables raised."""
        while not (ready := self._next()):
            if self.report is not None:
                self.report(self._ended)
            if (self._head is None and self._exhausted) or self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            self._wanted()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._exhausted:
            self._wanted()
        if self.report is not None:
            self.report(self._ended)
        return ready
