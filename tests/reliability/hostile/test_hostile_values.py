"""Invalid MessagePack: a clear error of that call alone, or a value. The connection goes on."""

from __future__ import annotations

import functools
import random
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.wire.codec import UNREADABLE, get_codec
from shmrpc.wire.frames import FAILURE as FAILED
from shmrpc.wire.frames import RESULT as ANSWERED
from shmrpc.wire.frames import RESULT_WITH
from tests.helpers.corrupt_arrays import ARRAY, CORRUPT_ARRAYS
from tests.helpers.hostile_server import ScriptedServer, connected, scripted_server
from tests.helpers.scale import scaled
from tests.helpers.wire_client import (
    CALL,
    CALL_DEADLINE,
    CALL_KEYWORDS,
    CALL_WITH,
    FAILURE,
    RESULT,
    WireClient,
    unpacked,
)
from tests.helpers.wire_memory import PARCEL, SENDER, Entry, here, parcel
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import Polite, Watched, mutated, served

#: The modulus of Python's hashes of whole numbers.
PRIME: Final = 2**61 - 1


def ext(code: int, payload: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(payload), code) + payload


def integer(value: int) -> bytes:
    """Encode an integer over 64 bits as an extension."""
    data: bytes = msgpack.packb(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    return ext(16, data)


def mapping(keys: list[bytes]) -> bytes:
    return b"\xdf" + struct.pack(">I", len(keys)) + b"".join(key + b"\xc0" for key in keys)


def nested(depth: int, opening: bytes, end: bytes = b"\xc0") -> bytes:
    return opening * depth + end


def nested_extensions(depth: int) -> bytes:
    body = b"\xc0"
    for _ in range(depth):
        body = ext(20, b"\x91" + body)
    return body


def claimed_length(code: int) -> bytes:
    """Return a length of 2**32 - 1 with nothing behind it."""
    return bytes([code]) + b"\xff\xff\xff\xff" + (b"\x05" if code == 0xC9 else b"")


#: Bodies that hold no valid value.
UNREAD: Final[dict[str, bytes]] = {
    "nothing": b"",
    "the byte that is none": b"\xc1",
    "two values": b"\x01\x02",
    "arrays 100,000 deep": nested(100_000, b"\x91"),
    "maps 100,000 deep": nested(100_000, b"\x81\xa1a"),
    "keys 100,000 deep": nested(100_000, b"\x81"),
    "arrays 100,000 deep without an end": nested(100_000, b"\x91", b""),
    "extensions 500 deep": nested_extensions(500),
    **{f"4 GiB of {code:#x}": claimed_length(code) for code in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)},
    "2**32 - 1 elements and a few": claimed_length(0xDD) + b"\x01" * 1000,
    "2**32 - 1 pairs and a few": claimed_length(0xDF) + b"\x01" * 1000,
    "arrays that claim much, many times": b"\xdd\x00\xff\xff\xff" * 200,
    "text that is no UTF-8": b"\xa2\xff\xfe",
    "a surrogate": b"\xa3\xed\xa0\x80",
    "half a character": b"\xa1\xe2",
    "a longer form of a zero": b"\xa2\xc0\x80",
    "text beyond Unicode": b"\xa4\xf7\xbf\xbf\xbf",
    "a key that is no UTF-8": b"\x81\xa1\xff\x01",
    "a map as a key": b"\x81\x80\x01",
    "a set as a key": b"\x81" + ext(18, b"\x91\x01") + b"\x01",
    "a timestamp of 5 bytes": ext(-1, bytes(5)),
    "a timestamp of no bytes": ext(-1, b""),
    "a timestamp with too many nanoseconds": ext(-1, struct.pack(">Iq", 2**32 - 1, 0)),
    "a timestamp far off": ext(-1, struct.pack(">Iq", 0, 2**62)),
    "a timestamp before all": ext(-1, struct.pack(">Iq", 0, -(2**63))),
    "an extension whose payload is none": ext(18, b"\xc1"),
    "an extension whose payload is cut": ext(20, b"\x93\x01"),
    "an extension without a payload": ext(28, b""),
    "a number of no digits": ext(28, msgpack.packb("")),
    "a fraction by zero": ext(29, msgpack.packb([1, 0])),
    "a date that is none": ext(23, msgpack.packb("2026-02-30")),
    "a pickle": ext(35, msgpack.packb([b"cos\nsystem\n(S'true'\ntR.", []])),
}
#: Bodies of unusual values.
READ: Final[dict[str, bytes]] = {
    "nan": b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01",
    "an infinity": b"\xcb\x7f\xf0" + bytes(6),
    "arrays 400 deep": nested(400, b"\x91"),
    "maps 400 deep": nested(400, b"\x81\xa1a"),
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "keys that are equal": b"\x83\x01\xa1x\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa1y\xc3\xa1z",
    "nan as a key, often": mapping([b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01"] * 1000),
    "an unknown extension": ext(99, b"anything"),
    "another one": ext(-77, b""),
    "20,000 texts as keys": mapping([msgpack.packb(f"key {number}") for number in range(20_000)]),
    "20,000 numbers as keys": mapping([msgpack.packb(number << 40) for number in range(20_000)]),
    "whole floats as keys": mapping([msgpack.packb(float(2**n)) for n in range(1000)]),
    "the longest forms": b"\xdd\x00\x00\x00\x02\xd3\x00\x00\x00\x00\x00\x00\x00\x01\xdb\x00\x00\x00\x01a",
}


def arguments(value: bytes) -> bytes:
    return b"\x91" + value


def call_with_body(wire: WireClient, endpoint: str, body: bytes, kind: int = CALL) -> tuple[int, Any]:
    """Call an endpoint with a body; return the answer's opcode and body. Checks that the next call still works."""
    call = wire.send(kind | wire.number(endpoint) << 8, body)
    opcode, answered, came = wire.receive(timeout=60)
    assert answered == call
    assert wire.call("add", 1, 2) == 3
    return opcode, came


@pytest.mark.slow
def test_an_undecodable_argument_is_an_error_of_its_call_alone() -> None:
    with served() as process, Polite("tested"), WireClient("tested", max_frame=1 << 20) as wire:
        watched = Watched(process)
        for name, value in UNREAD.items():
            for endpoint in ("echo", "size", "typed", "later"):
                opcode, came = call_with_body(wire, endpoint, arguments(value))
                assert opcode == FAILURE, (name, endpoint)
                failure = unpacked(came)
                assert failure["kind"] == "arguments" and endpoint in failure["message"], (name, failure)
            for kind, before in (
                (CALL_KEYWORDS, b"\x92\x91"),
                (CALL_WITH, b"\x93\x80\x91"),
                (CALL_DEADLINE, b"\x92\x01"),
            ):
                opcode, came = call_with_body(wire, "echo", before + value + b"\x80" * (kind != CALL_DEADLINE), kind)
                assert opcode == FAILURE and unpacked(came)["kind"] in ("arguments", "deadline"), (name, kind)
        watched.check()


def test_unusual_values_are_read() -> None:
    with served() as process, Polite("tested"), WireClient("tested", max_frame=1 << 20) as wire:
        watched = Watched(process)
        for name, value in READ.items():
            opcode, came = call_with_body(wire, "echo", arguments(value))
            assert opcode == RESULT, (name, unpacked(came))
            opcode, came = call_with_body(wire, "add", b"\x92" + value + b"\x01")
            assert opcode == FAILURE and unpacked(came)["kind"] == "arguments", name
        watched.check()


def wrong_arguments() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield arguments that do not fit a parameter, and the name of the parameter that the error contains."""
    nan, infinity = float("nan"), float("inf")
    wrong: list[Any] = [nan, infinity, -infinity, 1.5, 2.0**70, "1", None, [], {}, b"1", msgpack.ExtType(99, b"")]
    for number in wrong:
        yield {"number": number}, "number"
        yield {"number": 1, "items": [1, number]}, "items"
        yield {"number": 1, "mapping": {"a": number}}, "mapping"
    for name, value in {
        "real": "nan",
        "text": b"bytes",
        "raw": 5,
        "mapping": {1: 2},
        "unique": [[]],
        "pair": [1],
        "when": "yesterday",
        "amount": "one",
        "key": "short",
        "colour": "green",
        "point": {"x": 1},
    }.items():
        yield {"number": 1, name: value}, name


def test_the_error_of_an_unfit_argument_names_its_parameter() -> None:
    with served(), Polite("tested"), WireClient("tested", max_frame=1 << 20) as wire:
        for keywords, name in wrong_arguments():
            call = wire.request("typed", **keywords)
            opcode, answered, came = wire.receive(timeout=60)
            assert (opcode, answered) == (FAILURE, call), keywords
            failure = unpacked(came)
            assert failure["kind"] == "arguments" and name in failure["message"], failure


def sends(code: int, body: bytes, server: ScriptedServer, call_id: int) -> None:
    """Answer a call with a chosen frame."""
    server.send(code, call_id, body)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
@pytest.mark.parametrize("code", [ANSWERED, FAILED, RESULT_WITH])
async def test_an_undecodable_result_fails_its_call_alone(runtime: Path, blocking: bool, code: int) -> None:
    """The first call gets an undecodable answer, the next one a valid one."""
    bodies = [*UNREAD.values()]
    if code != ANSWERED:
        bodies = [*bodies, *READ.values()]

    for body in bodies[:: scaled(4, 1)]:
        with scripted_server(runtime, functools.partial(sends, code, body)):
            async with connected(blocking) as client:
                with pytest.raises((shmrpc.DecodeError, shmrpc.RemoteError)):
                    await client.call("add", 1, 2)
                assert await client.call("add", 1, 2) == 3
        shutil.rmtree(runtime)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_result_with_an_inconsistent_array_fails_its_call(runtime: Path, blocking: bool) -> None:
    """Inconsistent arrays follow each other on one connection, in the frame and in a block; then a valid array."""
    array = np.arange(3.0)
    data, sent = array.tobytes(), [*CORRUPT_ARRAYS.values(), ["<f8", [3], 0]]

    def answer(server: ScriptedServer, call_id: int) -> None:
        for number, payload in enumerate(2 * sent):
            if number:
                call_id = next_call(server)
            body = msgpack.packb(msgpack.ExtType(ARRAY, msgpack.packb(payload)))
            if number < len(sent):
                server.send(ANSWERED | PARCEL, call_id, parcel([here(data)], body, data))
                continue
            block = server.channel.allocate(len(data))
            memoryview(block)[:] = data
            server.channel.send(ANSWERED, call_id, _core.Parcel(body, [block]))

    with scripted_server(runtime, answer):
        async with connected(blocking) as client:
            for _ in range(2):
                for _ in CORRUPT_ARRAYS:
                    with pytest.raises(shmrpc.DecodeError):
                        await client.call("add", 1, 2)
                result = await client.call("add", 1, 2)
                assert result.tolist() == array.tolist() and not result.flags.writeable
                del result
            assert await client.call("add", 1, 2) == 3


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_mutated_answers_are_values_or_errors(runtime: Path, blocking: bool) -> None:
    dice, outcomes = random.Random(12), Counter[str]()
    encode = get_codec("msgspec").encode
    failure = {
        "kind": "raised",
        "message": "m",
        "type_name": "a.B",
        "base": "OSError",
        "value": encode({"args": [2, "x"], "name": "n"}),
        "traceback": "t",
    }
    good = [(ANSWERED, encode([1, {2}, 2**70])), (FAILED, encode(failure)), (RESULT_WITH, encode([{"k": "v"}, 5]))]
    count = scaled(150, 5_000)

    def answer(server: ScriptedServer, call_id: int) -> None:
        for number in range(count):
            if number:
                call_id = next_call(server)
            code, body = dice.choice(good)
            assert isinstance(body, bytes)
            server.send(code, call_id, mutated(dice, body))

    with scripted_server(runtime, answer):
        async with connected(blocking) as client:
            for _ in range(count):
                try:
                    await client.call("add", 1, 2)
                    outcomes["values"] += 1
                except shmrpc.CallError as error:
                    outcomes[type(error).__name__] += 1
            assert await client.call("add", 1, 2) == 3
    assert outcomes["values"] and outcomes["DecodeError"]
    figures.note(f"hostile peer: answers, {'threads' if blocking else 'loop'}", **outcomes)


def next_call(server: ScriptedServer) -> int:
    """Return the id of the next call that arrives."""
    while True:
        server.channel.wake()
        frame = server.channel.receive()
        if frame is not None and frame[0] & 0xFF == CALL:
            return frame[1]
        time.sleep(0.0005)


def colliding(count: int) -> bytes:
    """Return a map whose keys all have the hash 0."""
    return mapping([integer(PRIME * (1000 + number)) for number in range(count)])


def test_colliding_keys_take_quadratic_time() -> None:
    """No bound protects against this: the hashes of Python's ints and tuples are predictable. Declared types refuse."""
    decode = get_codec("msgspec").decode
    figure = {}
    for count in (1000, scaled(2000, 8000)):
        began = time.monotonic()
        assert len(decode(colliding(count))) == count
        figure[f"of_{count}"] = f"{time.monotonic() - began:.2f} s"
    with pytest.raises(UNREADABLE):
        get_codec("msgspec").quick_decoder(dict[str, None])(colliding(100))
    figures.note("hostile peer: colliding keys", **figure)


@pytest.mark.slow
def test_a_body_of_small_values_takes_its_size_times_a_factor() -> None:
    """The limit counts bytes of bodies; the Python objects of one byte may take 72 bytes."""
    with served() as process, Polite("tested"), WireClient("tested", max_frame=1 << 20) as wire:
        figure = {}
        for name, element in {"empty_maps": b"\x80", "empty_arrays": b"\x90", "empty_texts": b"\xa0"}.items():
            watched = Watched(process)
            count = (1 << 20) - 6
            opcode, _ = call_with_body(wire, "size", arguments(b"\xdd" + struct.pack(">I", count) + element * count))
            assert opcode == RESULT
            watched.check()
            figure[name] = f"{watched.growth() / (1 << 20):.0f} bytes for one"
    figures.note("hostile peer: a body of a byte's values", **figure)


def test_a_table_with_as_many_entries_as_a_frame_holds_is_read() -> None:
    """Each entry is a loan of the same block: they end singly, and the client gets a notice of each."""
    with served() as process, Polite("tested"), WireClient("tested", max_frame=1 << 20) as wire:
        watched = Watched(process)
        wire.extent()
        body = arguments(b"\x01")
        lines = ((1 << 20) - 8 - len(body)) // 32
        wire.send(CALL | PARCEL | wire.number("size") << 8, parcel([Entry(SENDER, 0, 0, 0, 1)] * lines, body))
        opcode, _, came = wire.receive(timeout=60)
        assert (opcode, came) == (RESULT, b"\x00")
        while len(wire.given_back) < lines:
            assert wire.call("add", 1, 2) == 3
        assert wire.given_back == [(0, 0)] * lines
        figures.note("hostile peer: lines of a table", lines=lines, server_grew=watched.check())
