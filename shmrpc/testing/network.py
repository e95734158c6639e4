"""Services and clients in one event loop, without anything that another process could see."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence

from shmrpc.client.client import Client
from shmrpc.client.options import Options, check_timeout
from shmrpc.client.reconnect import Link
from shmrpc.client.requests import name_and_endpoints
from shmrpc.server.limits import Limits
from shmrpc.server.server import DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_PER_CONNECTION, DEFAULT_MAX_WAITING, Server
from shmrpc.service.interceptors import Interceptor, check_interceptors
from shmrpc.service.service import Service
from shmrpc.testing.faults import Faults
from shmrpc.transport.base import Dial
from shmrpc.transport.memory import MemoryHost, MemoryTransport
from shmrpc.transport.options import DEFAULT_CONNECT_TIMEOUT, ConnectionOptions, check_connecting
from shmrpc.wire.codec import CodecName, get_codec
from shmrpc.wire.frames import DEFAULT_MAX_FRAME


class Network:
    """Where servers and clients of one event loop meet: :meth:`serve` and :meth:`connect` are shmrpc's own two.

    ::

        network = shmrpc.testing.Network()
        async with network.serve(orders, stock, max_in_flight=1), network.connect("orders") as client:
            ...

    Their options are those of :func:`shmrpc.serve` and :func:`shmrpc.connect`, and mean the same.
    """

    def __init__(self) -> None:
        self._host = MemoryHost()

    def serve(
        self,
        *services: Service,
        codec: CodecName = "msgspec",
        max_frame: int = DEFAULT_MAX_FRAME,
        interceptors: Sequence[Interceptor] = (),
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        max_per_connection: int = DEFAULT_MAX_PER_CONNECTION,
        max_waiting: int = DEFAULT_MAX_WAITING,
        validate_results: bool = False,
    ) -> Server:
        """Serves one or more services in this network: ``async with network.serve(calculator): ...``."""
        ConnectionOptions(max_frame, codec=codec)
        limits = Limits(max_in_flight, max_per_connection, max_waiting)
        transport = MemoryTransport(self._host, max_frame)
        return Server(
            services, transport, codec, interceptors, limits, adopting=False, validate_results=validate_results
        )

    def connect(
        self,
        service: str | Service,
        *,
        timeout: float = DEFAULT_CONNECT_TIMEOUT,
        call_timeout: float | None = None,
        reconnect: bool = False,
        interceptors: Sequence[Interceptor] = (),
        codec: CodecName = "msgspec",
        max_frame: int = DEFAULT_MAX_FRAME,
        faults: Faults | None = None,
    ) -> Client:
        """A client of a service of this network. ``faults`` come between it and the server."""
        check_connecting(timeout, reconnect)
        ConnectionOptions(max_frame, codec=codec)
        name, endpoints = name_and_endpoints(service)
        dial: Dial = functools.partial(self._host.connect, name, max_frame=max_frame)
        if faults is not None:
            dial = faults.between(dial)
        options = Options(check_timeout(call_timeout), interceptors=check_interceptors(interceptors))
        return Client(Link(name, dial, timeout, reconnect=reconnect), get_codec(codec), options, endpoints)


@contextlib.asynccontextmanager
async def connect(
    service: Service,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    call_timeout: float | None = None,
    reconnect: bool = False,
    interceptors: Sequence[Interceptor] = (),
    codec: CodecName = "msgspec",
    max_frame: int = DEFAULT_MAX_FRAME,
    faults: Faults | None = None,
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
    client = network.connect(
        service,
        timeout=timeout,
        call_timeout=call_timeout,
        reconnect=reconnect,
        interceptors=interceptors,
        codec=codec,
        max_frame=max_frame,
        faults=faults,
    )
    async with network.serve(service, codec=codec, max_frame=max_frame), client:
        yield client
