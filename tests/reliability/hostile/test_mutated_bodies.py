"""Mutated bodies, given directly to the decoders: only documented exceptions are raised."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import pathlib
import random
import time
import uuid
import zoneinfo
from array import array
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.service.arguments import ArgumentDecoders
from shmrpc.service.signature import Signature
from shmrpc.values.expected import expected
from shmrpc.wire import control, frames
from shmrpc.wire.codec import UNREADABLE, get_codec
from shmrpc.wire.failure import CallRejected, Failure, decode_failure, encode_failure
from tests.helpers.core_types import KINDS as CORE_TYPES
from tests.helpers.failing_service import make
from tests.helpers.scale import scaled
from tests.helpers.value_trips import FakeBlock
from tests.helpers.vectors import VECTORS, golden
from tests.reliability import figures
from tests.reliability.hostile import attacked_service
from tests.reliability.hostile.hostile_peers import mutated

FAST, REFERENCE = get_codec("msgspec"), get_codec("msgpack")


@dataclasses.dataclass
class Registered:
    number: int
    text: str = ""


shmrpc.register(Registered, name="tests.reliability.Registered")

#: Values of all types that travel.
SENT: Final[list[Any]] = [
    [1, -1, 2**63, 1.5, "text", b"bytes", None, True, {"a": [1, {"b": 2}]}, {1: 2, None: 3}],
    [(1, 2), {1, 2, 3}, frozenset({4}), range(1, 9, 2), slice(1, None, 2), 2**70, -(2**100), 1 + 2j],
    [datetime.date(2026, 1, 2), datetime.time(3, 4, 5, 6), datetime.datetime(2026, 1, 2, 3, 4, 5)],
    [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(1, 2, 3), zoneinfo.ZoneInfo("UTC")],
    [datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "here"))],
    [
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        pathlib.Path("/a/b"),
        attacked_service.Colour.RED,
    ],
    [bytearray(b"abc"), memoryview(b"abcdef"), array("d", [1.0, 2.0])],
    [np.arange(6, dtype="<i4").reshape(2, 3).T, np.float32(1.5), np.zeros(2, "i4,f8"), np.array(["a", "bc"])],
    [Registered(1, "x"), attacked_service.Point(1, 2), {"nested": [Registered(2), {(1, 2): {3}}]}],
]

Read = Callable[[Any], Any]


def read_mutated(
    read: Read, sent: list[bytes], count: int, seed: int, allowed: tuple[type[Exception], ...]
) -> tuple[int, float]:
    """Read `count` mutated bodies; return how many were refused, and how many were read per second."""
    dice = random.Random(seed)
    refused, began = 0, time.monotonic()
    for number in range(count):
        body = mutated(dice, sent[number % len(sent)])
        try:
            read(body)
        except allowed:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{body!r} raised {error!r}") from error
    return refused, count / (time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["msgspec", "msgpack"])
def test_mutated_values_are_read_or_refused(codec: str) -> None:
    reader = get_codec(codec)  # type: ignore[arg-type]
    sent = [body if isinstance(body, bytes) else body.body for body in map(FAST.encode, SENT)]
    kinds: list[Any] = [
        Any,
        list[int],
        dict[str, int],
        set[int],
        tuple[int, str],
        datetime.datetime,
        np.ndarray,
        Registered,
    ]
    reads = [reader.decode, *map(reader.decoder, kinds), *map(reader.quick_decoder, kinds)]
    count, total, refused, rates = scaled(1000, 8_000), 0, 0, []
    for seed, read in enumerate(reads):
        bad, rate = read_mutated(read, sent, count, seed, UNREADABLE)
        total, refused = total + count, refused + bad
        rates.append(rate)
    assert total // 10 < refused < total
    figures.note(
        f"hostile peer: bodies, {codec}", mutated=total, refused=refused, per_second=f"{sum(rates) / len(rates):.0f}"
    )


#: Bodies of the golden vectors, and of types that the core reads without the codec.
PLAIN: Final = [
    *(body for body in map(golden, VECTORS) if len(body) < 1000),
    *map(msgspec.msgpack.encode, [[1, 2.5, None], {"a": 1, "b": [True]}, {1: ["x"]}, [1, "a"], [[1, 2], [], [3]]]),
    *map(msgspec.msgpack.encode, [[[[0.5], []]], {"a": [1, "x"], "b": None}, *SENT[0]]),
]


def test_the_core_and_the_codec_read_the_same_from_mutated_bodies() -> None:
    dice, count, read = random.Random(4), scaled(10_000, 1_000_000), 0

    def by_core(core: _core.ExpectedType, body: bytes) -> tuple[Any] | None:
        try:
            return (core.read(body),)
        except ValueError:
            return None  # The core leaves the body to the codec, which may read it or raise an error.

    readers: list[tuple[_core.ExpectedType, msgspec.msgpack.Decoder[Any], list[bytes]]] = []
    for kind in CORE_TYPES:
        core = expected(kind)
        assert core is not None
        readers.append((core, msgspec.msgpack.Decoder(kind), [body for body in PLAIN if by_core(core, body)]))
    began = time.monotonic()
    for number in range(count):
        core, codec, fitting = readers[number % len(readers)]
        body = mutated(dice, dice.choice(fitting if dice.random() < 0.8 else PLAIN))
        if found := by_core(core, body):
            read += 1
            assert repr(found[0]) == repr(codec.decode(body)), (codec.type, body)
    assert count // 20 < read < count
    rate = count / (time.monotonic() - began)
    figures.note("hostile peer: bodies, the core", mutated=count, read=read, per_second=f"{rate:.0f}")


def test_mutated_parcels_are_read_or_refused() -> None:
    sent = [
        FAST.encode([np.zeros(2000), bytes(50_000), bytearray(40_000), memoryview(bytes(40_000))]),
        FAST.encode(SENT),
    ]
    bodies = [parcel.body if isinstance(parcel, _core.Parcel) else parcel for parcel in sent]
    buffers = [FakeBlock(bytes(16_000)), bytes(50_000), b""]

    def read(body: bytes) -> None:
        for decode in (FAST.decode, REFERENCE.decode, FAST.decoder(list[Any])):
            decode(_core.Parcel(body, buffers))

    refused, rate = read_mutated(read, bodies, scaled(1500, 20_000), 1, UNREADABLE)
    assert refused
    figures.note("hostile peer: parcels", mutated=scaled(1500, 20_000), refused=refused, per_second=f"{rate:.0f}")


def test_mutated_arguments_are_read_or_refused() -> None:
    signature = Signature("tested", "typed", attacked_service.typed)
    full = [1, 1.5, "text", b"raw", [1, 2], {"a": 1}, [1, 2], [1, "b"], "2026-01-02T03:04:05"]
    full += ["1.5", str(uuid.UUID(int=1))]
    encode = msgspec.msgpack.encode
    plain = [encode([7]), encode([*full, "red", {"x": 1, "y": 2}])]
    keywords = [encode([[7], {"text": "x"}]), encode([full[:3], {"point": {"x": 1, "y": 2}, "colour": "blue"}])]
    deadline = [encode([2**62, *full]), encode([1, 7])]
    refused = 0
    for codec in (FAST, REFERENCE):
        decoders = ArgumentDecoders(signature, codec)
        for read, sent in (
            (decoders.positional, plain),
            (decoders.keywords, keywords),
            (decoders.with_deadline, deadline),
        ):
            bad, rate = read_mutated(read, sent, scaled(1000, 10_000), 2, (CallRejected,))
            refused += bad
    assert refused
    figures.note("hostile peer: arguments", mutated=6 * scaled(1000, 10_000), refused=refused, per_second=f"{rate:.0f}")


def test_mutated_frames_and_messages_are_read_or_refused() -> None:
    unreadable = {"args": ["utf-8", b"x", 0, 1, "why"]}
    value = msgspec.msgpack.encode(unreadable)
    failure = Failure("raised", "m", "a.B", "UnicodeDecodeError", "", value, "tb", {"k": "v"})
    raised = [KeyError("x"), make("application"), make("stock"), make("coded"), make("slotted"), make("import")]
    failures = [msgspec.msgpack.encode(failure), b"\x80", *(encode_failure(e, 10_000) for e in raised)]

    def read_failure(body: bytes) -> None:
        assert isinstance(decode_failure(body), shmrpc.ShmrpcError)

    def read_credit(body: bytes) -> None:
        size = frames.decode_credit(body)
        assert size is None or 0 < size <= frames.MAX_MAX_FRAME

    shapes = [None, frames.Shape(streams=True), frames.Shape(inputs=(("numbers", 0),))]
    messages: list[control.Message] = [
        control.Hello(1, 1 << 20),
        control.Welcome("tested", 5, "shmrpc.tested.0", 65536, 1 << 20, ["add", "count", "total"], ("a", "b"), shapes),
        control.Goodbye("reason", True, 7),
        control.StatusReport("tested", 5, 1.5, ["add"], 3),
        control.Refuse("no", True),
        control.Confirm(),
    ]
    count, refused = scaled(2000, 100_000), 0
    for read, sent, allowed in (
        (read_failure, failures, ()),
        (read_credit, [frames.encode_credit(2**n) for n in range(0, 40, 3)], ()),
        (control.decode, [control.encode(message) for message in messages], (shmrpc.RemoteProtocolError,)),
    ):
        bad, rate = read_mutated(read, sent, count, 3, allowed)
        refused += bad
    assert refused
    figures.note("hostile peer: frames and messages", mutated=3 * count, refused=refused, per_second=f"{rate:.0f}")
