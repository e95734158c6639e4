"""Our own two sides, as a rival's are written."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import shmrpc
from benchmark import work
from benchmark.processes import Rendezvous
from benchmark.work import MessageTally

service = shmrpc.Service("benchmark")
_taken = MessageTally()

service.endpoint(work.add)
service.endpoint(work.echo)
service.endpoint(work.count)
service.endpoint(_taken.taken)


@service.endpoint
def take(message: bytes) -> None:
    """Receive a copy of a message."""
    _taken.take(message)


@service.endpoint
def look(message: memoryview) -> None:
    """Read a message in place."""
    _taken.take(message)


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    async with shmrpc.serve(service):
        yield


class _Client:
    """A client that can do all that is asked of one."""

    def __init__(self, client: shmrpc.Client) -> None:
        self.client = client
        # The names that a user's program has, without a wrapper that costs time.
        self.add, self.echo, self.count = client.add, client.echo, client.count

    async def bulk(self, data: bytes, messages: int, endpoint: str = "take") -> None:
        """One-way calls, and one that is answered."""
        notify = self.client.notify
        # Bytes arrive as bytes, which is a copy; a view arrives as one.
        message = memoryview(data) if endpoint == "look" else data
        for _ in range(messages):
            await notify(endpoint, message)
        assert await self.client.taken() == [messages, messages * data[-1]]


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[_Client]:
    """Yield a client with a loop."""
    async with shmrpc.connect("benchmark") as client:
        yield _Client(client)


@contextlib.contextmanager
def connect_sync(place: Rendezvous) -> Iterator[Any]:
    """Yield a client without."""
    with shmrpc.sync.connect("benchmark") as client:
        yield client
