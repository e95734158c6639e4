"""Both codecs write the bytes that the MessagePack specification says, and read them back."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import random
import re
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from shmrpc import _core
from shmrpc.wire.codec import UNREADABLE, Codec, body_weight, get_codec
from tests.helpers.scale import scaled
from tests.helpers.vectors import VECTORS, golden
from tests.values.case_names import case_name


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass
class Point:
    x: int
    y: int


@dataclasses.dataclass
class Line:
    name: str
    points: list[Point]


class Order(msgspec.Struct):
    item: str
    count: int


class Node(msgspec.Struct):
    n: Node | None


#: For each kind: the type to decode for, and the value from its description.
KINDS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "int": (int, int),
    "float": (float, float),
    "text": (str, lambda value: value[0] * value[1]),
    "bin": (bytes, lambda value: bytes.fromhex(value[0]) * value[1]),
    "array": (list[int], lambda value: [value[0]] * value[1]),
    "map": (dict[Any, Any], lambda value: {tuple(k) if isinstance(k, list) else k: v for k, v in value}),
    "datetime": (datetime.datetime, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.fromisoformat),
    "timedelta": (datetime.timedelta, lambda value: datetime.timedelta(*value)),
    "uuid": (uuid.UUID, uuid.UUID),
    "decimal": (decimal.Decimal, decimal.Decimal),
    "enum": (Colour, Colour),
    "intenum": (Level, Level),
    "complex": (complex, lambda value: complex(*value)),
    "frozenset": (frozenset[int], frozenset),
    "range": (range, lambda value: range(*value)),
    "slice": (slice, lambda value: slice(*value)),
    "timezone": (datetime.timezone, lambda value: datetime.timezone(datetime.timedelta(seconds=value))),
    "fraction": (fractions.Fraction, fractions.Fraction),
    "file": (Path, Path),
    "bytearray": (bytearray, bytearray.fromhex),
    "map of sets": (dict[Any, Any], lambda value: {frozenset({value}): 1, 1: {value}}),
    "set": (set[int], set),
    "tuple": (tuple[int, str], tuple),
    "namedtuple": (Pair, lambda value: Pair(*value)),
    "dataclass": (Point, lambda value: Point(*value)),
    "path": (Line, lambda value: Line(value[0], [Point(*point) for point in value[1]])),
    "struct": (Order, lambda value: Order(*value)),
}


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


def same(got: Any, expected: Any) -> bool:
    """Return True if two values are equal and of one type, where -0.0 is not 0.0."""
    if isinstance(expected, float):
        return type(got) is float and struct.pack(">d", got) == struct.pack(">d", expected)
    return type(got) is type(expected) and bool(got == expected)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector(codec: Codec, vector: dict[str, Any]) -> None:
    body = golden(vector)
    kind, build = KINDS.get(vector.get("kind", ""), (Any, lambda value: value))
    value = build(vector["value"])
    if not vector.get("only_read"):
        encoded = bytes(codec.encode(value))
        assert encoded.hex() == body.hex() if len(body) < 100 else encoded == body
    assert same(codec.decode(body), vector.get("plain", value))
    assert same(codec.decoder(kind)(body), value)


def test_the_vectors_have_names_of_their_own() -> None:
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("cc01", 1),
        ("cf0000000000000001", 1),
        ("d001", 1),
        ("d3ffffffffffffffff", -1),
        ("ca3fc00000", 1.5),
        ("caff800000", -math.inf),
        ("d90161", "a"),
        ("db0000000161", "a"),
        ("c60000000161", b"a"),
        ("dc000101", [1]),
        ("dd0000000101", [1]),
        ("de000101c0", {1: None}),
        ("df0000000101c0", {1: None}),
        ("82010101c0", {1: None}),
        ("81d6ff0000000001", {datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC): 1}),
        ("c70cff0000000000000000000000ff", datetime.datetime(1970, 1, 1, 0, 4, 15, tzinfo=datetime.UTC)),
    ],
)
def test_longer_forms_than_needed_are_read(codec: Codec, body: str, value: Any) -> None:
    assert same(codec.decode(bytes.fromhex(body)), value)


def test_an_unknown_extension_arrives_as_one(codec: Codec) -> None:
    for body, code in (("d46400", 100), ("d4fe00", -2), ("c70164ab", 100)):
        value = codec.decode(bytes.fromhex(body))
        assert isinstance(value, msgspec.msgpack.Ext)
        assert value.code == code
        assert isinstance(codec.decoder(msgspec.msgpack.Ext)(bytes.fromhex(body)), msgspec.msgpack.Ext)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        object(),
        [object()],
        {"a": object()},
        (object(),),
        {1: {2: [{"\ud800"}]}},
        {("a", object()): 1},
    ],
    ids=case_name,
)
def test_values_that_no_codec_carries_are_refused(codec: Codec, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        codec.encode(value)


NESTED_TOO_DEEP = 100_000
#: By name: bytes that are no MessagePack, or none that has a value here.
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "trailing bytes": b"\x01\x02",
    "trailing nil": b"\x90\xc0",
    "reserved byte": b"\xc1",
    "reserved byte in an array": b"\x92\x01\xc1",
    "truncated uint 16": b"\xcd\x01",
    "truncated float 64": b"\xcb\0\0\0\0\0\0\0",
    "truncated fixstr": b"\xa3ab",
    "truncated length": b"\xdb\0\0\0",
    "truncated array": b"\x93\x01\x02",
    "truncated map": b"\x82\x01\x02\x03",
    "truncated timestamp": b"\xd6\xff\0\0\0",
    "str 32 of 4 GiB": b"\xdb\xff\xff\xff\xffab",
    "bin 32 of 4 GiB": b"\xc6\xff\xff\xff\xffab",
    "ext 32 of 4 GiB": b"\xc9\xff\xff\xff\xff\x05ab",
    "array 32 of 4 G elements": b"\xdd\xff\xff\xff\xff\x01",
    "map 32 of 4 G pairs": b"\xdf\xff\xff\xff\xff\x01\x01",
    "arrays of 4 G elements in each other": b"\xdd\xff\xff\xff\xff" * 50,
    "invalid UTF-8": b"\xa2\xc3\x28",
    "invalid UTF-8 in a key": b"\x81\xa1\xff\x01",
    "a surrogate in UTF-8": b"\xa3\xed\xa0\x80",
    "overlong UTF-8": b"\xa2\xc0\x80",
    "a map as a key": b"\x81\x80\x01",
    "a map in an array as a key": b"\x81\x91\x80\x01",
    "a timestamp of one byte": b"\xd4\xff\0",
    "a timestamp of five bytes": b"\xc7\x05\xff\0\0\0\0\0",
    "too many nanoseconds": b"\xc7\x0c\xff\x3b\x9a\xca\x00" + bytes(8),
    "a time before the year 1": b"\xc7\x0c\xff\0\0\0\0\x80\0\0\0\0\0\0\0",
    "a time after the year 9999": b"\xc7\x0c\xff\0\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff",
    "arrays nested too deep": b"\x91" * NESTED_TOO_DEEP + b"\xc0",
    "arrays nested too deep, without an end": b"\x91" * NESTED_TOO_DEEP,
    "maps nested too deep": b"\x81\x01" * NESTED_TOO_DEEP + b"\xc0",
    "array 32s nested too deep": b"\xdd\0\0\0\x01" * NESTED_TOO_DEEP + b"\xc0",
    "keys nested too deep": b"\x81" * NESTED_TOO_DEEP + b"\xc0",
    "arrays in a key nested too deep": b"\x81" + b"\x91" * NESTED_TOO_DEEP + b"\xc0\x01",
}
#: About where each codec gives up, and Python's own limit: what one codec still reads the other may refuse.
DOUBTFUL_DEPTHS = [*range(200, 1500, scaled(100, 50)), *range(980, 1040, scaled(4, 1))]


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_are_a_decode_error(codec: Codec, body: bytes) -> None:
    for decode in (codec.decode, codec.decoder(list[Any]), codec.decoder(dict[Any, Any]), codec.decoder(str)):
        with pytest.raises(UNREADABLE) as caught:
            decode(body)
        assert str(caught.value).rstrip(": ") != "MessagePack data is malformed"


def test_nesting_that_the_specification_allows_is_read(codec: Codec) -> None:
    for body in (b"\x91" * 500 + b"\xc0", b"\x81\x01" * 500 + b"\xc0"):
        assert codec.encode(codec.decode(body)) == body


@pytest.mark.parametrize("pattern", [b"\x91", b"\x81\x01", b"\x81\x91", b"\x81\xa1n"])
def test_nesting_in_doubtful_depths_is_read_or_a_decode_error(codec: Codec, pattern: bytes) -> None:
    decoders = (codec.decode, codec.decoder(list[Any]), codec.decoder(dict[Any, Any]), codec.decoder(Node))
    for depth in DOUBTFUL_DEPTHS:
        for decode in decoders:
            for body in (pattern * depth + b"\xc0", b"\x81" + pattern * depth + b"\xc0\x01"):
                with contextlib.suppress(*UNREADABLE):
                    decode(body)


def test_every_cut_of_a_message_is_a_decode_error(codec: Codec) -> None:
    now = datetime.datetime.now(datetime.UTC)
    body = bytes(codec.encode([1, -70_000, 1.5, "text", b"bytes", {"a": [None, True]}, now, (1, {2})]))
    for length in range(len(body)):
        with pytest.raises(UNREADABLE):
            codec.decode(body[:length])


def shown(value: Any) -> str:
    """Return a value's repr, without the addresses of unknown extensions."""
    return re.sub(r" at 0x\w+", "", repr(value))


