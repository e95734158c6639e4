"""grpc.aio over a UNIX socket, or over TCP: generic handlers with msgspec as the serializer; no code is generated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import msgspec

from benchmark import work
from benchmark.processes import Rendezvous

if TYPE_CHECKING:
    import numpy as np

_SERVICE: Final = "benchmark"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels to one target share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    # The probe measures the network, and here lets a server run a hundred thousand items ahead of a stream's reader.
    # Without it, streams are faster and bulk is not slower.
    ("grpc.http2.bdp_probe", 0),
)


async def _add(arguments: list[int], context: Any) -> int:
    return work.add(*arguments)


async def _echo(value: Any, context: Any) -> Any:
    return work.echo(value)


async def _echo_bytes(data: bytes, context: Any) -> bytes:
    return work.echo(data)  # type: ignore[no-any-return]


async def _count(n: int, context: Any) -> AsyncIterator[int]:
    async for item in work.count(n):
        yield item


async def _take(messages: AsyncIterator[bytes], context: Any) -> list[int]:
    taken = work.MessageTally()
    async for message in messages:
        taken.take(message)
    return taken.taken()


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    server = _server()
    server.add_insecure_port(f"unix:{place.socket()}")
    async with _running(server):
        yield


@contextlib.asynccontextmanager
async def serve_tcp(place: Rendezvous) -> AsyncIterator[None]:
    """Yield a server on the loopback interface."""
    server = _server()
    port = server.add_insecure_port("127.0.0.1:0")
    _port(place).write_text(str(port))
    async with _running(server):
        yield


def _port(place: Rendezvous) -> Path:
    return Path(place.directory) / "port"


def _server() -> grpc.aio.Server:
    codec = {"request_deserializer": _decode, "response_serializer": _encode}
    handlers = {
        "add": grpc.unary_unary_rpc_method_handler(_add, **codec),
        "echo": grpc.unary_unary_rpc_method_handler(_echo, **codec),
        "echo_bytes": grpc.unary_unary_rpc_method_handler(_echo_bytes),
        "count": grpc.unary_stream_rpc_method_handler(_count, **codec),
        # Bytes are what gRPC carries: they need no codec.
        "take": grpc.stream_unary_rpc_method_handler(_take, response_serializer=_encode),
    }
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return server


@contextlib.asynccontextmanager
async def _running(server: grpc.aio.Server) -> AsyncIterator[None]:
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


class _Client:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        codec = {"request_serializer": _encode, "response_deserializer": _decode}
        self._add = channel.unary_unary(f"/{_SERVICE}/add", **codec)
        self.echo = channel.unary_unary(f"/{_SERVICE}/echo", **codec)
        self._echo_bytes = channel.unary_unary(f"/{_SERVICE}/echo_bytes")
        self._count = channel.unary_stream(f"/{_SERVICE}/count", **codec)
        self._take = channel.stream_unary(f"/{_SERVICE}/take", response_deserializer=_decode)

    async def add(self, a: int, b: int) -> Any:
        return await self._add((a, b))

    async def array(self, value: np.ndarray[Any, Any]) -> Any:
        from numpy import frombuffer  # A program with arrays has imported NumPy.

        return frombuffer(await self._echo_bytes(value.tobytes()), value.dtype)

    async def count(self, n: int) -> AsyncIterator[Any]:
        call = self._count(n)
        try:
            async for item in call:
                yield item
        finally:
            call.cancel()

    async def bulk(self, data: bytes, messages: int) -> None:
        call = self._take()
        for _ in range(messages):
            await call.write(data)
        await call.done_writing()
        assert await call == [messages, messages * data[-1]]


def connect(place: Rendezvous) -> Any:
    """Return a client."""
    return _connect(f"unix:{place.socket()}")


def connect_tcp(place: Rendezvous) -> Any:
    """Return a client over TCP."""
    return _connect(f"127.0.0.1:{_port(place).read_text()}")


@contextlib.asynccontextmanager
async def _connect(target: str) -> AsyncIterator[_Client]:
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        yield _Client(channel)
