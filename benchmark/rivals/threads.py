"""ThreadPoolExecutor through the loop: the same functions in another thread of the same process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from benchmark.processes import Rendezvous
from benchmark.rivals.executor import ExecutorClient


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[ExecutorClient]:
    """Yield a client. One thread, as there is one server process elsewhere."""
    with ThreadPoolExecutor(1) as pool:
        yield ExecutorClient(pool)
