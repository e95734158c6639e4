"""Services and clients in one event loop, invisible to other processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Unpack

from shmrpc.client.aio.client import Client
from shmrpc.client.aio.factory import connect as connect_to
from shmrpc.server.server import Server, serve
from shmrpc.service.service import Service
from shmrpc.testing.faults import Faults, FaultyMemoryTransport
from shmrpc.testing.options import NetworkConnectOptions, NetworkServeOptions
from shmrpc.transport.memory import MemoryRegistry, MemoryTransport
from shmrpc.wire.frames import DEFAULT_MAX_FRAME


class Network:
    """A network for the servers and clients of one event loop: :meth:`serve` and :meth:`connect` are those of shmrpc.

    ::

        network = shmrpc.testing.Network()
        async with network.serve(orders, stock, max_in_flight=1), network.connect("orders") as client:
            ...

    The network works like ``at="memory://"`` of :func:`shmrpc.serve` and :func:`shmrpc.connect`, with service names of
    its own.
    """

    def __init__(self) -> None:
        self._registry = MemoryRegistry()

    def _find(self) -> MemoryRegistry:
        """Return the registry of this network."""
        return self._registry

    def serve(self, *services: Service, **options: Unpack[NetworkServeOptions]) -> Server:
        """Return a server: ``async with network.serve(calculator): ...``. See :func:`shmrpc.serve`."""
        return serve(*services, at=MemoryTransport(self._find), **options)

    def connect(
        self, service: str | Service, *, faults: Faults | None = None, **options: Unpack[NetworkConnectOptions]
    ) -> Client:
        """Return a client of a service of this network: ``async with network.connect("orders") as client``.

        ``faults`` apply to the connection. Options and errors: see :func:`shmrpc.connect`.
        """
        at = MemoryTransport(self._find) if faults is None else FaultyMemoryTransport(self._find, faults)
        return connect_to(service, at=at, **options)


@contextlib.asynccontextmanager
async def connect(
    service: Service, *, faults: Faults | None = None, **options: Unpack[NetworkConnectOptions]
) -> AsyncIterator[Client]:
    """Serve a service in this event loop, and yield a client of it.

    ``async with shmrpc.testing.connect(calculator) as client: ...``

    A real client of a real server, with its lifespan; only the connection stays within this process. The options are
    those of :func:`shmrpc.connect`, and ``faults``; the server has the same ``codec`` and ``max_frame``. For several
    clients, or options of the server, use :class:`Network`. Raises TypeError unless ``service`` is a Service, and as
    :func:`shmrpc.serve` and :func:`shmrpc.connect` do.
    """
    if not isinstance(service, Service):
        raise TypeError(f"connect() of shmrpc.testing expected a shmrpc.Service to serve, got {service!r}")
    network = Network()
    client = network.connect(service, faults=faults, **options)
    codec, max_frame = options.get("codec", "msgspec"), options.get("max_frame", DEFAULT_MAX_FRAME)
    async with network.serve(service, codec=codec, max_frame=max_frame), client:
        yield client
