"""pebble's ProcessPool. It replaces a worker that dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmark.pool_work import ArgumentTeam, Pools, Team, pools
from benchmark.processes import Rendezvous


class _Team(ArgumentTeam):
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.schedule(function, args).result()

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        futures = [self._pool.schedule(function, (item,)) for item in items]
        return [future.result() for future in futures]

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(function, items).result())


@contextlib.contextmanager
def _open(workers: int) -> Iterator[Team]:
    from pebble import ProcessPool

    pool = ProcessPool(workers)
    try:
        yield _Team(pool)
    finally:
        pool.stop()
        pool.join()


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Return a client."""
    return pools(_open)
