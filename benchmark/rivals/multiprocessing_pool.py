"""multiprocessing.Pool. What all workers need is put into shared memory by hand, as its documentation advises."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import shared_memory
from multiprocessing.pool import Pool
from typing import Any, Final

from benchmark.pool_work import Pools, Team, pools
from benchmark.processes import Rendezvous

#: In a worker, what it has opened last.
_opened: Final[list[shared_memory.SharedMemory]] = []


class Shared:
    """An array in shared memory: calling it gives that."""

    def __init__(self, name: str, length: int, kind: str) -> None:
        self._name, self._length, self._kind = name, length, kind

    def __call__(self) -> Any:
        """Return the array, in whatever process this is."""
        import numpy as np  # Only arrays need it.

        memory = shared_memory.SharedMemory(self._name)
        _opened[:] = [memory]
        return np.ndarray((self._length,), self._kind, memory.buf)


class _Team:
    def __init__(self, pool: Pool, workers: int, *, whole: bool) -> None:
        self._pool, self._workers, self._whole = pool, workers, whole
        self._memory: shared_memory.SharedMemory | None = None

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.apply(function, args)

    def submit(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        results = [self._pool.apply_async(function, (item,)) for item in items]
        return [result.get() for result in results]

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return self._pool.map(function, items, -(-len(items) // self._workers) if self._whole else None)

    def share(self, value: Any) -> Shared:
        import numpy as np  # Only arrays need it.

        self.close()
        self._memory = shared_memory.SharedMemory(create=True, size=value.nbytes)
        np.ndarray(value.shape, value.dtype, self._memory.buf)[:] = value
        return Shared(self._memory.name, len(value), value.dtype.str)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory.unlink()
            self._memory = None


@contextlib.contextmanager
def _open(workers: int, *, whole: bool) -> Iterator[Team]:
    with multiprocessing.Pool(workers) as pool:
        team = _Team(pool, workers, whole=whole)
        try:
            yield team
        finally:
            team.close()


def connect(place: Rendezvous) -> AbstractContextManager[Pools]:
    """Open pools without tuning."""
    return pools(functools.partial(_open, whole=False))


def connect_whole(place: Rendezvous) -> AbstractContextManager[Pools]:
    """With one chunk for each worker."""
    return pools(functools.partial(_open, whole=True))
