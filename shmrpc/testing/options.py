"""The options that connect() and serve() take here: those of shmrpc's own that mean something within the tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypedDict

from shmrpc.service.interceptors import Interceptor, SyncInterceptor
from shmrpc.wire.codec import CodecName


class _Common(TypedDict, total=False):
    timeout: float
    call_timeout: float | None
    reconnect: bool
    codec: CodecName
    max_frame: int


class _OfSharedMemory(_Common, total=False):
    max_memory: int
    spin: float
    allow_uids: Collection[int]


class NetworkConnectOptions(_Common, total=False):
    """Those of :func:`shmrpc.connect` that a client in the server's own loop has."""

    interceptors: Sequence[Interceptor]


class ConnectOptions(_OfSharedMemory, total=False):
    """Those of :func:`shmrpc.connect`."""

    interceptors: Sequence[Interceptor]


class SyncConnectOptions(_OfSharedMemory, total=False):
    """Those of ``shmrpc.sync.connect``."""

    interceptors: Sequence[SyncInterceptor]


class NetworkServeOptions(TypedDict, total=False):
    """Those of :func:`shmrpc.serve` that a server of clients in its own loop has."""

    codec: CodecName
    max_frame: int
    interceptors: Sequence[Interceptor]
    max_in_flight: int
    max_per_connection: int
    max_waiting: int
    validate_results: bool
