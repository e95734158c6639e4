"""The peer for large data: the frames of :mod:`benchmark.peer` on a UNIX socket, written for frames of megabytes.

msgspec instead of msgpack; what comes is read to where it is decoded from, and never put together; header and body
go out in one write without being joined; the socket's buffers are as large as the system allows.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final, cast

import msgspec

_LENGTH: Final = struct.Struct("<I")
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, _BUFFER)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        start, end, need = 0, self._filled + nbytes, 0
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(self._room, start)
            need = 4 + length
            if end - start < need:
                break
            self.message_received(self._decode(self._room[start + 4 : start + need]))
            start += need
        rest = self._room[start:end]
        if need > len(self._room):
            self._room = memoryview(bytearray(need))
            self._room[: len(rest)] = rest
        elif start:
            self._room[: len(rest)] = rest
        self._filled = len(rest)

    def message_received(self, message: list[Any]) -> None:
        raise NotImplementedError

    def send(self, value: Any) -> None:
        body = self._encode(value)
        self.transport.writelines((_LENGTH.pack(len(body)), body))


class Server(_Frames):
    """What comes in goes out."""

    def message_received(self, message: list[Any]) -> None:
        """A request, which is answered at once."""
        number, _name, (value,) = message
        self.send((number, value))


class Client(_Frames):
    """Calls over the socket."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()

    def message_received(self, message: list[Any]) -> None:
        """An answer."""
        number, result = message
        self._waiting.pop(number).set_result(result)

    async def echo(self, value: Any) -> Any:
        """There and back."""
        self._number = number = self._number + 1
        future = self._waiting[number] = self._loop.create_future()
        self.send((number, "echo", (value,)))
        return await future