def test_random_bytes_are_read_alike_or_refused_by_both() -> None:
    chosen = random.Random(2026)
    telling = (
        b"\x80\x81\x82\x90\x91\x92\xa0\xa1\xa2\xc0\xc1\xc3\xc4\xca\xcb\xcc\xd0\xd9\xdc\xde\xff\xd4\xd5\xd6\x12\x14\x1a"
    )
    fast, reference = get_codec("msgspec"), get_codec("msgpack")
    read = 0
    for _ in range(20_000):
        body = bytes(chosen.choice(telling) for _ in range(chosen.randrange(1, 12)))
        values = []
        for codec in (fast, reference):
            try:
                values.append(codec.decode(body))
            except UNREADABLE:
                values.append(msgspec.DecodeError)
        assert shown(values[0]) == shown(values[1]), body.hex()
        read += values[0] is not msgspec.DecodeError
    assert read > 500


def test_a_value_of_another_type_is_a_validation_error(codec: Codec) -> None:
    for kind, body in (
        (int, b"\xa11"),
        (str, b"\x01"),
        (Point, b"\x81\xa1x\x01"),
        (uuid.UUID, b"\xa1x"),
        (bool, b"\x01"),
    ):
        with pytest.raises(msgspec.ValidationError):
            codec.decoder(kind)(body)


def test_a_parcel_has_a_weight_of_its_own_and_no_length(codec: Codec) -> None:
    plain, parcel = codec.encode(bytes(1000)), codec.encode(bytes(2_000_000))
    assert isinstance(plain, bytes)
    assert isinstance(parcel, _core.Parcel)
    assert body_weight(plain) == len(plain)
    assert len(parcel.body) < body_weight(parcel) == parcel.weight < 2_000_000
    with pytest.raises(TypeError, match="no len"):
        len(parcel)  # type: ignore[arg-type]


def test_a_name_that_is_no_codec() -> None:
    with pytest.raises(ValueError, match="'json'"):
        get_codec("json")  # type: ignore[arg-type]
