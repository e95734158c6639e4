"""The function that makes clients for threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shmrpc.client.common.call_options import CallOptions, check_timeout
from shmrpc.client.common.requests import name_and_endpoints
from shmrpc.client.threads.client import Client
from shmrpc.client.threads.reconnector import ThreadReconnector
from shmrpc.service.interceptors import SyncInterceptor, check_interceptors
from shmrpc.service.service import Service
from shmrpc.transport.addresses import Transport, find_transport
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
    interceptors: Sequence[SyncInterceptor] = (),
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    max_memory: int = DEFAULT_MAX_MEMORY,
    spin: float = DEFAULT_SPIN,
    allow_uids: Collection[int] = (),
    at: str | Transport | None = None,
) -> Client:
    """Return a client for threads: ``with shmrpc.sync.connect("calculator") as client: client.add(1, 2)``.

    The ``with`` block connects. Interceptors return plain context managers, and ``at`` is a single address. For the
    other options and the errors see :func:`shmrpc.connect`.
    """
    check_connecting(timeout, reconnect)
    connection = connection_options(max_frame, max_memory, spin, codec, allow_uids)
    transport, service = find_transport(service, at)
    name, endpoints = name_and_endpoints(service)
    reconnector = ThreadReconnector(name, transport.thread_dial(name, connection), timeout, reconnect=reconnect)
    options = CallOptions(check_timeout(call_timeout), interceptors=check_interceptors(interceptors, plain=True))
    return Client(reconnector, get_codec(codec), options, endpoints)
