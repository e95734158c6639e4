"""Bytes, bytearrays, memoryviews and other buffers; and received memory that is written in place."""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from shmrpc import _core
from shmrpc.values import Writable, block_of, is_writable, writable
from shmrpc.values.blocks import LARGE
from shmrpc.values.sharing import leased
from shmrpc.wire.codec import Codec, get_codec
from tests.helpers.value_trips import FakeBlock, buffers_of, carried, travelled

FAST, REFERENCE = get_codec("msgspec"), get_codec("msgpack")


@pytest.fixture(params=["msgspec", "msgpack", "pickle"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_size(codec: Codec, kind: Any, size: int, in_blocks: bool) -> None:
    value = kind(bytes(range(256)) * (size // 256) + bytes(size % 256))
    body = codec.encode([value])
    assert len(buffers_of(body)) == (size >= LARGE)
    got = codec.decode(carried(body, in_blocks=in_blocks))[0]
    assert type(got) is kind
    assert got == value
    if kind is memoryview:
        assert got.readonly


def test_small_bytes_are_messagepacks_own() -> None:
    assert FAST.encode([b"ab"]) == b"\x91\xc4\x02ab"
    for codec in (FAST, REFERENCE):
        assert codec.encode(bytes(LARGE - 1)) == msgspec.msgpack.encode(bytes(LARGE - 1))


def test_an_object_that_occurs_twice_travels_once_and_arrives_as_one(codec: Codec) -> None:
    large, changing = bytes(LARGE), bytearray(LARGE)
    body = codec.encode([large, {"a": large}, changing, (changing,)])
    assert [len(memoryview(buffer)) for buffer in buffers_of(body)] == [LARGE, LARGE]
    first, second, third, fourth = codec.decode(carried(body, in_blocks=True))
    assert first is second["a"]
    assert third is fourth[0]


def test_large_buffers_are_sent_without_a_copy() -> None:
    value: dict[str, Any] = {"b": bytes(LARGE), "a": bytearray(LARGE), "m": memoryview(bytearray(LARGE))}
    addresses = [np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in value.values()]
    sent = [np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in buffers_of(FAST.encode(value))]
    assert sent == addresses


def view_of(array: Any) -> memoryview:
    return memoryview(array)


VIEWS = [
    memoryview(array.array("i", range(12))),
    memoryview(array.array("d", [1.5] * 10_000)),
    memoryview(bytes(24)).cast("i", (2, 3)),
    memoryview(bytes(8 * 6000)).cast("d", (60, 100)),
    memoryview(bytes(8)).cast("d", ()),
    memoryview(b"abcdef")[::-2],
    memoryview(bytes(range(256)) * 300)[::2],
    view_of(np.arange(12.0).reshape(3, 4).T),
    memoryview(b"\1\0").cast("?"),
    memoryview(b"ab").cast("c"),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.format}{view.shape}")
def test_a_view_keeps_its_format_and_shape(codec: Codec, view: memoryview) -> None:
    for in_blocks in (False, True):
        got = travelled(codec, view, in_blocks=in_blocks)
        assert (got.format, got.shape, got.tolist()) == (view.format, view.shape, view.tolist())
        assert got.readonly


def test_a_view_of_nothing_has_one_dimension() -> None:
    got = travelled(FAST, view_of(np.zeros(0, np.int32)))
    assert (got.format, got.shape) == ("i", (0,))
    with pytest.raises(TypeError, match=r"a memoryview of shape \(0, 3\) cannot be sent: send the array"):
        FAST.encode(view_of(np.zeros((0, 3), np.int32)))


@pytest.mark.parametrize("format", [">i4", "M8[s]", "i4,f8"])
def test_a_view_of_what_memoryview_cannot_name(format: str) -> None:
    try:
        view = view_of(np.zeros(3, format))
    except ValueError:  # NumPy itself makes no view of it.
        return
    with pytest.raises(TypeError, match=r"\.cast\('B'\)"):
        FAST.encode(view)


@pytest.mark.parametrize("typecode", "bBhHiIlLqQfd")
def test_arrays_of_pythons_own(codec: Codec, typecode: Any) -> None:
    for length in (0, 3, 40_000):
        value = array.array(typecode, [7] * length)
        body = codec.encode({"a": value})
        assert len(buffers_of(body)) == (length * value.itemsize >= LARGE)
        got = codec.decode(carried(body, in_blocks=True))["a"]
        assert type(got) is array.array
        assert got == value
        assert got.typecode == typecode


def test_text_in_an_array_of_pythons_own() -> None:
    typecode: Any = "w" if sys.version_info >= (3, 13) else "u"  # Python 3.13 warns of "u".
    assert travelled(FAST, array.array(typecode, "hü")) == array.array(typecode, "hü")


class Both(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


def test_other_buffers_are_sent_as_the_views_that_they_give() -> None:
    mapped = mmap.mmap(-1, 2 * LARGE)
    mapped[:3] = b"abc"
    for value, form in (((ctypes.c_int * 3)(1, 2, 3), "i"), (mapped, "B"), (Both(1, 2.0), None)):
        for codec in (get_codec("msgspec"), get_codec("msgpack")):
            with pytest.raises(TypeError, match=r"send memoryview\(value\), or bytes of it"):
                codec.encode(value)
        if form is not None:
            got = travelled(FAST, memoryview(value), in_blocks=True)
            assert got.format == form
            assert got.tobytes() == bytes(value)
    got = travelled(get_codec("pickle"), Both(1, 2.0))
    assert (type(got), got.a, got.b) == (Both, 1, 2.0)
    del got
    mapped.close()


def test_a_buffer_that_gives_no_memory_now_is_a_buffer_all_the_same() -> None:
    mapped = mmap.mmap(-1, 8)
    mapped.close()
    with pytest.raises(TypeError, match=r"send memoryview\(value\)"):
        FAST.encode([mapped])
    with leased(mapped) as same:
        assert same is mapped


class Raw(bytes):
    pass


class Buffer(bytearray):
    pass


@pytest.mark.parametrize("kind", [Raw, Buffer])
def test_a_class_derived_from_bytes_is_not_sent_as_its_base(kind: Any) -> None:
    for size in (3, LARGE):
        with pytest.raises(TypeError, match=rf"a {kind.__name__} would arrive as a plain byte.* send byte.*\(value\)"):
            FAST.encode([kind(size)])
        assert type(travelled(get_codec("pickle"), [kind(size)])[0]) is kind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Writable[np.ndarray], True),
        (Writable[np.ndarray] | None, True),
        (Writable[memoryview], True),
        (np.ndarray, False),
        (list[int], False),
        (int | None, False),
    ],
)
def test_is_writable_recognises_declared_types(kind: Any, expected: bool) -> None:
    assert is_writable(kind) is expected
    FAST.quick_decoder(kind)


def test_a_declared_writable_is_decoded_as_what_it_is() -> None:
    got = FAST.decoder(Writable[np.ndarray])(FAST.encode(np.zeros(3)))
    assert type(got) is np.ndarray
    with pytest.raises(msgspec.ValidationError):
        FAST.decoder(Writable[np.ndarray])(FAST.encode("x"))


def received(value: Any) -> Any:
    return travelled(FAST, value, in_blocks=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array,
        lambda array: array[10:20],
        lambda array: array[::-2, 3:50:7],
        lambda array: array.T,
        lambda array: array.view(">i4"),
        lambda array: array[5, 5],
    ],
)
def test_writes_to_an_array_are_in_its_block(change: Any) -> None:
    whole = received(np.arange(6400).reshape(64, 100))
    part = change(whole)
    if not isinstance(part, np.ndarray):
        part = whole[5, 5, ...]
    block: Any = block_of(part)
    assert isinstance(block, FakeBlock)
    open_part = writable(part)
    assert np.array_equal(open_part, part)
    open_part[...] = 7
    assert (part == 7).all()
    assert (np.ndarray((6400,), np.int64, buffer=block.to_bytes()) == whole.reshape(-1)).all()


@pytest.mark.parametrize("change", [lambda view: view, lambda view: view[100:200], lambda view: view.cast("I")[3:9]])
def test_writes_to_a_memoryview_are_in_its_block(change: Any) -> None:
    part = change(received(memoryview(bytes(LARGE))))
    assert isinstance(block_of(part), FakeBlock)
    open_part = writable(part)
    assert (open_part.format, open_part.shape) == (part.format, part.shape)
    open_part[1] = 7
    assert part[1] == 7
    with pytest.raises(TypeError, match="memoryview with gaps"):
        writable(part[::2])


def test_buffers_received_in_the_body_are_copied_before_writes() -> None:
    array = received(np.asfortranarray(np.arange(6).reshape(2, 3)))
    view = received(memoryview(bytes(24)).cast("i", (2, 3)))
    assert block_of(array) is block_of(view) is None
    copy = writable(array)
    copy[...] = 5
    assert copy.flags.f_contiguous
    assert array[0, 1] == 1
    open_view = writable(view)
    open_view[1, 2] = 5
    assert open_view[1, 2] == 5
    assert view[1, 2] == 0


def test_writable_buffers_are_returned_unchanged() -> None:
    array, view = np.zeros(3), memoryview(bytearray(3))
    assert writable(array) is array
    assert writable(view) is view
    for value in ([1], "text", 5, b"bytes"):
        with pytest.raises(TypeError, match="expected a NumPy array or a memoryview"):
            writable(value)
    assert block_of([1]) is block_of(array) is None


def test_a_parcel_is_only_made_for_what_travels_beside() -> None:
    assert type(FAST.encode([bytearray(10), np.zeros(3)])) is bytes
    assert type(FAST.encode([bytearray(LARGE)])) is _core.Parcel
    assert type(REFERENCE.encode([bytearray(LARGE)])) is _core.Parcel
