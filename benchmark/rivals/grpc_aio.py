"""grpc.aio over a UNIX socket: generic handlers with msgspec as the serializer, so that no code is generated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import msgspec

from benchmark import work
from benchmark.processes import Place

_SERVICE: Final = "benchmark"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels to one target share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    # It measures the network, and from what it finds here it lets a server run a hundred thousand items ahead of a
    # stream's reader. Without, streams are faster and bulk is not slower.
    ("grpc.http2.bdp_probe", 0),
)


async def _add(arguments: list[int], context: Any) -> int:
    return work.add(*arguments)


async def _echo(value: Any, context: Any) -> Any:
    return work.echo(value)


async def _count(n: int, context: Any) -> AsyncIterator[int]:
    async for item in work.count(n):
        yield item


async def _take(messages: AsyncIterator[bytes], context: Any) -> list[int]:
    taken = work.Taken()
    async for message in messages:
        taken.take(message)
    return taken.taken()


@contextlib.asynccontextmanager
async def serve(place: Place) -> AsyncIterator[None]:
    """The server."""
    codec = {"request_deserializer": _decode, "response_serializer": _encode}
    handlers = {
        "add": grpc.unary_unary_rpc_method_handler(_add, **codec),
        "echo": grpc.unary_unary_rpc_method_handler(_echo, **codec),
        "count": grpc.unary_stream_rpc_method_handler(_count, **codec),
        # Bytes are what gRPC carries: they need no codec.
        "take": grpc.stream_unary_rpc_method_handler(_take, response_serializer=_encode),
    }
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(f"unix:{place.socket()}")
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
        self._count = channel.unary_stream(f"/{_SERVICE}/count", **codec)
        self._take = channel.stream_unary(f"/{_SERVICE}/take", response_deserializer=_decode)

    async def add(self, a: int, b: int) -> Any:
        return await self._add((a, b))

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


@contextlib.asynccontextmanager
async def connect(place: Place) -> AsyncIterator[_Client]:
    """A client."""
    async with grpc.aio.insecure_channel(f"unix:{place.socket()}", options=_OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        yield _Client(channel)
