"""NumPy's arrays: contents, shape, dtype and order come out as they went in, and nothing is copied without need."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Literal

import hypothesis.extra.numpy as npst
import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy._core.defchararray import chararray  # `numpy.char` gives it with a warning since NumPy 2.5.

from shmrpc import _core
from shmrpc.values import decode_context
from shmrpc.values.arrays import base_of, covering_bytes
from shmrpc.wire.codec import UNREADABLE, Codec, get_codec
from tests.helpers.value_trips import FakeBlock, buffers_of, carried, travelled
from tests.values.hypothesis_draws import drawn

FAST, REFERENCE = get_codec("msgspec"), get_codec("msgpack")
LARGE = 1000

scalar_dtypes = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?"),
    npst.datetime64_dtypes(endianness="?"),
    npst.timedelta64_dtypes(endianness="?"),
    npst.byte_string_dtypes(endianness="?", min_len=1),
    npst.unicode_string_dtypes(endianness="?", min_len=1),
)
dtypes = st.one_of(scalar_dtypes, npst.array_dtypes(scalar_dtypes, allow_subarrays=True))
#: A part of an array with gaps, turned round, or with its axes in another order.
layouts = st.sampled_from(
    [
        lambda array: array,
        lambda array: array.T,
        lambda array: np.asfortranarray(array),
        lambda array: array[..., ::2] if array.ndim else array,
        lambda array: array[::-1] if array.ndim else array,
        lambda array: array[::-2, ..., 1:] if array.ndim > 1 else array,
        lambda array: np.moveaxis(array, 0, -1) if array.ndim else array,
        lambda array: np.broadcast_to(array, (3, *array.shape)),
    ]
)


@dataclasses.dataclass
class Image:
    name: str
    pixels: np.ndarray


class Sample(msgspec.Struct, rename="camel", omit_defaults=True, tag=True):
    raw_data: np.ndarray
    weight: float = 1.0


def alike(got: np.ndarray, expected: np.ndarray) -> None:
    assert type(got) is np.ndarray
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    assert got.flags.c_contiguous or not expected.flags.c_contiguous
    assert got.flags.f_contiguous or not expected.flags.f_contiguous
    assert not got.flags.writeable or not got.nbytes


@drawn(100)
@given(st.data())
def test_any_array_comes_out_as_it_went_in(data: st.DataObject) -> None:
    dtype = data.draw(dtypes)
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    array = data.draw(layouts)(data.draw(npst.arrays(dtype, shape, fill=st.nothing())))
    for codec in (FAST, REFERENCE):
        alike(travelled(codec, array), array)
        alike(travelled(codec, {"a": [(array,)]})["a"][0][0], array)
    assert bytes(FAST.encode(array)) == bytes(REFERENCE.encode(array))


@drawn(60)
@given(scalar_dtypes, layouts, st.sampled_from([(40, 50), (2000,), (3, 40, 50), (2, 3, 4, 200)]))
def test_a_large_array_travels_beside_the_body(dtype: Any, layout: Any, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    contents = np.random.default_rng(size).integers(1, 100, size * dtype.itemsize, np.uint8)
    array = layout(contents.view(dtype).reshape(shape))
    for codec in (FAST, REFERENCE):
        body = codec.encode(array)
        if array.nbytes >= 4096:
            assert isinstance(body, _core.Parcel)
            assert len(body.body) < 200
        for in_blocks in (False, True):
            alike(codec.decode(carried(body, in_blocks=in_blocks)), array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_in_a_row_is_not_copied_to_be_sent(order: Any) -> None:
    array = np.asarray(np.arange(6000.0).reshape(20, 30, 10), order=order)
    (buffer,) = buffers_of(FAST.encode([array, array]))
    assert np.shares_memory(buffer, array)
    turned = np.moveaxis(array, 0, 1)
    (buffer,) = buffers_of(FAST.encode(turned))
    assert np.shares_memory(buffer, turned)


def test_a_received_array_is_the_block() -> None:
    body = carried(FAST.encode({"image": np.arange(LARGE)}), in_blocks=True)
    (block,) = buffers_of(body)
    got = FAST.decode(body)["image"]
    assert base_of(got) is block
    assert buffers_of(body) == (), "the array keeps it, and nothing else"
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 1


def test_views_of_our_own_memory_are_sent_with_their_gaps() -> None:
    class Ours(FakeBlock):
        pass

    Ours.__module__ = "shmrpc._core"
    block = Ours(np.arange(10_000))
    whole = np.ndarray((100, 100), np.int64, buffer=block)
    for part in (whole[:, ::2], whole[::-1], whole[10:20, 5:95], whole[::-3, ::-1].T, whole[:, :1], whole[0, :9]):
        body = FAST.encode(part)
        (buffer,) = buffers_of(body)
        assert base_of(buffer) is block
        for in_blocks in (False, True):
            got = FAST.decode(carried(body, in_blocks=in_blocks))
            assert np.array_equal(got, part)
            assert got.strides == part.strides
    # An array that shows one element many times is copied.
    part = np.broadcast_to(whole[0], (100, 100))
    body = FAST.encode(part)
    assert all(base_of(buffer) is not block for buffer in buffers_of(body))
    assert np.array_equal(FAST.decode(carried(body)), part)


@drawn(60)
@given(st.data())
def test_covering_has_all_of_an_array_and_says_where_it_begins(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["<i8", ">f4", "<M8[s]", "S3"]))
    base = np.arange(5 * 6 * 7).astype(dtype).reshape(5, 6, 7)
    array = base[data.draw(npst.basic_indices(base.shape, allow_newaxis=True, allow_ellipsis=True))]
    assume(isinstance(array, np.ndarray) and array.size and np.shares_memory(array, base))
    memory, offset = covering_bytes(array)
    assert memory.dtype == np.uint8
    assert memory.ndim == 1
    assert not memory.flags.writeable
    assert np.shares_memory(memory, base)
    assert memory.nbytes <= base.nbytes
    again = np.ndarray(array.shape, array.dtype, buffer=memory.tobytes(), offset=offset, strides=array.strides)
    assert np.array_equal(again, array)


@pytest.mark.parametrize(
    "scalar",
    [
        np.float32(1.5),
        np.float64(-0.0),
        np.int8(-1),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.str_("hü"),
        np.str_(""),
        np.bytes_(b"ab"),
        np.datetime64("2026-01-02T03:04:05", "ns"),
        np.timedelta64(5, "D"),
        np.longdouble(1) / 3,
        np.array([(1, 2.0)], "i4,f8")[0],
    ],
    ids=repr,
)
def test_a_scalar_stays_one(scalar: Any) -> None:
    for codec in (FAST, REFERENCE):
        got = travelled(codec, [scalar])[0]
        assert type(got) is type(scalar)
        assert got.dtype == scalar.dtype
        assert got == scalar


def test_a_scalar_can_be_a_key_and_an_element() -> None:
    value = {np.int64(5): {np.float32(1.5)}}
    assert travelled(FAST, value) == value


@pytest.mark.parametrize(
    ("value", "kind", "number"),
    [
        (np.float64(1.5), float, 1.5),
        ([np.float32(1.5), 2.5], list[float], [1.5, 2.5]),
        ({"a": (np.int16(3), "x")}, dict[str, tuple[int, str]], {"a": (3, "x")}),
        ({np.int64(1)}, set[int], {1}),
        (np.bool_(True), bool, True),
    ],
)
def test_a_scalar_for_a_number_becomes_one(value: Any, kind: Any, number: Any) -> None:
    for codec in (FAST, REFERENCE):
        got = codec.decoder(kind)(codec.encode(value))
        assert got == number
        assert type(got) is type(number)
        assert repr(got) == repr(number)


def test_structured_dtypes_keep_their_offsets_and_titles() -> None:
    padded = np.dtype({"names": ["a", "b"], "formats": ["<i2", ">f8"], "offsets": [4, 16], "itemsize": 32})
    titled = np.dtype([(("the first", "a"), "<i4"), ("b", "<U3", (2, 2))])
    nested = np.dtype([("p", padded), ("q", titled, (2,))])
    for dtype in (padded, titled, nested, np.dtype([("x", "<f4"), ("y", "<f4")], align=True), np.dtype("V7")):
        for length in (2, 500):
            array = np.zeros(length, dtype)
            alike(travelled(FAST, array), array)


RECORDS = [("a", "<i4"), ("b", "<f8")]


@pytest.mark.parametrize(
    "value",
    [
        np.arange(4.0).reshape(2, 2).view(np.matrix),
        np.zeros((100, 100)).view(np.matrix),
        np.rec.array([(1, 2.0)], dtype=RECORDS),
        np.array(["a", "bc"]).view(chararray),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.size}",
)
def test_arrays_of_numpys_other_classes(codec: Codec, value: Any) -> None:
    got = travelled(codec, [value], in_blocks=True)[0]
    assert type(got) is type(value)
    assert got.tobytes() == value.tobytes()
    assert (got.dtype, got.dtype.type, got.shape) == (value.dtype, value.dtype.type, value.shape)
    assert type(codec.decoder(type(value))(carried(codec.encode(value)))) is type(value)
    assert type(codec.decoder(np.ndarray)(carried(codec.encode(value)))) is type(value)


def test_a_memmap_arrives_as_one_without_its_file(codec: Codec, tmp_path: Any) -> None:
    value: Any = np.memmap(tmp_path / "file", np.int32, "w+", shape=(2000,))
    value[:] = 5
    got = travelled(codec, value)
    assert type(got) is np.memmap
    assert (got.sum(), got.filename) == (10_000, None)


def test_records_keep_their_attributes() -> None:
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=RECORDS)
    for value in (records, np.asarray(records), records[0], np.zeros(2, RECORDS), np.zeros(2, RECORDS)[0]):
        for codec in (FAST, REFERENCE):
            got = travelled(codec, value)
            assert type(got) is type(value)
            assert got.dtype.type is value.dtype.type
            assert got.tolist() == value.tolist()


class Degrees(np.float64):
    pass


class Picture(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("value", "remedy"),
    [(Degrees(1.0), r"np\.asarray\(value\)\[\(\)\]"), (np.zeros(3).view(Picture), r"np\.asarray\(value\)")],
    ids=["scalar", "array"],
)
def test_a_class_derived_from_numpys_is_not_sent_as_its_base(value: Any, remedy: str) -> None:
    for codec in (FAST, REFERENCE):
        with pytest.raises(TypeError, match=rf"would arrive as a plain .* send {remedy}, or shmrpc\.register"):
            codec.encode([value])


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([object(), 1]), r"Python objects .* use \.tolist\(\), or codec='pickle'"),
        (np.zeros(2, [("a", "O")]), r"Python objects"),
        (np.array(["a"], np.dtypes.StringDType()), r"Python objects"),
        (np.ma.masked_array([1, 2], [False, True]), r"masked array .* send \.filled\(\)"),
    ],
    ids=["objects", "a field of objects", "strings", "masked"],
)
def test_arrays_that_cannot_be_sent(array: Any, message: str) -> None:
    for codec in (FAST, REFERENCE):
        with pytest.raises(TypeError, match=message):
            codec.encode([array])


def test_arrays_in_fields() -> None:
    pixels = np.arange(LARGE).reshape(10, 100)
    image, sample = Image("a", pixels), Sample(pixels)
    for codec in (FAST, REFERENCE):
        body = codec.encode([image, sample])
        assert len(buffers_of(body)) == 1
        first, second = codec.decode(carried(body))
        assert first.keys() == {"name", "pixels"}
        assert second.keys() == {"type", "rawData"}
        alike(second["rawData"], pixels)
        got = codec.decoder(tuple[Image, Sample])(carried(body))
        assert isinstance(got[0], Image)
        assert isinstance(got[1], Sample)
        alike(got[0].pixels, pixels)
    assert image.pixels is pixels
    assert sample.raw_data is pixels


NDArray = np.ndarray[tuple[Any, ...], np.dtype[Any]]
FITTING: list[tuple[Any, Any]] = [
    (np.zeros(3), np.ndarray),
    (np.zeros(3, np.float32), np.typing.NDArray[np.float32]),
    (np.zeros(3, ">f4"), np.typing.NDArray[np.float32]),
    (np.zeros(3), np.typing.NDArray[np.floating]),
    (np.zeros(3), np.typing.NDArray[Any]),
    (np.zeros(3), np.typing.NDArray),
    (np.zeros(3, "M8[ns]"), np.typing.NDArray[np.datetime64]),
    (np.zeros(3, np.int64), np.typing.NDArray[np.longlong]),
    (np.zeros(3), np.typing.NDArray[np.float32 | np.float64]),
    (np.zeros((2, 3)), np.ndarray[tuple[int, int], np.dtype[np.float64]]),
    (np.zeros((2, 3)), np.ndarray[tuple[int, ...], np.dtype[np.float64]]),
    ([np.zeros(3)], list[np.ndarray]),
    ({"a": np.zeros(3), "b": None}, dict[str, np.typing.NDArray[np.float64] | None]),
    ([np.zeros(3), 1.5, None], list[float | np.ndarray | None]),
    (np.zeros((3, 2)), np.ndarray[tuple[Literal[3, 4], int], np.dtype[Any]]),
    (np.float32(1), np.float32),
    ([np.float32(1), np.zeros(1)], list[np.float32 | np.ndarray]),
]


@pytest.mark.parametrize(("value", "kind"), FITTING, ids=lambda each: repr(each)[:70])
@pytest.mark.parametrize("codec", [FAST, REFERENCE], ids=["msgspec", "msgpack"])
def test_declared_arrays_that_fit(codec: Codec, value: Any, kind: Any) -> None:
    got = codec.decoder(kind)(codec.encode(value))
    assert repr(got) == repr(value)
    assert repr(codec.convert(codec.decode(codec.encode(value)), kind)) == repr(value)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.zeros(3), np.typing.NDArray[np.float32], "Expected an array of `float32`, got one of `float64`"),
        (np.zeros(3, "i4"), np.typing.NDArray[np.floating], "Expected an array of `floating`, got one of `int32`"),
        (
            np.zeros(3),
            np.ndarray[tuple[int, int], np.dtype[np.float64]],
            "Expected an array of 2 dimensions, got one of 1",
        ),
        (
            np.zeros((4, 2)),
            np.ndarray[tuple[Literal[3], int], np.dtype[Any]],
            "Expected an array of length 3 along axis 0, got one of 4",
        ),
        ([1, 2], np.ndarray, "Expected `numpy.ndarray`, got `list`"),
        ([np.zeros(3)], list[list[float]], "Expected `list`, got `numpy.ndarray` - at `$[0]`"),
        (
            [np.zeros(3)],
            list[np.typing.NDArray[np.int8]],
            "Expected an array of `int8`, got one of `float64` - at `$[0]`",
        ),
        (["x"], list[float | np.ndarray], "Expected `float | numpy.ndarray`, got `str` - at `$[0]`"),
        ([["x"]], list[list[int] | np.ndarray], "Expected `int`, got `str` - at `$[0][0]`"),
        (np.zeros(LARGE), np.typing.NDArray[np.float32], "Expected an array of `float32`, got one of `float64`"),
    ],
)
def test_declared_arrays_that_do_not_fit(value: Any, kind: Any, message: str) -> None:
    for codec in (FAST, REFERENCE):
        with pytest.raises(msgspec.ValidationError) as caught:
            codec.decoder(kind)(carried(codec.encode(value)))
        assert str(caught.value) == message


def test_without_numpy_an_array_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    body = FAST.encode([np.zeros(3)])
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    with pytest.raises(msgspec.DecodeError, match="a NumPy array, and numpy is not installed here"):
        FAST.decode(body)
    assert FAST.decode(FAST.encode([(1, {2})])) == [(1, {2})]


def test_a_numpy_that_cannot_be_loaded_is_not_taken_for_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = np.zeros(3)
    body = FAST.encode([sent])

    def import_module(name: str) -> None:
        raise failures.pop()

    failures: list[BaseException] = [ImportError("cannot load module more than once"), KeyboardInterrupt()]
    monkeypatch.setattr(decode_context, "_modules", {})
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", import_module)
        with pytest.raises(KeyboardInterrupt):
            FAST.decode(body)
        with pytest.raises(msgspec.DecodeError, match="numpy cannot be imported here: ImportError: cannot load module"):
            FAST.decode(body)
    alike(FAST.decode(body)[0], sent)


def test_quick_needs_a_parcel_to_be_read_whole() -> None:
    body = carried(FAST.encode(np.zeros(LARGE)))
    for quick in (FAST.quick_decoder(Any), FAST.quick_decoder(np.ndarray)):
        with pytest.raises(UNREADABLE, match="refers to a buffer"):
            quick(body)
    assert FAST.quick_decoder(np.ndarray)(FAST.encode(np.zeros(3))).shape == (3,)
    alike(FAST.decoder(np.ndarray)(body), np.zeros(LARGE))
