"""Mutated frames of every kind: the peer answers each, or ends the connection with a reason."""

from __future__ import annotations

import random
import shutil
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest

import shmrpc
from tests.helpers.hostile_server import ScriptedServer, connected, scripted_server
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.wire_client import (
    ABORT,
    ANY,
    BATCH,
    CALL,
    CALL_DEADLINE,
    CALL_KEYWORDS,
    CALL_WITH,
    CANCEL,
    CREDIT,
    DESCRIBE,
    END,
    FAILURE,
    ITEM,
    RESULT,
    RESULT_WITH,
    STOP,
    Gone,
    WireClient,
    extension,
    padded,
    unpacked,
)
from tests.helpers.wire_memory import HERE, PARCEL, RELEASE, SENDER, Entry, here, parcel, release
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import CHOSEN, Polite, Watched, mutated, served

#: Kinds of failures.
KINDS = {"raised", "endpoint", "arguments", "encode", "size", "deadline", "overloaded"}


def templates(wire: WireClient) -> list[tuple[int, bytes]]:
    """Return opcodes and bodies of valid frames, of every kind that a client sends."""
    pack, n = msgpack.packb, wire.number
    later, soon = time.monotonic_ns() + 10**12, 2**62
    header = {"deadline": later, "metadata": {"who": "hostile", "raw": b"x"}}
    failure = {
        "kind": "raised",
        "message": "m",
        "type_name": "a.B",
        "base": "OSError",
        "value": pack({"args": [2, "x"], "name": "n"}),
        "traceback": "t",
    }
    frames: list[tuple[int, Any]] = [
        (CALL | n("add") << 8, [1, 2]),
        (CALL | n("echo") << 8, [[1, "a", b"b", {"c": [None, True, 1.5]}]]),
        (CALL | n("echo") << 8, [[extension(20, [1, 2]), extension(16, bytes(9)), extension(28, "1.5")]]),
        (CALL | n("later") << 8, [5]),
        (CALL | n("fail") << 8, ["text"]),
        (CALL | n("typed") << 8, [1, 1.5, "a", b"b", [1], {"a": 1}, [1], [1, "b"], "2026-01-02T03:04:05"]),
        (CALL_KEYWORDS | n("options") << 8, [[1, 2], {"text": "x", "more": 1.5}]),
        (CALL_KEYWORDS | n("later") << 8, [[1], {"seconds": 0.001}]),
        (CALL_DEADLINE | n("add") << 8, [later, 1, 2]),
        (CALL_DEADLINE | n("later") << 8, [soon, 1]),
        (CALL_WITH | n("add") << 8, [header, [1], {"b": 2}]),
        (CALL_WITH | n("later") << 8, [{"one_way": True}, [1], {}]),
        (CALL_WITH | n("count") << 8, [header, [5], {}]),
        (BATCH | n("add") << 8, [{}, [[1, 2], [3, 4]]]),
        (BATCH | ANY << 8, [header, [[n("add"), [1, 2], {}], [n("later"), [5], {}], [n("echo"), [[1]], {}]]]),
        (CALL | n("count") << 8, [3]),
        (CALL | n("total") << 8, [None]),
        (CALL | n("doubled") << 8, [None]),
        (DESCRIBE, None),
        (CANCEL, None),
        (ITEM | 1 << 8, 5),
        (END | 1 << 8, None),
        (ABORT | 1 << 8, failure),
        (CREDIT, 1000),
        (STOP | 1 << 8, None),
    ]
    packed = [(code, pack(body)) for code, body in frames]
    data = pack([extension(1, 0)])
    return [
        *packed,
        *((code | PARCEL, parcel([], body)) for code, body in packed[::4]),
        (CALL | PARCEL | n("size") << 8, parcel([here(b"abc")], data, b"abc")),
        (CALL | PARCEL | n("size") << 8, parcel([Entry(SENDER, 0, 0, 8, 300)], data)),
        (CALL | PARCEL | n("size") << 8, parcel([Entry(SENDER, 0, 4096, 0, 9), here(b"abcd")], data, b"abcd")),
        (CALL | PARCEL | n("add") << 8, parcel([Entry(HERE, 0, 0, 0, 3)], None, b"\x92\x01\x02")),
        (RELEASE, release(0, 0)),
    ]


