"""Streams as bodies of HTTP: what comes as lines, and what goes as JSON lines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

import shmrpc


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a text that comes in pieces."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class JSONLines(StreamingResponse):
    """A stream from a service, each item a line of JSON that is sent when it has come."""

    media_type = "application/x-ndjson"

    def __init__(self, first: Any, others: AsyncGenerator[Any, None]) -> None:
        self._others = others
        super().__init__(_encoded(first, others))

    @classmethod
    async def of(cls, items: AsyncGenerator[Any, None]) -> JSONLines:
        """Begins only when there is an item: a call that fails before still gets a status of its own."""
        return cls(await anext(items, None), items)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Close the stream when the HTTP client goes away, so that the service stops."""
        async with contextlib.aclosing(self._others):
            await super().__call__(scope, receive, send)


async def _encoded(first: Any, others: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield msgspec.json.encode(first) + b"\n"
        async for item in others:
            yield msgspec.json.encode(item) + b"\n"
    except shmrpc.ShmrpcError as error:  # The status has been sent by now, so this is a line too, the last one.
        yield msgspec.json.encode({"error": str(error)}) + b"\n"
