"""Options of connect() and serve() in tests: those of shmrpc that have an effect there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypedDict

from shmrpc.service.interceptors import Interceptor, SyncInterceptor
from shmrpc.wire.codec import CodecName


class _CommonOptions(TypedDict, total=False):
    """Options of connect() for any transport."""

    timeout: float
    call_timeout: float | None
    reconnect: bool
    codec: CodecName
    max_frame: int


class _SharedMemoryOptions(_CommonOptions, total=False):
    """Options of connect() for servers in other processes."""

    max_memory: int
    spin: float
    allow_uids: Collection[int]


class NetworkConnectOptions(_CommonOptions, total=False):
    """Options of :func:`shmrpc.connect` for a client in the event loop of its server."""

    interceptors: Sequence[Interceptor]


class ConnectOptions(_SharedMemoryOptions, total=False):
    """Options of :func:`shmrpc.connect`."""

    interceptors: Sequence[Interceptor]


class SyncConnectOptions(_SharedMemoryOptions, total=False):
    """Options of ``shmrpc.sync.connect``."""

    interceptors: Sequence[SyncInterceptor]


class NetworkServeOptions(TypedDict, total=False):
    """Options of :func:`shmrpc.serve` for a server whose clients run in its event loop."""

    codec: CodecName
    max_frame: int
    interceptors: Sequence[Interceptor]
    max_in_flight: int
    max_per_connection: int
    max_waiting: int
    validate_results: bool