class FrameMutator:
    """A client that sends mutated frames over one connection after the other, and checks all answers."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.outcomes = Counter[str]()
        self.frames = 0
        self._wire: WireClient | None = None

    def connect(self) -> WireClient:
        wire = WireClient("tested", max_frame=1 << 20)
        wire.extent()
        self._templates = templates(wire)
        self._calls = [each for each in self._templates if CALL <= each[0] & 0x7F <= DESCRIBE]
        self._wire = wire
        return wire

    def send_frames(self, count: int) -> None:
        end = self.frames + count
        while self.frames < end:
            wire = self._wire or self.connect()
            try:
                for _ in range(self._dice.randrange(1, 20)):
                    self._send(wire)
                if self._dice.random() < 0.005:
                    self._cut(wire)
                else:
                    self._listen(wire)
            except Gone as gone:
                self._ended(gone)
                self.close()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _send(self, wire: WireClient) -> None:
        dice = self._dice
        code, body = dice.choice(self._calls if dice.random() < 0.9 else self._templates)
        if dice.random() < 0.8:
            # Tables are mutated too, but only sometimes, because a bad table hides the rest of the body.
            table = len(body) - 20 if code & PARCEL and dice.random() < 0.9 else 0
            body = body[:table] + mutated(dice, body[table:]) if table >= 0 else body
        if dice.random() < 0.02:
            code ^= 1 << dice.randrange(32)
        # The id of a call that may be in flight, of the next one, or a random one.
        last = wire._ids
        match dice.randrange(200):
            case 0:
                call_id = dice.choice(CHOSEN)
            case 1:
                call_id = max(0, last - dice.randrange(5))
            case _ if code & 0x7F in (CANCEL, ITEM, END, ABORT, CREDIT, STOP):
                call_id = max(0, last - dice.randrange(5))
            case _:
                wire._ids = call_id = last + 1
        wire.send(code, body[: wire.welcome["max_frame"]], call_id)
        self.frames += 1

    def _cut(self, wire: WireClient) -> None:
        """Send a frame with a wrong length, so that the server misreads what follows or waits for more."""
        code, body = self._dice.choice(self._templates)
        length = max(0, len(body) + self._dice.choice((-9, -8, -1, 1, 8, 9, 2**20, 2**31)))
        whole = struct.pack("=QQ", length | code << 32, wire._ids + 1) + body.ljust(padded(len(body)), b"\0")
        wire._unsent.append((memoryview(whole), 16))
        wire.push()
        self.frames += 1
        self.outcomes["left half-way"] += 1
        self.close()

    def _listen(self, wire: WireClient) -> None:
        """Read all frames, up to the answer of a valid call that is sent after the mutated frames."""
        last = wire.request("add", 20, 22)
        while True:
            try:
                opcode, call_id, body = wire.receive(timeout=20)
            except TimeoutError:
                raise AssertionError("the server neither reads nor answers") from None
            self._read(opcode, body)
            # A mutated call may have had this id before, and its answer may come late.
            if call_id == last and (opcode, body) == (RESULT, b"\x2a"):
                return

    def _read(self, opcode: int, body: bytes) -> None:
        kind = opcode & 0xFF
        assert kind in (RESULT, FAILURE, RESULT_WITH, ITEM, STOP, CREDIT), hex(opcode)
        if kind == FAILURE:
            failure = unpacked(body)
            assert failure["kind"] in KINDS and failure["message"], failure
            self.outcomes[failure["kind"]] += 1
        else:
            self.outcomes["answers" if kind in (RESULT, RESULT_WITH) else "parts of streams"] += 1

    def _ended(self, gone: Gone) -> None:
        message = gone.message
        assert message is not None, "the server closed without a reason"
        assert message["type"] == "goodbye" and message["fault"] and message["reason"], message
        assert self._wire is not None
        self._wire.control.socket.settimeout(20)
        with pytest.raises(Gone, match="None"):  # The server closes after its goodbye.
            self._wire.control.receive()
        self.outcomes["connections ended"] += 1


@pytest.mark.slow
def test_mutated_frames_are_answered_or_end_their_connection() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        mutator = FrameMutator(random.Random(8))
        began = time.monotonic()
        mutator.send_frames(scaled(4000, 80_000))
        seconds = time.monotonic() - began
        mutator.close()
        assert client.add(1, 2) == 3
        assert eventually(lambda: client.descriptors() == before, 20)
        growth = watched.check()
    for kind in ("answers", "arguments", "raised", "endpoint", "connections ended"):
        assert mutator.outcomes[kind], mutator.outcomes
    figures.note(
        "hostile peer: frames",
        mutated=mutator.frames,
        per_second=f"{mutator.frames / seconds:.0f}",
        polite_calls=polite.calls,
        server_grew=growth,
        **{kind.replace(" ", "_"): count for kind, count in mutator.outcomes.items()},
    )


def any_frame(dice: random.Random, call_id: int) -> tuple[int, int, bytes]:
    """Return opcode, id and body of a frame that a server might send, valid or invalid."""
    pack = msgpack.packb
    failure = {"kind": dice.choice(sorted(KINDS)), "message": "m", "base": "KeyError", "value": pack({"args": [1]})}
    code, body = dice.choice(
        [
            (RESULT, pack(7)),
            (RESULT, pack([1, {"a": extension(18, [1, 2])}])),
            (FAILURE, pack(failure)),
            (RESULT_WITH, pack([{"k": b"v"}, 7])),
            (ITEM, pack([1, 2])),
            (CREDIT | 1 << 8, pack(1000)),
            (CREDIT, pack(1 << 31)),
            (STOP | 1 << 8, pack(None)),
            (RESULT | PARCEL, parcel([here(b"abc")], pack([extension(1, 0)]), b"abc")),
            (RESULT | PARCEL, parcel([Entry(SENDER, 0, 0, 0, 9)])),
            (ITEM | PARCEL, parcel([])),
            (RELEASE, release(0, 0)),
        ]
    )
    if dice.random() < 0.6:
        body = mutated(dice, body)
    if dice.random() < 0.1:
        code ^= 1 << dice.randrange(32)
    return code, dice.choice([call_id] * 6 + [call_id + 1, 0, dice.choice(CHOSEN)]), body


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_mutated_frames_of_a_server_are_answers_or_errors(runtime: Path, blocking: bool) -> None:
    dice, outcomes = random.Random(13), Counter[str]()

    def send_mutated(server: ScriptedServer, call_id: int) -> None:
        for _ in range(dice.randrange(1, 12)):
            outcomes["mutated"] += 1
            server.send(*any_frame(dice, call_id))

    for number in range(scaled(20, 400)):
        with scripted_server(runtime, send_mutated):
            async with connected(blocking) as client:
                for _ in range(2):
                    try:
                        await (client.stream(5) if number % 3 == 0 else client.call("add", 1, 2))
                        outcomes["answered"] += 1
                    except (shmrpc.CallError, shmrpc.RemoteProtocolError) as error:
                        outcomes[type(error).__name__] += 1
        shutil.rmtree(runtime)
    assert outcomes["answered"] and outcomes["RemoteProtocolError"] and outcomes["DecodeError"]
    figures.note(f"hostile peer: frames of a server, {'threads' if blocking else 'loop'}", **outcomes)
