"""The same calls over asyncio's streams on a UNIX socket: StreamReader and StreamWriter, msgspec, a length before each.

As many frames are taken from one read as there are, and their answers go out in one write; what a stream makes in one
turn of the loop goes out in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from benchmark.processes import Rendezvous
from benchmark.rivals.credit import Credit, Items, Streams
from benchmark.work import MessageTally, add, count, echo

_LENGTH: Final = struct.Struct("<I")
#: Bytes that are read at once, and that a reader holds at most (twice) before it lets the other side wait.
_READ: Final = 1 << 18
#: Bytes of a stream's items that are gathered before they are written.
_GATHER: Final = 1 << 16

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def _frame(value: Any) -> bytes:
    body = _encode(value)
    return _LENGTH.pack(len(body)) + body


async def _messages(reader: StreamReader) -> AsyncIterator[list[Any]]:
    """Yield the messages of each read, until the connection ends."""
    while data := await reader.read(_READ):
        messages: list[list[Any]] = []
        start, end = 0, len(data)
        while start < end:
            if end - start < 4:
                data = data[start:] + await reader.readexactly(4 - (end - start))
                start, end = 0, 4
            stop = start + 4 + _LENGTH.unpack_from(data, start)[0]
            if stop > end:
                if messages:
                    # A reader of complete messages must not wait for the rest of this one.
                    yield messages
                    messages = []
                data = data[start:] + await reader.readexactly(stop - end)
                start, stop = 0, len(data)
                end = stop
            messages.append(_decode(data[start + 4 : stop]))
            start = stop
        yield messages


class _Connection:
    """One connection of the server's."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._streams = Streams()
        self._taken = MessageTally()
        self._functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": self._taken.taken}

    async def answer(self) -> None:
        """Until the client is gone."""
        try:
            async for messages in _messages(self._reader):
                answers = [answer for message in messages if (answer := self._answer(*message))]
                if answers:
                    self._writer.write(b"".join(answers))
                    await self._writer.drain()
        except (EOFError, ConnectionError):
            pass
        finally:
            self._streams.close()
            self._writer.close()

    def _answer(self, number: int, name: str, arguments: list[Any]) -> bytes | None:
        if name == "take":
            self._taken.take(*arguments)
        elif name == "count":
            self._streams.begin(number, functools.partial(self._stream, number, *arguments))
        elif name in ("grant", "leave"):
            self._streams.hear(number, name, arguments)
        else:
            return _frame((number, self._functions[name](*arguments)))
        return None

    async def _stream(self, number: int, n: int, credit: Credit) -> None:
        """Items; at the end a frame without one."""
        waiting, call_soon = bytearray(), asyncio.get_running_loop().call_soon

        def write() -> None:
            if waiting:
                self._writer.write(bytes(waiting))
                waiting.clear()

        with contextlib.suppress(ConnectionError):
            async for item in count(n):
                if not waiting:
                    call_soon(write)  # With it go all that are made until the loop has its turn.
                waiting += _frame((number, item))
                credit.left -= 1
                if not credit.left or len(waiting) >= _GATHER:
                    write()
                    await asyncio.sleep(0)
                    await self._writer.drain()
                    await credit.more()
            waiting += _frame((number,))
            write()


class _Client:
    """Calls over the socket."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Items] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._receiver = asyncio.ensure_future(self._receive(reader))

    async def _receive(self, reader: StreamReader) -> None:
        waiting, streams = self._waiting, self._streams
        try:
            async for messages in _messages(reader):
                for number, *result in messages:
                    if number in waiting:
                        future = waiting.pop(number)
                        if not future.done():
                            future.set_result(result[0])
                    elif number in streams:
                        streams[number].put(result)
        except (EOFError, ConnectionError):
            pass
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the server is gone"))
        for items in streams.values():
            items.fail(ConnectionResetError("the server is gone"))

    async def close(self) -> None:
        """End it."""
        self._receiver.cancel()
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await self._receiver
            await self._writer.wait_closed()

    def _send(self, *message: Any) -> None:
        self._writer.write(_frame(message))

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._number = number = self._number + 1
        future = self._waiting[number] = self._loop.create_future()
        self._send(number, name, arguments)
        return future

    async def add(self, a: int, b: int) -> Any:
        return await self._call("add", a, b)

    async def echo(self, value: Any) -> Any:
        return await self._call("echo", value)

    async def bulk(self, data: bytes, messages: int) -> None:
        for _ in range(messages):
            self._send(0, "take", (data,))
            await self._writer.drain()
        assert await self._call("taken") == [messages, messages * data[-1]]

    async def count(self, n: int) -> AsyncIterator[Any]:
        self._number = number = self._number + 1
        items = self._streams[number] = Items(lambda taken: self._send(number, "grant", (taken,)))
        self._send(number, "count", (n,))
        try:
            async for item in items.take():
                yield item
        finally:
            del self._streams[number]
            self._send(number, "leave", ())


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        await _Connection(reader, writer).answer()

    server = await asyncio.start_unix_server(answer, place.socket(), limit=_READ, backlog=1024)
    try:
        yield
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[_Client]:
    """Yield a client."""
    client = _Client(*await asyncio.open_unix_connection(place.socket(), limit=_READ))
    try:
        yield client
    finally:
        await client.close()
