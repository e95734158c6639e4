"""The function that makes clients for event loops."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shmrpc.client.aio.client import Client
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.common.call_options import CallOptions, check_timeout
from shmrpc.client.common.requests import name_and_endpoints
from shmrpc.service.interceptors import Interceptor, check_interceptors
from shmrpc.service.service import Service
from shmrpc.transport.addresses import At, find_transport
from shmrpc.transport.connection_options import (
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_SPIN,
    check_connecting,
    connection_options,
)
from shmrpc.wire import frames
from shmrpc.wire.codec import CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY


def connect(
    service: str | Service,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    call_timeout: float | None = None,
    reconnect: bool = False,
    interceptors: Sequence[Interceptor] = (),
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    max_memory: int = DEFAULT_MAX_MEMORY,
    spin: float = DEFAULT_SPIN,
    allow_uids: Collection[int] = (),
    at: At = None,
) -> Client:
    """Return a client of a service: ``async with shmrpc.connect("calculator") as client: ...``. The block connects.

    A Service in place of its name gives ``client.name(...)`` results of the declared types.

    ``timeout`` limits connecting as a whole, in seconds, from the search for a server to the server's last answer. 0
    means a single attempt: no wait for a server to appear, and up to 1 s for the answers of an existing one.
    ``call_timeout`` limits each call, in seconds; see :meth:`Client.with_options` for a single call. ``math.inf`` means
    no limit. With ``reconnect`` the client connects again when the server stops or dies; new calls wait for that as
    long as for the first connection, and calls in flight fail with ConnectionLost unless they were certainly not
    executed. ``interceptors`` wrap each call. ``codec``, ``max_frame``, ``max_memory`` (bytes) and ``spin``
    (microseconds) are those of :func:`serve`; the smaller ``max_frame`` and ``max_memory`` of the two sides apply. The
    server must run as this user, as root, or as a user in ``allow_uids``; otherwise connecting raises
    LocalProtocolError before anything is sent.

    A name is looked up in this host's shared memory. A URL selects another transport: ``"memory://calculator"`` for a
    server in the same event loop, ``"nats://HOST:PORT/calculator"`` for a server at the same NATS on any host
    (:mod:`shmrpc.transport.nats.address` describes the URL). With a Service, pass the URL as ``at``:
    ``connect(calculator, at="memory://")``. From several addresses, ``at=["shm", "nats://HOST:PORT"]``, the client
    takes the first one with a server. With ``reconnect`` it moves to another address when the server is gone, and back
    when an earlier address has a server again. ``client.address`` tells the current one.

    Does not wait. Raises TypeError or ValueError for an invalid service or option, and ValueError for an option that
    the transport does not support. Errors of connecting: :meth:`Client.__aenter__`.
    """
    check_connecting(timeout, reconnect)
    connection = connection_options(max_frame, max_memory, spin, codec, allow_uids)
    transport, service = find_transport(service, at)
    name, endpoints = name_and_endpoints(service)
    reconnector = LoopReconnector(name, transport.dial(name, connection), timeout, reconnect=reconnect)
    return Client(
        reconnector,
        get_codec(codec),
        CallOptions(check_timeout(call_timeout), interceptors=check_interceptors(interceptors)),
        endpoints,
    )
