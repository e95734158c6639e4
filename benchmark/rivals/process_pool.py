"""ProcessPoolExecutor through the loop: a pool of one process, which the client starts itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor

from benchmark.processes import Place, prepare
from benchmark.rivals.executor import ExecutorClient


def _begin(place: Place) -> None:
    prepare(place, None)
    if len(os.sched_getaffinity(0)) == 1:
        # The client is pinned; the process that works for it shall not be so to the same CPU.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


@contextlib.asynccontextmanager
async def connect(place: Place) -> AsyncIterator[ExecutorClient]:
    """A client."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin, initargs=(place,)) as pool:
        yield ExecutorClient(pool)
