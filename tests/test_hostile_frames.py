"""A server that sends what no server should: the client says so, or ignores what may be late, and never hangs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.protocol import control
from shmrpc.protocol.frames import (
    ABORT,
    CALL,
    CANCEL,
    CREDIT,
    DESCRIBE,
    END,
    FAILURE,
    ITEM,
    NIL,
    RESULT,
    RESULT_WITH,
    STOP,
    Shape,
    opcode,
)
from shmrpc.transport.shm import handshake

#: Sends a frame: opcode, call id, body.
Send = Callable[[int, int, bytes], object]
#: What the server does at the first call, of this id, before it answers.
Misdeed = Callable[[Send, int], object]

OFFER = handshake.Offer("tested", ["add", "count", "total"], {1: Shape(streams=True), 2: Shape(inputs={"numbers": 0})})
SUM = msgpack.packb(3)


class Babbler:
    """A server of one client. It answers each call with 3, and the first not before its misdeed."""

    def __init__(self, runtime: Path, misdeed: Misdeed) -> None:
        self._misdeed = misdeed
        #: The client's last words.
        self.heard: control.Message | None = None
        runtime.mkdir(mode=0o700)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.settimeout(10)
        self._listening.bind(str(runtime / "tested.sock"))
        self._listening.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listening, self._listening.accept()[0] as client:
            hello = control.decode(client.recv(1000))
            assert isinstance(hello, control.Hello)
            steps = handshake.server_side(hello, OFFER, handshake.Settings(1 << 20, spin=0))
            packet, eventfds = next(steps)
            socket.send_fds(client, [packet], eventfds)
            try:
                steps.send((client.recv(1000), []))
            except StopIteration as stop:
                established: handshake.Established = stop.value
            client.send(control.encode(control.Ready()))
            client.settimeout(0)
            try:
                self._answer(client, established.channel)
            finally:
                established.channel.close()
                os.close(established.eventfd)

    def _answer(self, client: socket.socket, channel: _core.Channel) -> None:
        first = True
        while True:
            with contextlib.suppress(BlockingIOError):
                packet = client.recv(1000)
                self.heard = control.decode(packet) if packet else None
                return
            channel.wake()  # What has found no room yet is sent.
            frame = channel.receive()
            if frame is None:
                time.sleep(0.001)
            elif frame[0] & 0xFF == CALL:
                if first:
                    first = False
                    self._misdeed(channel.send, frame[1])
                channel.send(RESULT, frame[1], SUM)

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def babbling(runtime: Path, misdeed: Misdeed) -> Iterator[Babbler]:
    babbler = Babbler(runtime, misdeed)
    yield babbler
    babbler.join()


class Caller:
    """Either client, awaited alike."""

    def __init__(self, client: Any, *, blocking: bool) -> None:
        self._client = client
        self._blocking = blocking

    async def call(self, name: str, *args: Any) -> Any:
        result = getattr(self._client, name)(*args)
        return result if self._blocking else await result

    async def stream(self, *args: Any) -> list[Any]:
        if self._blocking:
            return list(self._client.count(*args))
        return [item async for item in self._client.count(*args)]


@contextlib.asynccontextmanager
async def connected(blocking: bool) -> AsyncIterator[Caller]:
    if blocking:
        with shmrpc.sync.connect("tested", timeout=5) as client:
            yield Caller(client, blocking=True)
    else:
        async with shmrpc.connect("tested", timeout=5) as client:
            yield Caller(client, blocking=False)


def sends(code: int, body: bytes = NIL) -> Misdeed:
    """Sends a frame of the call."""
    return lambda send, call_id: send(code, call_id, body)


FAULTS = [
    (sends(ITEM), "item"),
    (sends(ITEM, msgpack.packb({"kind": "raised", "message": "x"})), "item"),
    (sends(opcode(ITEM, 1)), "0x109"),
    (sends(CALL), "opcode 0x2"),
    (sends(CANCEL), "opcode 0x8"),
    (sends(END), "opcode 0xa"),
    (sends(ABORT), "opcode 0xb"),
    (sends(DESCRIBE), "opcode 0x7"),
    (sends(200), "opcode 0xc8"),
    (sends(opcode(RESULT, 1)), "opcode 0x100"),
    (sends(opcode(FAILURE, 1)), "opcode 0x101"),
    (sends(opcode(RESULT_WITH, 1)), "opcode 0x10e"),
    (sends(CREDIT, b"\x00"), "credit"),
    (sends(opcode(CREDIT, 1), msgpack.packb("x")), "credit"),
]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("misdeed", "words"), FAULTS)
async def test_a_frame_that_no_server_sends_ends_the_connection(
    runtime: Path, misdeed: Misdeed, words: str, blocking: bool
) -> None:
    with babbling(runtime, misdeed) as babbler:
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.call("add", 1, 2)
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.call("add", 1, 2)
    assert isinstance(babbler.heard, control.Goodbye)
    assert babbler.heard.fault
    assert words in babbler.heard.reason


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        (sends(opcode(ITEM, 1)), "0x109"),
        (sends(END), "opcode 0xa"),
        (sends(opcode(RESULT, 1)), "opcode 0x100"),
        (sends(opcode(CREDIT, 1), msgpack.packb(-1)), "credit"),
    ],
)
async def test_the_same_in_a_stream(runtime: Path, misdeed: Misdeed, words: str, blocking: bool) -> None:
    with babbling(runtime, misdeed) as babbler:
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.stream(1)
    assert isinstance(babbler.heard, control.Goodbye)
    assert babbler.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    "misdeed",
    [
        sends(opcode(CREDIT, 1), msgpack.packb(1000)),
        sends(opcode(CREDIT, 7), msgpack.packb(1000)),
        sends(opcode(STOP, 1)),
        sends(STOP),
        lambda send, call_id: send(ITEM, call_id + 1000, NIL),
        lambda send, call_id: send(RESULT, call_id + 1000, NIL),
        lambda send, call_id: send(FAILURE, 0, b""),
        lambda send, call_id: send(opcode(CREDIT, 1), (1 << 64) - 1, msgpack.packb(1)),
    ],
)
@pytest.mark.parametrize("name", ["add", "total"])
async def test_what_may_be_late_is_ignored(runtime: Path, misdeed: Misdeed, blocking: bool, name: str) -> None:
    arguments: tuple[Any, ...] = (1, 2) if name == "add" else ([],)
    with babbling(runtime, misdeed) as babbler:
        async with connected(blocking) as client:
            assert await client.call(name, *arguments) == 3
            assert await client.call("add", 1, 2) == 3
    assert isinstance(babbler.heard, control.Goodbye)
    assert not babbler.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("code", [RESULT, FAILURE, RESULT_WITH])
async def test_a_second_answer_is_ignored(runtime: Path, code: int, blocking: bool) -> None:
    def twice(send: Send, call_id: int) -> None:
        send(RESULT, call_id, SUM)
        send(code, call_id, NIL)

    with babbling(runtime, twice):
        async with connected(blocking) as client:
            for _ in range(3):
                assert await client.call("add", 1, 2) == 3


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("code", [FAILURE, RESULT_WITH])
async def test_an_answer_that_cannot_be_read_fails_its_call(runtime: Path, code: int, blocking: bool) -> None:
    with babbling(runtime, sends(code, b"\xc1")):
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.DecodeError):
                await client.call("add", 1, 2)
            assert await client.call("add", 1, 2) == 3


def flood(send: Send, call_id: int) -> None:
    """Twice the credit, in items of a kilobyte; without a pause but for room."""
    for _ in range(256):
        send(ITEM, call_id, msgpack.packb(bytes(1000)))


async def test_items_without_credit_end_the_connection(runtime: Path) -> None:
    with babbling(runtime, flood) as babbler:
        async with shmrpc.connect("tested", timeout=5) as client:
            items = client.count(1)
            assert await anext(items) == bytes(1000)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                await client.add(1, 2)  # Meanwhile nobody consumes the stream.
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                async for _ in items:
                    pass
    assert isinstance(babbler.heard, control.Goodbye)
    assert babbler.heard.fault


def test_items_without_credit_end_the_connection_of_threads_too(runtime: Path) -> None:
    with babbling(runtime, flood) as babbler:
        with shmrpc.sync.connect("tested", timeout=5) as client:
            items = client.count(1)
            assert next(items) == bytes(1000)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                client.add(1, 2)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                list(items)
    assert isinstance(babbler.heard, control.Goodbye)
    assert babbler.heard.fault
