"""mpire's WorkerPool, whose workers are kept alive between calls: one for single tasks, and one for maps.

With one for both, a map after a single task fails: its workers take each item for the arguments of such a task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmark.pool_work import ArgumentTeam, Pools, Team, pools
from benchmark.processes import Rendezvous


class _Team(ArgumentTeam):
    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._single, self._mapping = self._made(), self._made()

    def _made(self) -> Any:
        from mpire import WorkerPool

        return WorkerPool(self._workers, keep_alive=True)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._single.apply(function, args)

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        results = [self._single.apply_async(function, (item,)) for item in items]
        return [result.get() for result in results]

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        return self._mapping.map(function, [(item,) for item in items], concatenate_numpy_output=False)

    def renew(self) -> None:
        self.close()
        self._single, self._mapping = self._made(), self._made()

    def close(self) -> None:
        self._single.terminate()
        self._mapping.terminate()


@contextlib.contextmanager
def _open(workers: int) -> Iterator[Team]:
    team = _Team(workers)
    try:
        yield team
    finally:
        team.close()


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Return a client."""
    return pools(_open)
