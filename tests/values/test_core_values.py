"""Values in the core: what it writes and reads without the codec is what both codecs write and read."""

from __future__ import annotations

import math
import struct
import tracemalloc
import typing
from collections.abc import Callable
from typing import Any, Final

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shmrpc import _core
from shmrpc.values.blocks import LARGE
from shmrpc.values.expected import expected
from shmrpc.wire.codec import CodecName, get_codec
from tests.helpers.core_types import KINDS, Name
from tests.helpers.scale import scaled
from tests.values.hypothesis_draws import drawn

#: Examples of each test that draws some.
DRAWN: Final = scaled(60, 2_000)
#: Values at the bounds of each form that MessagePack has.
BOUNDS: list[Any] = [
    None,
    True,
    False,
    *(sign * (1 << bits) + off for bits in (5, 7, 8, 15, 16, 31, 32) for off in (-1, 0, 1) for sign in (1, -1)),
    0,
    -(1 << 63),
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    0.0,
    -0.0,
    math.inf,
    5e-324,
    *("x" * size for size in (0, 1, 31, 32, 255, 256, 65535, 65536)),
    "é€😀" * 100,
    "\0",
    *(b"x" * size for size in (0, 1, 255, 256, LARGE - 1)),
    *([1] * size for size in (0, 15, 16, 65535, 65536)),
    *({str(i): i for i in range(size)} for size in (0, 15, 16, 65536)),
    {2: 2, None: 3, True: 4, 2.5: 5, b"b": 6},
    [[[[]]], {"a": {"b": [{}]}}],
]
#: Values for which MessagePack has no form.
FOREIGN: list[Any] = [
    1 << 64,
    -(1 << 63) - 1,
    (1, 2),
    {1, 2},
    bytearray(b"x"),
    "\ud800",
    object(),
    1j,
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300)
)
keys = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary(max_size=40)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(keys, inner, max_size=20), max_leaves=60
)


def _any() -> _core.ExpectedType:
    found = expected(Any)
    assert found is not None
    return found


def _same(a: object, b: object) -> bool:
    """Return True if two values are equal, and of the same types throughout."""
    return repr(a) == repr(b)


@pytest.mark.parametrize("value", BOUNDS, ids=lambda value: f"{type(value).__name__} {repr(value)[:12]}")
def test_the_core_writes_what_both_codecs_write_and_reads_it(value: Any) -> None:
    body = get_codec("msgspec").encode(value)
    assert body == msgspec.msgpack.encode(value) == get_codec("msgpack").encode(value)
    assert isinstance(body, bytes)
    assert _same(_any().read(body), value)


@drawn(DRAWN)
@given(values)
@example([{"": [None] * 20}])
def test_any_value_is_written_as_the_codec_does_and_read_again(value: Any) -> None:
    body = get_codec("msgspec").encode_all((value, value))
    assert body == msgspec.msgpack.encode((value, value)) == msgpack.packb([value, value])
    assert isinstance(body, bytes)
    assert _same(_any().read(body), [value, value])


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_values_unknown_to_messagepack_go_to_the_codec_at_any_depth(value: Any) -> None:
    codec = get_codec("msgspec")
    for inner in (value, [1, [value]], {"a": [value]}):
        try:
            body = codec.encode(inner)
        except (TypeError, ValueError):  # The codec's own words for it are tested elsewhere.
            continue
        assert _same(codec.decode(body), inner)


def test_a_list_in_itself_is_refused_with_the_codecs_words() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        get_codec("msgspec").encode(endless)


def test_values_nested_too_deep_for_the_core_are_read_by_the_codec() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    body = get_codec("msgspec").encode(deep)
    assert body == msgspec.msgpack.encode(deep)
    assert isinstance(body, bytes)
    with pytest.raises(ValueError, match="not of the expected type"):
        _any().read(body)
    assert get_codec("msgspec").decode(body) == deep


@pytest.mark.parametrize("codec", ["msgspec", "msgpack", "pickle"])
def test_a_receiver_deep_in_calls_reads_every_depth_that_can_be_sent(codec: CodecName) -> None:
    def read(body: Any, calls: int) -> Any:
        return read(body, calls - 1) if calls else get_codec(codec).decode(body)

    makes: list[Callable[[Any], Any]] = [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: [(v,)], slice]
    for make in makes:
        for leaf in (1, 1 << 100, b"x" * 100_000):
            refused = 0
            for depth in (1, 64, 99, 100, 101, 200, 499, 500, 501, 800, 900):
                value: Any = leaf
                for _ in range(depth):
                    value = make(value)
                try:
                    body = get_codec(codec).encode(value)
                except (RecursionError, TypeError):
                    refused += 1
                else:
                    assert repr(read(body, 200)) == repr(value)
            assert 3 <= refused <= 9


