"""Our own two sides over NATS, and with shared memory and NATS to choose from."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import shmrpc
from benchmark import work
from benchmark.processes import Rendezvous

service = shmrpc.Service("benchmark.hosts")
service.endpoint(work.add)
service.endpoint(work.echo)


class _Client:
    """A client with the methods of a rival's; an array is sent as any other value."""

    def __init__(self, client: shmrpc.Client) -> None:
        self.add, self.array = client.add, client.echo


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    async with shmrpc.serve(service, at=place.shared):
        yield


@contextlib.asynccontextmanager
async def serve_both(place: Rendezvous) -> AsyncIterator[None]:
    """Yield a server that is met in shared memory and over NATS."""
    async with shmrpc.serve(service, at=["shm", place.shared]):
        yield


@contextlib.asynccontextmanager
async def _connect(at: Any) -> AsyncIterator[_Client]:
    async with shmrpc.connect(service.name, at=at) as client:
        yield _Client(client)


def connect(place: Rendezvous) -> Any:
    """Return a client over NATS."""
    return _connect(place.shared)


def connect_alone(place: Rendezvous) -> Any:
    """Return a client by shared memory, which knows of no other way."""
    return _connect("shm")


def connect_either(place: Rendezvous) -> Any:
    """Return a client that has both, and takes shared memory."""
    return _connect(["shm", place.shared])
