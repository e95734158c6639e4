"""ProcessPoolExecutor through the loop: a pool of one process, which the client starts itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor

from benchmark.processes import Rendezvous, prepare
from benchmark.rivals.executor import ExecutorClient


def _begin(place: Rendezvous) -> None:
    prepare(place, None)
    if len(os.sched_getaffinity(0)) == 1:
        # The client is pinned; the process that works for it shall not be so to the same CPU.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[ExecutorClient]:
    """Yield a client."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin, initargs=(place,)) as pool:
        yield ExecutorClient(pool)
