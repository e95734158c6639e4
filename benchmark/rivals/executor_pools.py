"""Executors of the standard library and of loky, as pools. One that a dead worker has broken is made anew."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager

from benchmark.pool_work import ExecutorTeam, Pools, Team, pools
from benchmark.processes import Rendezvous

#: Number of chunks of a worker's share in the map of an executor that is tuned: as many as Pool makes.
_CHUNKS = 4


@contextlib.contextmanager
def _open(make: Callable[[int], Executor], chunks: int | None, workers: int) -> Iterator[Team]:
    team = ExecutorTeam(functools.partial(make, workers), workers, chunks)
    try:
        yield team
    finally:
        team.close()


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """ProcessPoolExecutor, without anything tuned."""
    return pools(functools.partial(_open, ProcessPoolExecutor, None))


def connect_chunks(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Return the same with a size of chunks."""
    return pools(functools.partial(_open, ProcessPoolExecutor, _CHUNKS))


def connect_loky(place: Rendezvous) -> AbstractContextManager[Pools]:
    """loky's, which is there again when it is asked for after it was broken."""
    import loky

    return pools(functools.partial(_open, loky.get_reusable_executor, None))
