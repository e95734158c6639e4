"""pyzmq in a loop over ``ipc://``: a ROUTER for calls and streams with DEALERs that call it, and such a pair for bulk.

The loop watches the descriptor of a socket, and all that has come is taken without waiting: zmq.asyncio, which makes
a future for each message, took two to three times as long for a call. ZeroMQ gathers small messages into larger writes
by itself. Large ones are sent from where they lie; pyzmq copies small ones all the same, which costs less. With
zmq.asyncio bulk waits at the high-water mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import msgspec
import zmq
import zmq.asyncio

from benchmark.processes import Rendezvous
from benchmark.rivals.credit import Credit, Items, Streams
from benchmark.work import MessageTally, add, count, echo

#: Messages that are taken or sent before others in the loop have their turn.
_BURST: Final = 256
#: Messages of bulk, which may be megabytes each, that either side holds before the sender waits.
_BULK_MARK: Final = 32

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class _Messages:
    """A socket without a high-water mark, whose messages are given to a function as they come.

    Its descriptor reports only changes, and sending consumes them too: so a sender checks for messages afterwards.
    """

    def __init__(self, socket: zmq.Socket[bytes], take: Callable[[], None]) -> None:
        self._socket, self._take = socket, take
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._looks = False
        self._loop.add_reader(self._descriptor, self._read)
        self._read()

    def _read(self) -> None:
        self._looks = True
        try:
            for _ in range(_BURST):
                self._take()
        except zmq.Again:
            self._looks = False
        else:
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if not self._socket.closed and cast(int, self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._read()

    def send(self, message: bytes, to: bytes | None = None) -> None:
        """Send without waiting; a large message from where it lies."""
        if to is not None:
            self._socket.send(to, zmq.NOBLOCK | zmq.SNDMORE)
        self._socket.send(message, zmq.NOBLOCK, copy=False)
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)

    def close(self) -> None:
        """End it."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)


def _unbounded(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    # A ROUTER that has come to its mark would drop answers. What is under way is bounded by the calls that wait and by
    # the streams' credit.
    socket.hwm = 0
    return socket


class _Server:
    """The server's side of all connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: Rendezvous) -> None:
        self._calls, self._bulk = _unbounded(context, zmq.ROUTER), _unbounded(context, zmq.ROUTER)
        self._bulk.rcvhwm = _BULK_MARK
        self._calls.bind(f"ipc://{place.socket('calls')}")
        self._bulk.bind(f"ipc://{place.socket('bulk')}")
        self._functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo}
        self._streams = Streams()
        self._taken: dict[bytes, MessageTally] = {}
        self._answers = _Messages(self._calls, self._call)
        self._sums = _Messages(self._bulk, self._take)

    def close(self) -> None:
        """End it."""
        self._streams.close()
        self._answers.close()
        self._sums.close()

    def _call(self) -> None:
        client, message = self._calls.recv(zmq.NOBLOCK), self._calls.recv(zmq.NOBLOCK)
        number, name, arguments = _decode(message)
        key = (client, number)
        if name == "count":
            self._streams.begin(key, functools.partial(self._stream, client, number, *arguments))
        elif name in ("grant", "leave"):
            self._streams.hear(key, name, arguments)
        else:
            self._answers.send(_encode((number, self._functions[name](*arguments))), client)

    async def _stream(self, client: bytes, number: int, n: int, credit: Credit) -> None:
        """Items; at the end a message without one. A client that is gone grants nothing, and so it gets no more."""
        send, made = self._answers.send, 0
        async for item in count(n):
            send(_encode((number, item)), client)
            credit.left -= 1
            made += 1
            if not credit.left or made % _BURST == 0:
                await asyncio.sleep(0)
                await credit.more()
        send(_encode((number,)), client)

    def _take(self) -> None:
        """Receive a bulk message into memory of the receiver; an empty one asks for the count."""
        client, message = self._bulk.recv(zmq.NOBLOCK), self._bulk.recv(zmq.NOBLOCK, copy=False)
        if len(message):
            self._taken.setdefault(client, MessageTally()).take(message.buffer)
        else:
            self._sums.send(_encode(self._taken.pop(client).taken()), client)


class _Client:
    """Calls over a DEALER."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: Rendezvous) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Items] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._context, self._place = context, place
        self._calls = _unbounded(context, zmq.DEALER)
        self._calls.connect(f"ipc://{place.socket('calls')}")
        self._messages = _Messages(self._calls, self._answer)
        self._bulk: zmq.asyncio.Socket | None = None

    def close(self) -> None:
        """End it."""
        self._messages.close()
        if self._bulk is not None:
            self._bulk.close(0)

    def _answer(self) -> None:
        number, *result = _decode(self._calls.recv(zmq.NOBLOCK))
        if number in self._waiting:
            future = self._waiting.pop(number)
            if not future.done():
                future.set_result(result[0])
        elif number in self._streams:
            self._streams[number].put(result)

    def _send(self, *message: Any) -> None:
        self._messages.send(_encode(message))

    def _call(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        self._number = number = self._number + 1
        future = self._waiting[number] = self._loop.create_future()
        self._send(number, name, arguments)
        return future

    async def add(self, a: int, b: int) -> Any:
        return await self._call("add", a, b)

    async def echo(self, value: Any) -> Any:
        return await self._call("echo", value)

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

    async def bulk(self, data: bytes, messages: int) -> None:
        if self._bulk is None:
            self._bulk = zmq.asyncio.Context(self._context).socket(zmq.DEALER)
            self._bulk.sndhwm = _BULK_MARK
            self._bulk.connect(f"ipc://{self._place.socket('bulk')}")
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(self._bulk)
        for _ in range(messages):
            try:
                plain.send(data, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                await self._bulk.send(data, copy=False)
        await self._bulk.send(b"")
        assert _decode(await self._bulk.recv()) == [messages, messages * data[-1]]


@contextlib.asynccontextmanager
async def serve(place: Rendezvous) -> AsyncIterator[None]:
    """Yield the server."""
    with zmq.Context() as context, contextlib.closing(_Server(context, place)):
        yield


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[_Client]:
    """Yield a client. All of a process share a context, and so the thread that writes and reads for them."""
    with contextlib.closing(_Client(zmq.Context.instance(), place)) as client:
        yield client
