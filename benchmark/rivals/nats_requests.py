"""NATS alone: nats-py's request and reply, with msgspec for the small call; an array goes as its bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import nats
import numpy as np

from benchmark import work
from benchmark.processes import Rendezvous

#: Seconds that a request has: it needs a number.
_TIMEOUT: Final = 60
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""

    async def add(message: Any) -> None:
        await message.respond(_encode(work.add(*_decode(message.data))))

    async def echo(message: Any) -> None:
        await message.respond(work.echo(message.data))

    connection = await nats.connect(place.shared)
    subject = _subject(place)
    await connection.subscribe(f"{subject}.add", "servers", add)
    await connection.subscribe(f"{subject}.echo", "servers", echo)
    await connection.flush()
    try:
        yield
    finally:
        await connection.drain()


def _subject(place: Rendezvous) -> str:
    return f"benchmark.{place.directory.rpartition('/')[2]}"


class _Client:
    def __init__(self, connection: Any, subject: str) -> None:
        self._request, self._add, self._echo = connection.request, f"{subject}.add", f"{subject}.echo"

    async def add(self, a: int, b: int) -> Any:
        return _decode((await self._request(self._add, _encode((a, b)), _TIMEOUT)).data)

    async def array(self, value: np.ndarray[Any, Any]) -> Any:
        back = await self._request(self._echo, value.tobytes(), _TIMEOUT)
        return np.frombuffer(back.data, value.dtype)


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[_Client]:
    """Yield a client."""
    connection = await nats.connect(place.shared)
    try:
        yield _Client(connection, _subject(place))
    finally:
        await connection.close()
