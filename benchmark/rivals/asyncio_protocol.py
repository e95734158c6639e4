"""The same calls over a hand-written asyncio.Protocol on a UNIX socket, with msgpack or msgspec.

As a good engineer would write it without a framework: frames with a length before them, no task and no
stream per call, many calls in flight, as many frames taken from one read as there are, one write for all items of a
stream that are made in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple, cast

import msgpack
import msgspec

from benchmark.processes import Rendezvous
from benchmark.rivals.credit import Credit, Items, Streams
from benchmark.work import MessageTally, add, count, echo

_LENGTH: Final = struct.Struct("<I")
#: Bytes of a stream's items that are gathered before they are written.
_GATHER: Final = 1 << 16


class Codec(NamedTuple):
    """The functions that encode and decode values."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


MSGPACK: Final = Codec(msgpack.packb, functools.partial(msgpack.unpackb, strict_map_key=False))
MSGSPEC: Final = Codec(msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode)


class Frames(asyncio.Protocol):
    """Cuts what comes into frames."""

    transport: asyncio.Transport

    def __init__(self, codec: Codec) -> None:
        self.encode, self.decode = codec
        self._parts: list[bytes] = []
        self._filled = 0
        self._need = 4

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Cuts what has come."""
        if self._parts:
            # A frame that comes in many parts is put together once.
            self._parts.append(data)
            self._filled += len(data)
            if self._filled < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        start, end = 0, len(data)
        need = 4
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            need = 4 + length
            if end - start < need:
                break
            self.message_received(self.decode(data[start + 4 : start + need]))
            start += need
            need = 4
        if start < end:
            self._parts.append(data[start:])
            self._filled, self._need = end - start, need

    def message_received(self, message: Any) -> None:
        """Handle a frame."""
        raise NotImplementedError

    def frame(self, value: Any) -> bytes:
        """Return the bytes of a frame."""
        body = self.encode(value)
        return _LENGTH.pack(len(body)) + body

    def send(self, value: Any) -> None:
        """Send a frame."""
        self.transport.write(self.frame(value))


class _Server(Frames):
    """One connection of the server's."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self._writable = asyncio.Event()
        self._writable.set()
        self._streams = Streams()
        self._taken = MessageTally()
        self._functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": self._taken.taken}

    def message_received(self, message: list[Any]) -> None:
        number, name, arguments = message
        if name == "take":
            self._taken.take(*arguments)
        elif name == "count":
            self._streams.begin(number, functools.partial(self._stream, number, *arguments))
        elif name in ("grant", "leave"):
            self._streams.hear(number, name, arguments)
        else:
            self.send((number, self._functions[name](*arguments)))

    async def _stream(self, number: int, n: int, credit: Credit) -> None:
        """Items, as many as the client and the transport let it send; at the end a frame without an item."""
        waiting = bytearray()
        async for item in count(n):
            waiting += self.frame((number, item))
            credit.left -= 1
            if not credit.left or len(waiting) >= _GATHER:
                self.transport.write(bytes(waiting))
                waiting.clear()
                await asyncio.sleep(0)
                await self._writable.wait()
                await credit.more()
        waiting += self.frame((number,))
        self.transport.write(bytes(waiting))

    def pause_writing(self) -> None:
        """Wait before the next write, because the socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._writable.set()
        self._streams.close()


class _Client(Frames):
    """Calls over the socket."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Items] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()

    def pause_writing(self) -> None:
        """Wait before the next write, because the socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    def message_received(self, message: list[Any]) -> None:
        number, *result = message
        if number in self._waiting:
            self._waiting.pop(number).set_result(result[0])
        elif number in self._streams:
            self._streams[number].put(result)

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._number = number = self._number + 1
        future = self._waiting[number] = self._loop.create_future()
        self.send((number, name, arguments))
        return future

    async def add(self, a: int, b: int) -> Any:
        return await self._call("add", a, b)

    async def echo(self, value: Any) -> Any:
        return await self._call("echo", value)

    async def bulk(self, data: bytes, messages: int) -> None:
        for _ in range(messages):
            self.send((0, "take", (data,)))
            await self._writable.wait()
        assert await self._call("taken") == [messages, messages * data[-1]]

    async def count(self, n: int) -> AsyncIterator[Any]:
        self._number = number = self._number + 1
        items = self._streams[number] = Items(lambda taken: self.send((number, "grant", (taken,))))
        self.send((number, "count", (n,)))
        try:
            async for item in items.take():
                yield item
        finally:
            del self._streams[number]
            self.send((number, "leave", ()))


@contextlib.asynccontextmanager
async def _serve(codec: Codec, place: Rendezvous) -> AsyncIterator[None]:
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Server(codec), place.socket())
    try:
        yield
    finally:
        server.close()


@contextlib.asynccontextmanager
async def _connect(codec: Codec, place: Rendezvous) -> AsyncIterator[_Client]:
    transport, client = await asyncio.get_running_loop().create_unix_connection(lambda: _Client(codec), place.socket())
    try:
        yield client
    finally:
        transport.close()


serve_msgpack, connect_msgpack = functools.partial(_serve, MSGPACK), functools.partial(_connect, MSGPACK)
serve_msgspec, connect_msgspec = functools.partial(_serve, MSGSPEC), functools.partial(_connect, MSGSPEC)
