"""Memory of a million ints: in a store, and in Python."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import shmrpc
from benchmark.processes import Caller
from benchmark.questions.store_memory import LIST
from benchmark.results import Result

_COUNT: Final = 1_000_000
#: Ints that Python has once.
_SMALL: Final = 200


def _made(kind: str) -> Any:
    values = [number % _SMALL for number in range(_COUNT)]
    return values if kind == LIST else dict(enumerate(values))


def shared(caller: Caller, *, kind: str, seconds: float = 0.0) -> Result:
    """Measure the growth of a store by a million ints."""
    start = time.perf_counter()
    with shmrpc.sync.store("million", "256MiB") as store:
        before = store.stats()
        store["them"] = made = _made(kind)
        after = store.stats()
        if store["them"].copy() != made:
            raise ValueError("the store has other values")
    used = (after.memory - after.free) - (before.memory - before.free)
    return Result(_COUNT, time.perf_counter() - start, extra={"MB": used / 1e6})


def plain(caller: Caller, *, kind: str, seconds: float = 0.0) -> Result:
    """Measure the growth of a Python process by a million ints."""
    start, made = time.perf_counter(), _made(kind)
    used = sys.getsizeof(made) + (0 if kind == LIST else sum(map(sys.getsizeof, made)))
    return Result(_COUNT, time.perf_counter() - start, extra={"MB": used / 1e6})
