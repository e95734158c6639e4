"""Payloads that no sender of ours writes: each is a DecodeError at once, or a value no larger than what came."""

from __future__ import annotations

import contextlib
import math
import random
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.expected import expected
from shmrpc.values.pickling import PICKLE
from shmrpc.values.tensors import TENSOR
from shmrpc.wire.codec import UNREADABLE, Codec, get_codec
from tests.helpers.value_trips import FakeBlock
from tests.values.hypothesis_draws import drawn

FAST, REFERENCE, PICKLING = get_codec("msgspec"), get_codec("msgpack"), get_codec("pickle")
CODES = [each.code for each in ALL_EXTENSIONS if each.code not in (PICKLE, TENSOR)]


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


def extension(code: int, payload: Any) -> bytes:
    return msgspec.msgpack.encode(Ext(code, msgspec.msgpack.encode(payload)))


def float32(shape: Any, size: int, *layout: Any) -> list[Any]:
    return ["<f4", shape, bytes(size), *layout]


LIES: list[tuple[int, Any]] = [
    (1, 0),
    (1, -1),
    (1, True),
    (1, None),
    (1, "text"),
    (2, 5),
    (3, [b"abc", "i", [1]]),
    (3, [b"abcd", "i", [-1]]),
    (3, [b"abcd", "i", [1 << 62]]),
    (3, [b"abcd", "i", [1, 0]]),
    (3, [b"abcd", "i", ["x"]]),
    (3, [b"abcd", "i"]),
    (3, [b"abcd", "O", [1]]),
    (3, [b"abcd", ["i"], [1]]),
    (3, [b"abcd", "ii", [1]]),
    (4, ["O", b""]),
    (4, ["d", b"abc"]),
    (4, ["", b"abc"]),
    (4, [5, b"abc"]),
    (5, float32([3], 11)),
    (5, float32([3], 13)),
    (5, float32([-1], 4)),
    (5, float32([1 << 62, 1 << 62], 4)),
    (5, float32([1.0], 4)),
    (5, float32([True], 4)),
    (5, float32("x", 4)),
    (5, float32([1] * 100, 4)),
    (5, float32([2], 8, [1 << 62], 0)),
    (5, float32([2], 8, [4], 4)),
    (5, float32([2], 8, [-4], 0)),
    (5, float32([2], 8, [4], -4)),
    (5, float32([2], 8, [4], 1 << 62)),
    (5, float32([2], 8, [4, 4], 0)),
    (5, float32([2], 8, ["x"], 0)),
    (5, float32([1000], 4, [0], 0)),
    (5, float32([1 << 40, 1 << 40], 4, [0, 0], 0)),
    (5, float32([2], 8, [4])),
    (5, ["O", [1], bytes(8)]),
    (5, ["|O8", [1], bytes(8)]),
    (5, ["i4,f8", [1], bytes(12)]),
    (5, ["<f7", [1], bytes(7)]),
    (5, ["<M8[parsecs]", [1], bytes(8)]),
    (5, ["<U99999999999", [0], b""]),
    (5, ["|V0", [1 << 40], b""]),
    (5, ["|S0", [1 << 20, 1 << 20], b""]),
    (5, [5, [1], bytes(8)]),
    (5, [{"base": "<f4", "shape": [1 << 40]}, [1], bytes(8)]),
    (5, [{"base": "|O8", "shape": [1]}, [1], bytes(8)]),
    (5, [{"base": "<f4", "shape": [-1]}, [1], bytes(8)]),
    (5, [{"fields": [["a", "<f4", 100]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [["a", "<f4", -4]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [["a", "<f4", 0], ["a", "<f4", 4]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [["a", "|O8", 0]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [["a"]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [], "itemsize": -1}, [1], bytes(8)]),
    (5, [{}, [1], bytes(8)]),
    (5, []),
    (6, ["<f4", bytes(5)]),
    (6, ["<f4", 0]),
    (6, ["O", bytes(8)]),
    (6, ["<f8", bytes(8), "q"]),
    (6, ["<i8", bytes(8), "Q"]),
    (6, ["<i8", bytes(8), "l"]),
    (6, ["<i8", bytes(8), ["q"]]),
    (6, ["<i8", bytes(8), "q", "q"]),
    (8, 7),
    (16, "5"),
    (16, 5),
    (17, ["1", 2]),
    (17, [1]),
    (18, "abc"),
    (18, {"a": 1}),
    (20, b"ab"),
    (21, [1, 2, 0]),
    (21, [1.5, 2, 1]),
    (21, [1, 2]),
    (22, [1, 2]),
    (23, "2026-13-01"),
    (23, "yesterday"),
    (23, 5),
    (24, "25:00"),
    (24, ["01:00", "No/Such/Zone", 0]),
    (24, ["01:00", "../../etc/passwd", 0]),
    (24, ["01:00", "/etc/passwd", 0]),
    (24, ["01:00", "", 0]),
    (24, ["01:00", "UTC\0", 0]),
    (24, ["01:00", None, 7]),
    (25, ["2026-01-02T00:00:00", [1 << 62], 0]),
    (25, ["2026-01-02T00:00:00", [86_400_000_000], 0]),
    (25, ["2026-01-02T00:00:00", ["x"], 0]),
    (25, ["2026-01-02T00:00:00", [0, 5], 0]),
    (25, ["2026-01-02T00:00:00", [0, "x", "y"], 0]),
    (25, "12026-01-02T00:00:00"),
    (26, [1 << 62, 0, 0]),
    (26, [1.5, 0, 0]),
    (26, [1, 2]),
    (27, None),
    (27, "zone.tab"),
    (28, "one"),
    (28, 1.5),
    (28, [0, [1], 0]),
    (29, [1, 0]),
    (29, [1.5, 2]),
    (29, ["1", "2"]),
    (29, [1]),
    (30, b"short"),
    (30, "00112233-4455-6677-8899-aabbccddeeff"),
    (31, ["file", "x"]),
    (31, ["path", 5]),
    (31, "x"),
    (32, ["x"]),
    (32, "abc"),
    (33, ["x", 5]),
    (33, ["x"]),
    (33, [["x"], {}]),
    (34, ["builtins.object", 5]),
    (34, [{"a": 1}, 5]),
    (34, []),
]


@pytest.mark.parametrize(("code", "payload"), LIES, ids=repr)
def test_a_lie_is_a_decode_error(codec: Codec, code: int, payload: Any) -> None:
    body = extension(code, payload)
    whole = msgspec.msgpack.encode([1, {"a": msgspec.Raw(body)}])
    started = time.process_time()  # CPU time: the machine may be busy.
    for decode in (
        codec.decode,
        codec.quick_decoder(Any),
        codec.decoder(Any),
        codec.decoder(np.ndarray),
        codec.decoder(set[int]),
    ):
        for sent in (body, whole):
            with pytest.raises(UNREADABLE):
                decode(sent)
    core = [expected(Any), expected(np.ndarray), expected(list[np.ndarray])]
    for known in filter(None, core):
        for sent in (body, whole, b"\x91" + body):
            with pytest.raises(ValueError, match="not of the expected type"):
                known.read(sent)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("code", CODES)
def test_a_payload_that_is_no_messagepack(codec: Codec, code: int) -> None:
    for payload in (b"", b"\xc1", b"\x93\x01", b"\x01\x02", b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(UNREADABLE):
            codec.decode(msgspec.msgpack.encode(Ext(code, payload)))


@drawn(100)
@given(
    st.sampled_from(CODES),
    st.recursive(
        st.one_of(
            st.none(),
            st.integers(-5, 5),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(),
            st.sampled_from(["<f4", "|V0", "i", "path", "UTC", "2026-01-02", "tests", "1e999999999"]),
            st.binary(max_size=40),
        ),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["base", "shape", "fields"]), inner)
        ),
        max_leaves=10,
    ),
)
def test_any_payload_is_read_or_a_decode_error(code: int, payload: Any) -> None:
    body = extension(code, payload)
    for decode in (
        FAST.decode,
        FAST.quick_decoder(Any),
        FAST.decoder(list[int]),
        REFERENCE.decode,
        REFERENCE.decoder(set[int]),
    ):
        for buffers in ([], [b"abcd" * 4], [FakeBlock(bytes(4096))]):
            with contextlib.suppress(*UNREADABLE):
                decode(_core.Parcel(body, buffers) if buffers else body)


def test_random_changes_to_what_was_sent_are_read_or_a_decode_error() -> None:
    chosen = random.Random(7)
    sent: list[Any] = [
        np.arange(6).reshape(2, 3).T,
        (1, {2}),
        2**70,
        range(3),
        np.zeros(2, "i4,f8"),
        memoryview(b"abc"),
    ]
    body = bytearray(FAST.encode(sent))
    refused = 0
    for _ in range(3000):
        changed = bytearray(body)
        for _ in range(chosen.randrange(1, 4)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        for codec in (FAST, REFERENCE):
            try:
                codec.decode(bytes(changed))
            except UNREADABLE:
                refused += 1
    assert 0 < refused < 6000


@pytest.mark.parametrize("place", [-1, 1, 2**40, True, None, "0"])
@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_buffer_that_did_not_come(codec: Codec, code: int, place: Any) -> None:
    for decode in (codec.decode, codec.decoder(bytes), codec.decoder(list[Any])):
        with pytest.raises(UNREADABLE):
            decode(_core.Parcel(extension(code, place), [bytes(10)]))


def test_a_buffer_named_many_times_is_copied_once(codec: Codec) -> None:
    size, times = 1 << 20, 10_000
    for code in (1, 2):
        body = msgspec.msgpack.encode([Ext(code, b"\0")] * times)
        got = codec.decode(_core.Parcel(body, [FakeBlock(bytes(size))]))
        assert len(got) == times
        assert len({id(each) for each in got}) == 1
    body = msgspec.msgpack.encode([Ext(4, msgspec.msgpack.encode(["d", 0]))] * times)
    assert len({id(each) for each in codec.decode(_core.Parcel(body, [FakeBlock(bytes(size))]))}) == 1


def test_extensions_nested_too_deep(codec: Codec) -> None:
    for code in (18, 20, 33):
        body = b"\xc0"
        for _ in range(3000):
            payload = b"\x91" + body if code != 33 else b"\x92\xa1x\x81\xa1y" + body
            body = msgspec.msgpack.encode(Ext(code, payload))
        with pytest.raises(UNREADABLE):
            codec.decode(body)


def test_large_numbers_cost_no_more_than_their_bytes(codec: Codec) -> None:
    started = time.process_time()  # CPU time: the machine may be busy.
    assert codec.decode(extension(28, "1e999999999")).adjusted() == 999_999_999
    assert codec.decode(extension(16, b"\x01" + bytes(100_000))).bit_length() == 800_001
    assert hash(codec.decode(extension(18, [msgspec.Raw(extension(28, "-1e-999999999"))])).pop())
    assert codec.decoder(float)(extension(28, "1e999999999")) == math.inf
    with pytest.raises(UNREADABLE):
        codec.decoder(int)(extension(28, "1e999999999"))
    with pytest.raises(UNREADABLE):
        codec.decode(extension(29, [msgspec.Raw(extension(16, bytes([1, *bytes(100_000)]))), 3]))
    assert time.process_time() - started < 2


def test_unhashable_keys_are_refused(codec: Codec) -> None:
    for body in (b"\x81" + extension(18, [1]) + b"\x01", b"\x81\x91" + extension(5, float32([1], 4)) + b"\x01"):
        for decode in (codec.decode, codec.decoder(dict[Any, Any]), codec.decoder(dict[Any, int])):
            with pytest.raises(UNREADABLE):
                decode(body)


def test_a_parcels_buffers_are_not_found_after_it() -> None:
    body = extension(1, 0)
    assert FAST.decode(_core.Parcel(body, [b"x" * 10])) == b"x" * 10
    for decode in (FAST.decode, FAST.quick_decoder(Any)):
        with pytest.raises(UNREADABLE, match="refers to a buffer, and none has come"):
            decode(body)
