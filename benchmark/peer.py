"""The peer: the same calls over a hand-written asyncio.Protocol with msgpack on a UNIX socket.

As a good engineer would write it without a framework: frames with a length before them, no task and no
stream per call, many calls in flight, as many frames taken from one read as there are.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgpack

from benchmark.work import add, count, echo

_LENGTH = struct.Struct("<I")
_FUNCTIONS: dict[str, Callable[..., Any]] = {"add": add, "echo": echo}


class _Frames(asyncio.Protocol):
    """Cuts what comes into frames."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        start, end = 0, len(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            if end - start - 4 < length:
                break
            self.frame_received(data[start + 4 : start + 4 + length])
            start += 4 + length
        self._rest = data[start:]

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def send(self, value: Any) -> None:
        frame: bytes = msgpack.packb(value)
        self.transport.write(_LENGTH.pack(len(frame)) + frame)


class Server(_Frames):
    """One connection of the server's."""

    def __init__(self) -> None:
        super().__init__()
        self._writable = asyncio.Event()
        self._writable.set()
        self._streams: set[asyncio.Task[None]] = set()

    def frame_received(self, frame: bytes) -> None:
        """A request."""
        number, name, arguments = msgpack.unpackb(frame)
        if name == "count":
            task = asyncio.ensure_future(self._stream(number, *arguments))
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
        else:
            self.send((number, _FUNCTIONS[name](*arguments)))

    async def _stream(self, number: int, n: int) -> None:
        """Item by item, with the transport's own flow control; at the end a frame without an item."""
        async for item in count(n):
            self.send((number, item))
            if not self._writable.is_set():
                await self._writable.wait()
        self.send((number,))

    def pause_writing(self) -> None:
        """The socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()


class Client(_Frames):
    """Calls over the socket."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, _Items] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()

    def frame_received(self, frame: bytes) -> None:
        """An answer."""
        number, *result = msgpack.unpackb(frame)
        stream = self._streams.get(number)
        if stream is not None:
            stream.put(result)
        else:
            self._waiting.pop(number).set_result(result[0])

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._number = number = self._number + 1
        future = self._waiting[number] = self._loop.create_future()
        self.send((number, name, arguments))
        return future

    async def add(self, a: int, b: int) -> Any:
        """The small call."""
        return await self._call("add", a, b)

    async def echo(self, value: Any) -> Any:
        """The large call."""
        return await self._call("echo", value)

    async def count(self, n: int) -> AsyncIterator[Any]:
        """The stream."""
        self._number = number = self._number + 1
        items = self._streams[number] = _Items(self.transport)
        self.send((number, "count", (n,)))
        while True:
            while items.queue:
                item = items.queue.popleft()
                if not item:
                    del self._streams[number]
                    return
                yield item[0]
            await items.more()


class _Items:
    """What has come of a stream and was not yet taken; a full queue stops the reading."""

    _MOST = 10_000

    def __init__(self, transport: asyncio.Transport) -> None:
        self.queue: deque[list[Any]] = deque()
        self._transport = transport
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: list[Any]) -> None:
        """One more."""
        self.queue.append(item)
        if len(self.queue) == self._MOST:
            self._transport.pause_reading()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def more(self) -> None:
        """Waits for one; the queue is empty."""
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
