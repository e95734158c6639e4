"""Python's own types come out as they went in: untyped and typed, nested, by both implementations of MessagePack."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import http
import math
import pathlib
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmrpc.values.encode_context import MAX_DEPTH
from shmrpc.values.standard import MAX_FRACTION_BITS
from shmrpc.wire.codec import UNREADABLE, Codec, exact_codec, get_codec
from tests.helpers.value_trips import travelled
from tests.values.hypothesis_draws import drawn

FAST, REFERENCE, PICKLING = get_codec("msgspec"), get_codec("msgpack"), get_codec("pickle")
HOUR = datetime.timedelta(hours=1)


class Pair(NamedTuple):
    left: int
    right: str


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Text(str):
    pass


class Number(int):
    pass


class Zone(datetime.tzinfo):
    """A time zone that is in no table."""

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta | None:
        return None if when is None else HOUR

    def dst(self, when: datetime.datetime | None) -> None:
        return None

    def tzname(self, when: datetime.datetime | None) -> str:
        return "ours"


zones = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]).map(zoneinfo.ZoneInfo),
    st.timedeltas(-23 * HOUR, 23 * HOUR).map(datetime.timezone),
    st.builds(datetime.timezone, st.timedeltas(-23 * HOUR, 23 * HOUR), st.text(max_size=5)),
)
#: Python 3.11 does not read the half of a UNC name that it has written itself.
windows_paths = (
    st.text("ab./\\", max_size=8)
    .map(pathlib.PureWindowsPath)
    .filter(lambda path: pathlib.PureWindowsPath(str(path)) == path)
)
#: Values that can be elements of a set and keys, and that arrive equal.
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(allow_nan=False),
    st.builds(range, st.integers(-(2**70), 2**70), st.integers(), st.integers(1, 5)),
    st.dates(),
    st.times(),
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.text("ab./", max_size=8).map(pathlib.Path),
    st.text("ab./", max_size=8).map(pathlib.PurePosixPath),
    windows_paths,
    zones.filter(lambda zone: zone is not None),
)
hashable = st.recursive(
    hashable,
    lambda inner: st.one_of(st.frozensets(inner, max_size=3), st.tuples(inner, inner), st.tuples()),
    max_leaves=5,
)
values = st.recursive(
    st.one_of(hashable, st.builds(slice, st.integers(), st.none(), st.just(2)), st.binary(max_size=5).map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(hashable, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
    ),
    max_leaves=10,
)


def same(got: Any, expected: Any) -> bool:
    """Return True if two values are equal and of the same types: 1 is not True, -0.0 is not 0.0, and zones count."""
    if type(got) is not type(expected) or got != expected:
        return False
    if isinstance(expected, (list, tuple)):
        return all(map(same, got, expected))
    if isinstance(expected, dict):
        return all(same(a, b) for a, b in zip(got.items(), expected.items(), strict=True))
    if isinstance(expected, (datetime.datetime, datetime.time)):
        return got.fold == expected.fold and repr(got.tzinfo) == repr(expected.tzinfo)
    if isinstance(expected, (set, frozenset)):
        return {(type(item), item) for item in got} == {(type(item), item) for item in expected}
    if isinstance(expected, float):
        return math.copysign(1, got) == math.copysign(1, expected)
    return not isinstance(expected, (complex, decimal.Decimal)) or repr(got) == repr(expected)


@drawn(100)
@given(values)
def test_every_codec_decodes_the_value_that_was_encoded(value: Any) -> None:
    body = FAST.encode(value)
    assert REFERENCE.encode(value) == body
    for codec in (FAST, REFERENCE, PICKLING):
        assert same(codec.decode(body), value)
        assert same(codec.decoder(list[Any])(codec.encode([value])), [value])
    assert PICKLING.encode(value) == body


@drawn(50)
@given(st.lists(values, max_size=4))
def test_arguments_are_an_array_of_values(value: list[Any]) -> None:
    for codec in (FAST, REFERENCE):
        assert codec.encode_all(tuple(value)) == codec.encode(value)
        assert codec.encode_all(value) == codec.encode(value)


TYPED = [
    ({1, 2}, set[int]),
    (frozenset({1}), frozenset[int]),
    ((1, "x"), tuple[int, str]),
    ([(1, 2), (3, 4)], list[tuple[int, int]]),
    ({"a": {(1, 2)}}, dict[str, set[tuple[int, int]]]),
    ({uuid.UUID(int=5): {1}}, dict[uuid.UUID, set[int]]),
    (uuid.UUID(int=5), uuid.UUID),
    (datetime.date(2026, 1, 2), datetime.date | None),
    ([datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(HOUR))], list[datetime.datetime]),
    (datetime.time(1, 2, fold=1), datetime.time),
    (datetime.timedelta(1, 2, 3), datetime.timedelta),
    (datetime.timezone(HOUR, "ours"), datetime.timezone),
    (zoneinfo.ZoneInfo("Europe/Berlin"), datetime.tzinfo),
    (decimal.Decimal("1.10"), decimal.Decimal),
    (fractions.Fraction(1, 3), fractions.Fraction | None),
    (1j, complex),
    ([pathlib.Path("a")], list[pathlib.Path]),
    (range(3), range),
    (slice(1, None), slice),
    (2**100, int),
    (bytearray(b"ab"), bytearray),
    (b"x" * 100_000, bytes),
    ([b"x" * 100_000], list[bytes]),
    (bytearray(100_000), bytes | None),
]


@pytest.mark.parametrize("codec", [FAST, REFERENCE, PICKLING], ids=["msgspec", "msgpack", "pickle"])
@pytest.mark.parametrize(("value", "kind"), TYPED, ids=lambda each: repr(each)[:40])
def test_a_typed_receiver_takes_what_the_sender_has(codec: Codec, value: Any, kind: Any) -> None:
    got = codec.decoder(kind)(codec.encode(value))
    assert got == value
    assert codec.convert(codec.decode(codec.encode([value])), list[kind]) == [value]
    assert same(got, bytes(value) if kind == bytes | None else value)


@pytest.mark.parametrize(
    ("value", "kind", "converted"),
    [
        ((1, 2), list[int], [1, 2]),
        (Pair(1, "x"), Pair, Pair(1, "x")),
        (Pair(1, "x"), tuple[int, str], (1, "x")),
        (frozenset({1}), set[int], {1}),
        (2, complex, 2 + 0j),
        ("a/b", pathlib.Path, pathlib.Path("a/b")),
        (decimal.Decimal("1.5"), float, 1.5),
    ],
)
def test_values_of_a_similar_type_are_converted(value: Any, kind: Any, converted: Any) -> None:
    for codec in (FAST, REFERENCE):
        assert same(codec.decoder(kind)(codec.encode(value)), converted)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ({"x"}, set[int], "Expected `int`, got `str` - at `$[0]`"),
        ([(1, "x")], list[tuple[int, int]], "Expected `int`, got `str` - at `$[0][1]`"),
        (1j, int, "Expected `int`, got `complex`"),
        ({"a": [1]}, dict[str, list[complex | None]], None),
        (["x"], list[complex], "Expected `complex`, got `str` - at `$[0]`"),
        (uuid.UUID(int=1), datetime.date, "Expected `date`, got `UUID`"),
        (2**70, str, "Expected `str`, got `int`"),
        ("aGk=", bytes, "Expected `bytes`, got `str`"),
        (b"x" * 50_000, str, "Expected `str`, got `bytes`"),
        ((1, 2), uuid.UUID, "Expected `UUID`, got `tuple`"),
        (decimal.Decimal("1e999999"), int, "Expected `int`, got `Decimal`"),
    ],
)
def test_an_error_of_a_wrong_type_names_the_position(value: Any, kind: Any, message: str | None) -> None:
    for codec in (FAST, REFERENCE):
        decode = codec.decoder(kind)
        if message is None:
            assert decode(codec.encode(value)) == value
            continue
        with pytest.raises(msgspec.ValidationError) as caught:
            decode(codec.encode(value))
        assert str(caught.value) == message


def test_plain_messagepack_of_other_programs_is_read() -> None:
    for kind, plain, value in (
        (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
        (
            datetime.datetime,
            "2026-01-02T03:04:05+01:00",
            datetime.datetime(2026, 1, 2, 3, 4, 5, 0, datetime.timezone(HOUR)),
        ),
        (set[int], [1, 2], {1, 2}),
        (tuple[int, int], [1, 2], (1, 2)),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (bytearray, b"ab", bytearray(b"ab")),
        (Colour, "red", Colour.RED),
    ):
        body = msgspec.msgpack.encode(plain)
        for codec in (FAST, REFERENCE, PICKLING):
            assert same(codec.decoder(kind)(body), value)
            assert same(codec.quick_decoder(kind)(body), value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Level.HIGH, 2),
        (Colour.RED, "red"),
        ({Colour.RED: Level.HIGH}, {"red": 2}),
        (Pair(1, "x"), (1, "x")),
        ([Pair(1, "x")], [(1, "x")]),
    ],
    ids=repr,
)
def test_without_a_declared_type_a_class_that_is_not_registered_is_its_structure(value: Any, plain: Any) -> None:
    for codec in (FAST, REFERENCE):
        assert same(travelled(codec, value), plain)


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(b=(1,), a=2),
        collections.defaultdict(list, a=[{1}]),
        collections.defaultdict(None, a=1),
        collections.Counter("aa"),
        collections.Counter({(1, "x"): 2}),
    ],
    ids=repr,
)
def test_dicts_of_collections(value: Any) -> None:
    kind: Any = type(value)
    for codec in (FAST, REFERENCE, PICKLING):
        body = codec.encode([value])
        for got in (codec.decode(body)[0], codec.decoder(list[kind])(body)[0], codec.convert(value, kind)):
            assert same(got, value)
            assert list(got) == list(value)
        assert getattr(codec.decode(body)[0], "default_factory", None) is getattr(value, "default_factory", None)
        plain = codec.decoder(list[dict[Any, Any]])(body)[0]
        assert plain == dict(value)
        with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got .* - at `\$\[0\]\[\.\.\.\]`"):
            codec.decoder(list[dict[Any, str]])(body)


def test_a_defaultdict_whose_factory_means_nothing_elsewhere() -> None:
    with pytest.raises(TypeError, match=r"whose factory is .* cannot be sent: send dict\(value\)"):
        FAST.encode(collections.defaultdict(lambda: 1))
    made = bytes(FAST.encode_all([collections.defaultdict(list)])).replace(b"\xa4list", b"\xa4eval")
    with pytest.raises(UNREADABLE, match="'eval' is not the factory of a defaultdict"):
        FAST.decode(made)


class Amount(decimal.Decimal):
    pass


class Ratio(float):
    pass


class Words(list[str]):
    pass


class Names(dict[str, str]):
    pass


class Row(tuple[int, ...]):
    pass


class Tags(frozenset[str]):
    pass


class Day(datetime.date):
    pass


class Moment(datetime.datetime):
    pass


class Folder(pathlib.PurePosixPath):
    pass


class Tally(collections.Counter[str]):
    pass


DERIVED = [
    *(Text("x"), Number(5), Number(2**70), Ratio(1.5), Amount("1.10"), Words(["a"]), Names(a="b"), Row((1, 2))),
    *(Tags("a"), Day(2026, 1, 2), Moment(2026, 1, 2), Moment(2026, 1, 2, tzinfo=datetime.UTC), Folder("a"), Tally("a")),
]


@pytest.mark.parametrize("value", DERIVED, ids=lambda value: type(value).__name__)
def test_an_instance_of_a_derived_class_is_refused(value: Any) -> None:
    for codec in (FAST, REFERENCE, exact_codec("msgspec")):
        for whole in (value, [value], {"a": (value,)}):
            with pytest.raises(TypeError, match=rf"a {type(value).__name__} would arrive as a plain "):
                codec.encode(whole)
        if type(value).__hash__ is not None:
            with pytest.raises(TypeError, match="would arrive as a plain"):
                codec.encode({value: 1})
            with pytest.raises(TypeError, match="would arrive as a plain"):
                codec.encode({value})
    assert type(travelled(PICKLING, [value])[0]) is type(value)


@dataclasses.dataclass
class Point:
    x: int


class Size(msgspec.Struct):
    x: int


class Access(enum.Flag):
    READ = 1


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Colour.RED, r"register\(Colour\) on both sides, or send its \.value"),
        (Level.HIGH, r"register\(Level\)"),
        (http.HTTPStatus.OK, r"register\(HTTPStatus\)"),
        (Access.READ, r"register\(Access\)"),
        (Pair(1, "x"), r"register\(Pair\) on both sides, or send tuple\(value\)"),
        (Point(1), r"register\(Point\) on both sides, or send a dict"),
        (Size(1), r"register\(Size\)"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_where_no_type_is_declared_what_is_not_registered_is_refused(value: Any, remedy: str) -> None:
    for codec in (exact_codec("msgspec"), exact_codec("msgpack")):
        for whole in (value, [value], {"a": (value,)}):
            with pytest.raises(TypeError, match=rf"not registered would arrive as .*; shmrpc\.{remedy}"):
                codec.encode(whole)
    assert type(travelled(exact_codec("pickle"), [value])[0]) is type(value)


def test_keys_of_maps() -> None:
    value = {
        (1, -1): 1,
        (1, (2, datetime.date(2026, 1, 2))): 2,
        frozenset({1}): 3,
        uuid.UUID(int=1): 4,
        2**70: 5,
        1j: 6,
    }
    assert FAST.encode({(1, 2): 3}) == msgspec.msgpack.encode({(1, 2): 3})
    for codec in (FAST, REFERENCE):
        assert same(travelled(codec, value), value)
        assert same(codec.decoder(dict[Any, int])(codec.encode(value)), value)


class Box:
    """Hashed by identity, and of a type that does not travel."""


@pytest.mark.parametrize("key", [Box(), (1, Box())], ids=["box", "tuple"])
def test_a_key_that_cannot_be_sent(key: Any) -> None:
    for codec in (FAST, REFERENCE):
        with pytest.raises(
            TypeError, match=r"type Box is unsupported; register converters: shmrpc\.register\(Box, encode, decode\)"
        ):
            codec.encode({key: 1})


def test_the_time_of_a_zone_that_is_in_no_table_is_refused() -> None:
    """With its offset alone, what is added to the time after it has arrived would cross no change of the clock."""
    rules = pathlib.Path(zoneinfo.TZPATH[0], "Europe/Berlin") if zoneinfo.TZPATH else None
    zones: list[datetime.tzinfo] = [Zone()]
    if rules is not None and rules.exists():
        with rules.open("rb") as file:
            zones.append(zoneinfo.ZoneInfo.from_file(file))
    for zone in zones:
        for value in (datetime.datetime(2026, 1, 2, 3, tzinfo=zone), datetime.time(1, tzinfo=zone), zone):
            with pytest.raises(TypeError, match=r"use datetime\.timezone or zoneinfo\.ZoneInfo"):
                FAST.encode(value)
    value = datetime.datetime(2026, 1, 2, 3, tzinfo=Zone())
    assert type(travelled(PICKLING, [value])[0].tzinfo) is Zone


def test_a_file_name_that_is_no_text() -> None:
    path = pathlib.Path("a\udcffb")
    assert travelled(FAST, [path]) == [path]


def test_special_numbers_arrive_unchanged() -> None:
    value = [math.nan, decimal.Decimal("sNaN123"), complex(math.nan, -0.0), decimal.Decimal("-Infinity")]
    assert repr(travelled(FAST, value)) == repr(value)


def test_a_fraction_that_would_take_long_to_reduce_is_not_sent() -> None:
    most = fractions.Fraction(1, 2**MAX_FRACTION_BITS - 1)
    assert travelled(FAST, most) == most
    with pytest.raises(ValueError, match="send its parts"):
        FAST.encode(most / 4)


def test_a_value_without_end_is_an_error() -> None:
    endless: list[Any] = [{1}]
    endless.append(endless)
    for codec in (FAST, REFERENCE):
        with pytest.raises(RecursionError):
            codec.encode(endless)


def test_values_in_each_other() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = (value,)
    for codec in (FAST, REFERENCE):
        assert travelled(codec, [value]) == [value]
        with pytest.raises(RecursionError, match="more than 100 tuples"):
            codec.encode([(value,)])


def test_a_set_of_what_arrives_as_maps_is_a_list_untyped() -> None:
    class Item(msgspec.Struct, frozen=True):
        name: str

    value = {Item("a")}
    assert travelled(FAST, value) == [{"name": "a"}]
    assert FAST.decoder(set[Item])(FAST.encode(value)) == value


def test_quick_may_refuse_what_decoder_reads() -> None:
    body = FAST.encode({1, 2})
    with pytest.raises(UNREADABLE):
        FAST.quick_decoder(set[int])(body)
    assert FAST.decoder(set[int])(body) == {1, 2}
    assert FAST.quick_decoder(Any)(body) == {1, 2}
    assert FAST.quick_decoder(list[int])(b"\x91\x01") == [1]
