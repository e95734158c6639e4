"""Serving and connecting on a UNIX socket, whatever protocol is spoken there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_P = TypeVar("_P", bound=asyncio.BaseProtocol)


@asynccontextmanager
async def serve(protocol: Callable[[], asyncio.BaseProtocol], path: str) -> AsyncIterator[None]:
    """Serves on the socket at ``path``."""
    server = await asyncio.get_running_loop().create_unix_server(protocol, path)
    try:
        yield
    finally:
        server.close()


@asynccontextmanager
async def connect(protocol: Callable[[], _P], path: str) -> AsyncIterator[_P]:
    """A client of the socket at ``path``."""
    transport, client = await asyncio.get_running_loop().create_unix_connection(protocol, path)
    try:
        yield client
    finally:
        transport.close()
