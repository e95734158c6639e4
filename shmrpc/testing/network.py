"""Services and clients in one event loop, without anything that another process could see."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Unpack

from shmrpc.client.aio.client import Client
from shmrpc.client.aio.client import connect as connect_to
from shmrpc.server.server import Server, serve
from shmrpc.service.service import Service
from shmrpc.testing.faults import Faults, FaultyMemoryTransport
from shmrpc.testing.options import NetworkConnectOptions, NetworkServeOptions
from shmrpc.transport.memory import MemoryRegistry, MemoryTransport
from shmrpc.wire.frames import DEFAULT_MAX_FRAME


class Network:
    """Where servers and clients of one event loop meet: :meth:`serve` and :meth:`connect` are shmrpc's own two.

    ::

        network = shmrpc.testing.Network()
        async with network.serve(orders, stock, max_in_flight=1), network.connect("orders") as client:
            ...

    It is what ``at="memory://"`` is for :func:`shmrpc.serve` and :func:`shmrpc.connect`, with names of its own.
    """

    def __init__(self) -> None:
        self._host = MemoryRegistry()

    def _find(self) -> MemoryRegistry:
        return self._host

    def serve(self, *services: Service, **options: Unpack[NetworkServeOptions]) -> Server:
        """Serves in this network: ``async with network.serve(calculator): ...``. Options: see :func:`shmrpc.serve`."""
        return serve(*services, at=MemoryTransport(self._find), **options)

    def connect(
        self, service: str | Service, *, faults: Faults | None = None, **options: Unpack[NetworkConnectOptions]
    ) -> Client:
        """A client of a service of this network. ``faults`` come between it and the server.

        Options: see :func:`shmrpc.connect`.
        """
        at = MemoryTransport(self._find) if faults is None else FaultyMemoryTransport(self._find, faults)
        return connect_to(service, at=at, **options)


@contextlib.asynccontextmanager
async def connect(
    service: Service, *, faults: Faults | None = None, **options: Unpack[NetworkConnectOptions]
) -> AsyncIterator[Client]:
    """A client of a service that is served meanwhile, in this loop.

    ``async with shmrpc.testing.connect(calculator) as client: ...``

    It is a real client of a real server, lifespan and all; only the way between them is within this process.
    The options are those of :func:`shmrpc.connect`, and ``faults``; the server has the same ``codec`` and
    ``max_frame``. For more clients, or options of the server's, see :class:`Network`.
    """
    if not isinstance(service, Service):
        raise TypeError(f"connect() of shmrpc.testing expected a shmrpc.Service to serve, got {service!r}")
    network = Network()
    client = network.connect(service, faults=faults, **options)
    codec, max_frame = options.get("codec", "msgspec"), options.get("max_frame", DEFAULT_MAX_FRAME)
    async with network.serve(service, codec=codec, max_frame=max_frame), client:
        yield client