@pytest.mark.parametrize(
    ("kind", "depth"),
    [(Any, 60), (list[list[list[list[int]]]], 4), (tuple[tuple[tuple[tuple[int, ...], ...], ...], ...], 4)],
)
def test_containers_in_each_other_cannot_claim_the_same_bytes(kind: Any, depth: int) -> None:
    known, size = expected(kind), 1 << 20
    assert known is not None
    body = b""
    for _ in range(depth):
        body += b"\xdd" + struct.pack(">I", size - len(body) - 5)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not of the expected type"):
            known.read(body.ljust(size, b"\xc1"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * size  # A place takes eight bytes.


@drawn(DRAWN)
@given(st.binary(max_size=60))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x81\x90\x01")
@example(b"\xd9\x01\xff")
@example(b"\xa1\xff")
@example(b"\x01\x01")
def test_any_bytes_are_refused_or_read_as_the_codec_reads_them(data: bytes) -> None:
    try:
        value = _any().read(data)
    except ValueError:
        return
    assert _same(value, msgspec.msgpack.decode(data))


@drawn(DRAWN)
@given(values, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_body_that_was_changed_is_refused_or_read_as_the_codec_reads_it(
    value: Any, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(msgspec.msgpack.encode(value))
    for place, byte in changes:
        data[place % len(data)] = byte
    test_any_bytes_are_refused_or_read_as_the_codec_reads_them.hypothesis.inner_test(bytes(data))  # type: ignore[attr-defined]


@drawn(DRAWN)
@given(st.sampled_from(KINDS), scalars | st.lists(scalars, max_size=3) | st.dictionaries(keys, scalars, max_size=3))
def test_a_declared_type_is_read_as_the_codec_reads_it(kind: Any, value: Any) -> None:
    known = expected(kind)
    assert known is not None
    body = msgspec.msgpack.encode(value)
    try:
        read = known.read(body)
    except ValueError:
        return
    assert _same(read, msgspec.msgpack.decode(body, type=kind))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 1),
        (float, 2.5),
        (float, 2),
        (str, "a"),
        (bytes, b"a"),
        (bool, True),
        (None, None),
        (list, [1, "a"]),
        (dict, {"a": 1}),
        (list[int], [1, 2]),
        (dict[str, int], {"a": 1}),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (int | None, None),
        (int | str, "a"),
        (list[int] | None, [1]),
        (Name, "a"),
    ],
)
def test_a_plain_type_is_read_by_the_core(kind: Any, value: Any) -> None:
    known = expected(kind)
    assert known is not None
    read = known.read(msgspec.msgpack.encode(value))
    assert read == value and type(read) is (float if kind is float else type(value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "a"),
        (int, 2.5),
        (int, True),
        (int, None),
        (bool, 1),
        (str, b"a"),
        (bytes, "a"),
        (float, "1"),
        (float, True),
        (list[int], [1, "a"]),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"a": "b"}),
        (tuple[int, str], (1,)),
        (tuple[int, str], (1, "a", 2)),
        (list[int], {"a": 1}),
        (dict[str, int], [1]),
        (None, 0),
    ],
)
def test_values_of_another_type_than_declared_are_left_to_the_codec(kind: Any, value: Any) -> None:
    known = expected(kind)
    assert known is not None
    with pytest.raises(ValueError, match="not of the expected type"):
        known.read(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(
    "kind",
    [
        set[int],
        typing.Literal[1, 2],
        typing.Annotated[int, msgspec.Meta(ge=1)],
        list[set[int]],
        int | list[int] | dict[str, int],
        object,
        msgspec.Struct,
        typing.TypeVar("T"),
    ],
)
def test_the_core_leaves_other_types_to_the_codec(kind: Any) -> None:
    assert expected(kind) is None


def test_the_reference_codec_reads_and_writes_everything_itself() -> None:
    assert get_codec("msgpack").expected(int) is None
    assert get_codec("msgspec").expected(int) is not None


def test_an_unknown_name_of_a_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'complex'|\"complex\""):
        _core.ExpectedType(["complex"])
