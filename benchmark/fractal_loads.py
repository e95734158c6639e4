"""Loads for the questions of fractals: the example's painter, and its own measurements."""

from __future__ import annotations

import time
from typing import Any

from benchmark.pool_work import Pools
from benchmark.processes import Caller
from benchmark.results import Result
from shmrpc.pools.processes.cpus import usable_cpus

#: Names of the extra figures.
CPUS, TRANSPORT, TICKER = "share of the CPUs", "share that is transport", "ticker p99, ms"
#: Where the tiles lie: at the edge of the set, where they take some milliseconds.
_ZOOM, _COLUMN, _ROW = 6, 14, 30


def paint(caller: Caller, *, seconds: float, tiles: int) -> Result:
    """Paints the tiles."""
    from examples.fractals.painter import Painted, Painter, Ticker, paint_here  # They need NumPy.
    from examples.fractals.sets import Tile

    wanted = [Tile(_ZOOM, _COLUMN + number % 4, _ROW + number // 4 % 4) for number in range(tiles)]

    async def load(team: Any) -> Result:
        pool, ticker = team.pool, Ticker()
        painter, painting, began = Painter(pool), 0.0, time.monotonic()
        async with ticker.running():
            async for each in pool.map(paint_here, wanted, ordered=False):
                done = Painted(*each)
                painter.note(began, done)
                painting += done.ended - done.began
        took = time.monotonic() - began
        share = painting / took / usable_cpus()
        extra = {CPUS: share, TRANSPORT: painter.report().transport, TICKER: ticker.p99 * 1e3}
        return Result(tiles, took, extra=extra)

    pools: Pools = caller.client
    return pools.do(usable_cpus(), load)
