"""The results of a map in a pool's event loop, for a reader in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from shmrpc.pools.pool import Pool
from shmrpc.pools.progress import ReportEnded
from shmrpc.pools.scheduling.map_source import MapSource
from shmrpc.pools.transfer.functions import TaskFunction

#: Marker behind the last result.
_END: Final = object()


class MapResults:
    """The results of a map. Its methods run in the pool's loop."""

    def __init__(self, pool: Pool, source: MapSource) -> None:
        self._pool, self.source = pool, source

    async def read(self) -> list[Any] | None:
        """Wait for the next results and return them; return None after the last ones. Raises as MapSource does.

        A result may be a RemoteFailure, which the reader raises.
        """
        return await self.source.read()

    async def close(self) -> None:
        """Drop the tasks that have not begun, and stop the others, without a wait. Idempotent."""
        self.source.close()
        self._pool._engine.dispatcher.remove(self.source)


class _ProgressReporter:
    """The place where a reader of results sets the function that receives the progress."""

    #: Called with the number of tasks that have ended.
    report: ReportEnded | None = None

    def report_if_set(self, ended: int) -> None:
        """Report the number of tasks that have ended, if a reader has asked for it."""
        if self.report is not None:
            self.report(ended)


class AsyncMapResults:
    """The results of a map of an async function, whose tasks are calls of their own. The first ones begin at once.

    Its methods run in the pool's loop.
    """

    def __init__(self, pool: Pool, known: TaskFunction, columns: Sequence[Iterable[Any]]) -> None:
        self.source = _ProgressReporter()
        self._results = pool._map_async(known, columns, True, self.source.report_if_set)
        self._next = self._request_next()

    def _request_next(self) -> asyncio.Future[Any]:
        """Return a future of the next result, which is ``_END`` after the last one."""
        return asyncio.ensure_future(anext(self._results, _END))

    async def read(self) -> list[Any] | None:
        """Wait for the next result and return it in a list; return None after the last one.

        Raises what the next task raises, which ends the map.
        """
        results = [await self._next]
        if results[0] is _END:
            return None
        self._next = self._request_next()
        return results

    async def close(self) -> None:
        """Cancel the running tasks, and wait for their end. Idempotent."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._results.aclose()


async def start_map(pool: Pool, known: TaskFunction, columns: Sequence[Iterable[Any]]) -> MapResults | AsyncMapResults:
    """Start a map in the pool's loop, where this must run; return its results. Reading raises if the pool is closed."""
    if known.is_async:
        return AsyncMapResults(pool, known, columns)
    return MapResults(pool, pool._start_map(known, columns, ordered=True))
