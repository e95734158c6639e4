"""A server that sends frames that no server should: the client raises, or ignores late frames, and never hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

import shmrpc
from shmrpc.wire import control
from shmrpc.wire.frames import (
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
    opcode,
)
from tests.helpers.hostile_server import SUM, Misdeed, ScriptedServer, connected, scripted_server


def sends(code: int, body: bytes = NIL) -> Misdeed:
    """Return a misdeed that sends a frame of the call."""
    return lambda server, call_id: server.send(code, call_id, body)


FAULTS = [
    (sends(ITEM), "item"),
    (sends(ITEM, msgpack.packb({"kind": "raised", "message": "x"})), "item"),
    (sends(opcode(ITEM, 1)), "0x109"),
    (sends(CALL), "opcode 0x2"),
    (sends(CANCEL), "opcode 0x8"),
    (sends(END), "opcode 0xa"),
    (sends(ABORT), "opcode 0xb"),
    (sends(DESCRIBE), "opcode 0x7"),
    (sends(100), "opcode 0x64"),
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
    with scripted_server(runtime, misdeed) as hostile:
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.call("add", 1, 2)
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.call("add", 1, 2)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault
    assert words in hostile.heard.reason


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
    with scripted_server(runtime, misdeed) as hostile:
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                await client.stream(1)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    "misdeed",
    [
        sends(opcode(CREDIT, 1), msgpack.packb(1000)),
        sends(opcode(CREDIT, 7), msgpack.packb(1000)),
        sends(opcode(STOP, 1)),
        sends(STOP),
        lambda server, call_id: server.send(ITEM, call_id + 1000, NIL),
        lambda server, call_id: server.send(RESULT, call_id + 1000, NIL),
        lambda server, call_id: server.send(FAILURE, 0, b""),
        lambda server, call_id: server.send(opcode(CREDIT, 1), (1 << 64) - 1, msgpack.packb(1)),
    ],
)
@pytest.mark.parametrize("name", ["add", "total"])
async def test_frames_that_may_be_late_are_ignored(runtime: Path, misdeed: Misdeed, blocking: bool, name: str) -> None:
    arguments: tuple[Any, ...] = (1, 2) if name == "add" else ([],)
    with scripted_server(runtime, misdeed) as hostile:
        async with connected(blocking) as client:
            assert await client.call(name, *arguments) == 3
            assert await client.call("add", 1, 2) == 3
    assert isinstance(hostile.heard, control.Goodbye)
    assert not hostile.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("code", [RESULT, FAILURE, RESULT_WITH])
async def test_a_second_answer_is_ignored(runtime: Path, code: int, blocking: bool) -> None:
    def twice(server: ScriptedServer, call_id: int) -> None:
        server.send(RESULT, call_id, SUM)
        server.send(code, call_id, NIL)

    with scripted_server(runtime, twice):
        async with connected(blocking) as client:
            for _ in range(3):
                assert await client.call("add", 1, 2) == 3


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("code", [FAILURE, RESULT_WITH])
async def test_an_answer_that_cannot_be_read_fails_its_call(runtime: Path, code: int, blocking: bool) -> None:
    with scripted_server(runtime, sends(code, b"\xc1")):
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.DecodeError):
                await client.call("add", 1, 2)
            assert await client.call("add", 1, 2) == 3


def flood(server: ScriptedServer, call_id: int) -> None:
    """Twice the credit, in items of a kilobyte; without a pause but for room."""
    for _ in range(256):
        server.send(ITEM, call_id, msgpack.packb(bytes(1000)))


async def test_items_without_credit_end_the_connection(runtime: Path) -> None:
    with scripted_server(runtime, flood) as hostile:
        async with shmrpc.connect("tested", timeout=5) as client:
            items = client.count(1)
            assert await anext(items) == bytes(1000)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                await client.add(1, 2)  # No task consumes the stream meanwhile.
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                async for _ in items:
                    pass
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault


def test_items_without_credit_end_the_connection_of_threads_too(runtime: Path) -> None:
    with scripted_server(runtime, flood) as hostile:
        with shmrpc.sync.connect("tested", timeout=5) as client:
            items = client.count(1)
            assert next(items) == bytes(1000)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                client.add(1, 2)
            with pytest.raises(shmrpc.RemoteProtocolError, match="no credit"):
                list(items)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault
