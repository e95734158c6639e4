"""Has tiles painted by a pool, and knows what that costs: how busy the workers are, and what the way to them takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

import shmrpc
from examples.fractals.sets import Pixels, Tile, paint

#: Seconds that a report on the workers covers.
WINDOW: Final = 5.0
_TICK: Final = 0.001  # Seconds.


class Painted(NamedTuple):
    """A tile that a worker has painted, and when it did so, by the clock that all processes of a host share."""

    pixels: Pixels
    pid: int
    began: float
    ended: float


def paint_here(tile: Tile) -> Painted:
    """Paints a tile in this process, which is a worker's."""
    began = time.monotonic()
    pixels = paint(tile)
    return Painted(pixels, os.getpid(), began, time.monotonic())


class Work(NamedTuple):
    """A tile's time in a worker, and on its way there and back, in seconds; when it came back."""

    pid: int
    painting: float
    transport: float
    at: float


class Report(msgspec.Struct):
    """A report on the recent work of the workers."""

    #: By process id: the share of the time in which each has painted, 0 to 1.
    workers: dict[int, float]
    tiles_per_second: float
    #: Of the time for which tiles had a worker, the share in which they were on their way.
    transport: float


class Painter:
    """Paints tiles by a pool, and measures it."""

    def __init__(self, pool: shmrpc.Pool) -> None:
        self.pool = pool
        self._began = time.monotonic()
        self._recent: deque[Work] = deque()
        #: When each worker has ended its last tile.
        self._ended: dict[int, float] = {}

    async def paint(self, tile: Tile) -> Pixels:
        """Return the colours of a tile, as :func:`sets.paint` does. Cancelling the task ends the work."""
        asked = time.monotonic()
        painted = Painted(*await self.pool.run(paint_here, tile))
        self.note(asked, painted)
        return painted.pixels

    def note(self, asked: float, painted: Painted) -> None:
        """Record a tile that was requested at ``asked``."""
        now = time.monotonic()
        # While its worker painted another tile, this one waited for it, and not for its transport.
        free = max(asked, self._ended.get(painted.pid, 0.0))
        transport = max(0.0, painted.began - free) + now - painted.ended
        self._ended[painted.pid] = painted.ended
        self._recent.append(Work(painted.pid, painted.ended - painted.began, transport, now))
        while now - self._recent[0].at > WINDOW:
            self._recent.popleft()

    def report(self) -> Report:
        """Return a report on the last :data:`WINDOW` seconds."""
        now = time.monotonic()
        seconds = min(WINDOW, now - self._began)
        recent = [work for work in self._recent if now - work.at <= seconds]
        painting, transport = sum(work.painting for work in recent), sum(work.transport for work in recent)
        workers = dict.fromkeys(self.workers(), 0.0)
        for work in recent:
            if work.pid in workers:
                workers[work.pid] += work.painting / seconds
        return Report(
            {pid: min(load, 1.0) for pid, load in workers.items()},
            len(recent) / seconds,
            transport / (painting + transport) if recent else 0.0,
        )

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.pid for worker in self.pool.stats().workers]


class Ticker:
    """Wakes every millisecond, and knows how late it was: what the work for the pool takes from a loop."""

    def __init__(self) -> None:
        self._late: list[float] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ticks meanwhile."""
        task = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(_TICK)
            self._late.append(time.monotonic() - began)

    @property
    def p99(self) -> float:
        """The time between two ticks that one in a hundred exceeds, in seconds."""
        return sorted(self._late)[len(self._late) * 99 // 100] if self._late else 0.0
