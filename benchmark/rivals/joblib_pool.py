"""joblib's Parallel, kept open between calls. It puts large arrays into files that workers map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmark.pool_work import ArgumentTeam, Pools, Team, pools
from benchmark.processes import Rendezvous


class _Team(ArgumentTeam):
    def __init__(self, parallel: Any, delayed: Any) -> None:
        self._parallel, self._delayed = parallel, delayed

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._parallel([self._delayed(function)(*args)])[0]

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        raise NotImplementedError("joblib takes all tasks at once")

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        return self._parallel(self._delayed(function)(item) for item in items)


@contextlib.contextmanager
def _open(workers: int) -> Iterator[Team]:
    from joblib import Parallel, delayed

    with Parallel(n_jobs=workers) as parallel:
        yield _Team(parallel, delayed)


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Return a client."""
    return pools(_open)
