"""Our own two sides with the service that has arrays: NumPy stays out of the processes that have no use for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator

import shmrpc
from benchmark.large_work import service
from benchmark.processes import Rendezvous
from shmrpc.transport.connection_options import DEFAULT_SPIN


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    async with shmrpc.serve(service):
        yield


@contextlib.asynccontextmanager
async def _connect(place: Rendezvous, spin: float = DEFAULT_SPIN) -> AsyncIterator[shmrpc.Client]:
    async with shmrpc.connect(service.name, spin=spin) as client:
        yield client


connect, connect_spinning = _connect, functools.partial(_connect, spin=10_000)
