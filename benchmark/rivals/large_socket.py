"""A UNIX socket, written for frames of megabytes.

Bytes go as they are, and other values with msgspec; what comes is read to where it is decoded from, and never put
together; header and body go out in one write without being joined; the socket's buffers are as large as the system
allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import msgspec

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo

#: Before each frame: how long it is, which call it belongs to, and what it is.
_HEADER: Final = struct.Struct("<III")
#: Kinds of frames: a value by msgspec; a function's name with its arguments; bytes that are a value, that are the
#: argument of ``echo``, or that have no reply.
_VALUE, _CALL, _BYTES, _ECHO, _TAKE = range(5)
#: Bytes to read at a time, unless a frame is larger.
_ROOM: Final = 1 << 18
#: More than the system allows: it gives what it allows.
_BUFFER: Final = 1 << 30


class _Frames(asyncio.BufferedProtocol):
    """Reads frames where they lie."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode
        self._room = memoryview(bytearray(_ROOM))
        self._filled = 0
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, _BUFFER)

    def pause_writing(self) -> None:
        """Wait before the next write, because the socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the other side."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        start, end, need = 0, self._filled + nbytes, 0
        while end - start >= _HEADER.size:
            length, number, kind = _HEADER.unpack_from(self._room, start)
            need = _HEADER.size + length
            if end - start < need:
                break
            self.frame_received(number, kind, self._room[start + _HEADER.size : start + need])
            start += need
        rest = self._room[start:end]
        if need > len(self._room):
            self._room = memoryview(bytearray(need))
            self._room[: len(rest)] = rest
        elif start:
            self._room[: len(rest)] = rest
        self._filled = len(rest)

    def frame_received(self, number: int, kind: int, body: memoryview) -> None:
        raise NotImplementedError

    def send(self, number: int, kind: int, body: bytes) -> None:
        self.transport.writelines((_HEADER.pack(len(body), number, kind), body))

    def send_value(self, number: int, value: Any) -> None:
        if type(value) is bytes:
            self.send(number, _BYTES, value)
        else:
            self.send(number, _VALUE, self._encode(value))

    def value(self, kind: int, body: memoryview) -> Any:
        return self._decode(body) if kind == _VALUE else bytes(body)


class _Server(_Frames):
    """One connection of the server's."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = MessageTally()
        self._functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": self._taken.taken}

    def frame_received(self, number: int, kind: int, body: memoryview) -> None:
        """Answer a call at once."""
        if kind == _TAKE:
            self._taken.take(bytes(body))  # A copy for the receiver, as with every other subject.
        elif kind == _ECHO:
            self.send_value(number, echo(bytes(body)))
        else:
            name, arguments = self._decode(body)
            self.send_value(number, self._functions[name](*arguments))


class _Client(_Frames):
    """Calls over the socket."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()

    def frame_received(self, number: int, kind: int, body: memoryview) -> None:
        """Handle an answer."""
        future = self._waiting.pop(number)
        if not future.done():
            future.set_result(self.value(kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting calls."""
        super().connection_lost(exc)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the server is gone"))

    def _call(self, kind: int, body: bytes) -> asyncio.Future[Any]:
        self._number = number = self._number + 1 & 0xFFFF_FFFF
        future = self._waiting[number] = self._loop.create_future()
        self.send(number, kind, body)
        return future

    async def add(self, a: int, b: int) -> Any:
        return await self._call(_CALL, self._encode(("add", (a, b))))

    async def echo(self, value: Any) -> Any:
        if type(value) is bytes:
            return await self._call(_ECHO, value)
        return await self._call(_CALL, self._encode(("echo", (value,))))

    async def bulk(self, data: bytes, messages: int) -> None:
        for _ in range(messages):
            self.send(0, _TAKE, data)
            await self._writable.wait()
        assert await self._call(_CALL, self._encode(("taken", ()))) == [messages, messages * data[-1]]


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    server = await asyncio.get_running_loop().create_unix_server(_Server, place.socket())
    try:
        yield
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[_Client]:
    """Yield a client."""
    transport, client = await asyncio.get_running_loop().create_unix_connection(_Client, place.socket())
    try:
        yield client
    finally:
        transport.close()
