"""The results of a map as a thread reads them, from the pool's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from shmrpc.pools.pool import Pool
from shmrpc.pools.progress import Report
from shmrpc.pools.scheduling.chunks import Mapped
from shmrpc.pools.transfer.functions import Function

#: The mark behind the last result.
_END: Final = object()


class Results:
    """The results of a map, read from another thread."""

    def __init__(self, made: Pool, source: Mapped) -> None:
        self._pool, self.source = made, source

    async def read(self) -> list[Any] | None:
        """Wait for the next results, and return them; None after the last ones."""
        return await self.source.read()

    async def close(self) -> None:
        """Give up the tasks that have not begun."""
        self.source.close()
        self._pool._engine.remove(self.source)


class _Reporter:
    """The receiver of progress, which a reader of results may set."""

    #: Called with the number of tasks that have ended.
    report: Report | None = None

    def tell(self, ended: int) -> None:
        """Report the number of tasks that have ended, if a reader has asked for it."""
        if self.report is not None:
            self.report(ended)


class ResultsInLoop:
    """The results of a map of an async function, whose tasks are calls of their own. The first ones begin at once."""

    def __init__(self, made: Pool, known: Function, columns: Sequence[Iterable[Any]]) -> None:
        self.source = _Reporter()
        self._results = made._map_in_loop(known, columns, True, self.source.tell)
        self._next = self._begin_next()

    def _begin_next(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(anext(self._results, _END))

    async def read(self) -> list[Any] | None:
        """Wait for the next results, and return them; None after the last ones."""
        found = [await self._next]
        if found[0] is _END:
            return None
        self._next = self._begin_next()
        return found

    async def close(self) -> None:
        """Cancel the tasks that are under way."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._results.aclose()


async def begin_map(made: Pool, known: Function, columns: Sequence[Iterable[Any]]) -> Results | ResultsInLoop:
    """Begin a map in the pool's loop; return its results."""
    if known.is_async:
        return ResultsInLoop(made, known, columns)
    return Results(made, made._mapped(known, columns, ordered=True))
