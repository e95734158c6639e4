"""Arrays and large bytes in the core: it writes what Python's writers write, and reads what they read."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any, Literal, NoReturn

import hypothesis.extra.numpy as npst
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.values.aliases import without_aliases
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.blocks import LARGE, LARGE_ARRAY
from shmrpc.values.encode import ValueEncoder, enc_hook
from shmrpc.values.expected import expected
from shmrpc.wire.codec import UNREADABLE, Body, get_codec
from tests.helpers.corrupt_arrays import ARRAY, BUFFER_SIZE, CORRUPT_ARRAYS
from tests.helpers.value_trips import buffers_of, carried
from tests.values.hypothesis_draws import drawn

CODEC = get_codec("msgspec")
#: The codec that reads arrays in Python alone.
REFERENCE = get_codec("msgpack")
#: The encoder that writes values in Python alone.
PYTHON = ValueEncoder(msgspec.msgpack.Encoder(enc_hook=enc_hook).encode, ALL_EXTENSIONS, pickled=False)
LONG_BYTES, LONG_ARRAY = b"x" * LARGE, np.arange(LARGE_ARRAY // 8, dtype="<f8")
#: Values that the core writes.
WRITTEN: list[Any] = [
    LONG_ARRAY,
    LONG_ARRAY.reshape(2, 8, -1),
    np.arange(LARGE_ARRAY // 8 - 1, dtype="<i8"),
    np.zeros((0, 3), "u1"),
    np.array(2.5),
    np.ones(70_000, bool),
    *(np.arange(number, dtype="u1") for number in (1, 2, 3, 4, 5, 6, 7, 8, 240, 250, 256, 4095)),
    *(np.arange(300).astype(kind) for kind in "bBhHiIlLqQefdgFDG"),
    LONG_ARRAY[3:],
    LONG_ARRAY[:3][:2],
    np.frombuffer(b"abc", "u1"),
    LONG_BYTES,
    [LONG_BYTES, LONG_ARRAY, {"a": LONG_ARRAY, "b": [LONG_BYTES, b"", 1]}],
    memoryview(LONG_BYTES),
    memoryview(bytearray(LONG_BYTES * 2))[1:],
]
#: Each goes to Python's writers.
LEFT: list[Any] = [
    LONG_ARRAY[::2],
    np.asfortranarray(np.zeros((3, 5))),
    LONG_ARRAY.astype(">f8"),
    np.array(["a", "bc"]),
    np.array([1, 2], "M8[s]"),
    np.zeros(3, [("a", "i4"), ("b", "f8")]),
    np.zeros(600, "f8").view(np.matrix),
    np.frombuffer(bytearray(100), "u1"),
    memoryview(b"abc"),
    memoryview(LONG_BYTES)[::2],
    memoryview(np.arange(LARGE, dtype="i4")),  # type: ignore[arg-type]
    memoryview(LONG_BYTES).cast("c"),
    np.float64(1),
    [np.zeros(600) for _ in range(70)],
]


def _name(value: object) -> str:
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}"


def _parts(body: Body) -> tuple[bytes, list[bytes]]:
    raw = body if isinstance(body, bytes) else body.body
    return raw, [memoryview(each).tobytes() for each in buffers_of(body)]


def _refuse(*arguments: object) -> NoReturn:
    raise AssertionError("it is left to Python")


def _alone() -> _core.Encoder:
    """Return an encoder of the core without Python's writers, which knows arrays and memoryviews."""
    encoder = _core.Encoder(
        encode_plain=_refuse,
        encode_value=lambda value: b"",
        encode_values=_refuse,
        is_plain=PYTHON.is_plain,
        large=LARGE,
        large_array=LARGE_ARRAY,
        reference=False,
        whole=False,
    )
    for value in (np.zeros(1), memoryview(b"")):
        encoder.encode(value)
    return encoder


def _read(body: Body, kind: Any = Any) -> Any:
    known = expected(without_aliases(kind))  # Endpoints resolve their types in this way: NDArray may be an alias.
    assert known is not None
    return known.read(body)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        layouts = [(each.dtype, each.shape, each.strides, str(each.flags), type(each.base)) for each in (a, b)]
        return layouts[0] == layouts[1] and a.dtype is b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, memoryview):
        return type(b) is memoryview and (a.readonly, a.format, a.shape) == (b.readonly, b.format, b.shape) and a == b
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(map(_same, a.values(), b.values()))
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("value", WRITTEN, ids=_name)
def test_the_core_writes_what_python_writes(value: Any) -> None:
    body = _alone().encode(value)
    assert body != b"", "it is left to Python"
    assert _parts(body) == _parts(PYTHON.encode(value)) == _parts(CODEC.encode(value))
    args = CODEC.encode_all((value, 1, value))
    assert _parts(args) == _parts(PYTHON.encode_all((value, 1, value)))


@pytest.mark.parametrize("value", LEFT, ids=_name)
def test_the_core_leaves_unusual_arrays_to_python(value: Any) -> None:
    assert _alone().encode(value) == b""
    assert _parts(CODEC.encode(value)) == _parts(PYTHON.encode(value))


@pytest.mark.parametrize("value", [*WRITTEN, memoryview(b""), memoryview(b"abc")], ids=_name)
def test_the_core_reads_what_python_reads(value: Any) -> None:
    body = carried(CODEC.encode(value))
    assert _same(_read(body), REFERENCE.decode(carried(CODEC.encode(value))))


def test_bytes_that_are_named_twice_are_copied_once() -> None:
    first, second = _read(carried(CODEC.encode([LONG_BYTES, LONG_BYTES])))
    assert first is second == LONG_BYTES


numbers = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?"),
)
arrays = numbers.flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=30))
)
nested = st.recursive(
    arrays | st.integers(-9, 9) | st.sampled_from([b"", b"x", LONG_BYTES, memoryview(b"x"), memoryview(LONG_BYTES)]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=8,
)


@drawn(150)
@given(nested)
def test_any_value_with_arrays_is_written_and_read_as_python_does(value: Any) -> None:
    body = CODEC.encode(value)
    assert _parts(body) == _parts(PYTHON.encode(value))
    try:
        read = _read(carried(body))
    except ValueError:
        return
    assert _same(read, REFERENCE.decode(carried(body)))


@drawn(300)
@given(
    st.sampled_from(range(len(WRITTEN))).map(WRITTEN.__getitem__),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_a_body_that_was_changed_is_refused_or_read_as_python_reads_it(
    value: Any, changes: list[tuple[int, int]]
) -> None:
    body = CODEC.encode(value)
    raw, buffers = _parts(body)
    data = bytearray(raw)
    for place, byte in changes:
        data[place % len(data)] = byte
    changed: Body = _core.Parcel(bytes(data), buffers) if buffers else bytes(data)
    try:
        read = _read(changed)
    except ValueError:
        return
    again: Body = _core.Parcel(bytes(data), buffers) if buffers else bytes(data)
    assert _same(read, REFERENCE.decode(again))


Small = np.ndarray[tuple[Literal[3]], np.dtype[np.float64]]
KINDS: list[tuple[Any, Any, bool]] = [
    (np.ndarray, np.zeros(3), True),
    (np.ndarray | None, np.zeros(3, "u1"), True),
    (np.ndarray | None, None, True),
    (np.ndarray | int, 5, True),
    (npt.NDArray[np.float64], np.zeros(3), True),
    (npt.NDArray[np.float64], np.zeros(3, "f4"), False),
    (npt.NDArray[np.floating], np.zeros(3, "f4"), True),
    (npt.NDArray[np.floating], np.zeros(3, "i4"), False),
    (npt.NDArray[np.uint8 | np.int8], np.zeros((2, 2), "i1"), True),
    (npt.NDArray[np.longlong], np.zeros(2, "i8"), True),
    (npt.NDArray[Any], np.zeros(2, bool), True),
    (list[npt.NDArray[np.float64]], [np.zeros(2), np.zeros(900)], True),
    (dict[str, np.ndarray], {"a": np.zeros(2)}, True),
    (np.ndarray, 5, False),
    (np.ndarray, b"x", False),
    (bytes, np.zeros(3), False),
    (bytes, LONG_BYTES, True),
    (str, LONG_BYTES, False),
    (memoryview, memoryview(LONG_BYTES), True),
    (memoryview | None, memoryview(b"abc"), True),
    (memoryview | int, 5, True),
    (list[memoryview], [memoryview(b""), memoryview(LONG_BYTES)], True),
    (memoryview, 5, False),
    (memoryview, np.zeros(3), False),
]


@pytest.mark.parametrize(("kind", "value", "fits"), KINDS, ids=lambda each: re.sub(" at 0x[0-9a-f]+", "", str(each)))
def test_a_declared_array_is_read_if_it_fits(kind: Any, value: Any, fits: bool) -> None:
    body = carried(CODEC.encode(value))
    if fits:
        assert _same(_read(body, kind), REFERENCE.decoder(kind)(body))
        return
    with pytest.raises(ValueError, match="not of the expected type"):
        _read(body, kind)
    with pytest.raises(UNREADABLE):
        REFERENCE.decoder(kind)(body)


@pytest.mark.parametrize("kind", [Small, np.matrix, list[Small]], ids=str)
def test_a_declared_array_of_a_certain_shape_is_left_to_python(kind: Any) -> None:
    assert expected(kind) is None


def test_nothing_is_kept_of_what_was_written_and_read() -> None:
    array, data = np.arange(1000.0), b"y" * LARGE
    body = CODEC.encode([array, data, array[:4]])
    bad = _core.Parcel(b"\xc7\x0b\x05\x93\xa3<f8\x91\xcd\x03\xe9\x00", [array.tobytes()])
    assert isinstance(body, _core.Parcel)

    def once() -> None:
        CODEC.encode([array, data, array[:4]])
        buffers = [bytes(memoryview(each)) for each in body.buffers]
        _read(_core.Parcel(body.body, buffers))
        with pytest.raises(ValueError, match="not of the expected type"):
            _read(bad)

    once()
    kept = array, data, array.dtype, bad.buffers[0]
    before = [sys.getrefcount(each) for each in kept]
    for _ in range(50):
        once()
    after = [sys.getrefcount(each) for each in kept]
    assert all(b - a < 10 for a, b in zip(before, after, strict=True)), (before, after)


def test_a_view_may_be_released_once_it_was_written() -> None:
    view = memoryview(LONG_BYTES)
    body = _alone().encode(view)
    view.release()
    assert [bytes(each) for each in buffers_of(body)] == [LONG_BYTES]


@pytest.mark.parametrize("lie", CORRUPT_ARRAYS, ids=str)
@pytest.mark.parametrize("kind", [Any, np.ndarray, list[np.ndarray]], ids=str)
def test_an_array_that_does_not_lie_in_its_buffer_is_refused(kind: Any, lie: str) -> None:
    body = msgspec.msgpack.encode(Ext(ARRAY, msgspec.msgpack.encode(CORRUPT_ARRAYS[lie])))
    raw = b"\x91" + body if kind == list[np.ndarray] else body
    for buffers in ([bytes(BUFFER_SIZE)], [bytes(BUFFER_SIZE), bytes(8)]):
        with pytest.raises(ValueError, match="not of the expected type"):
            _read(_core.Parcel(raw, buffers), kind)
        with pytest.raises(UNREADABLE):
            REFERENCE.decoder(kind)(_core.Parcel(raw, buffers))


def test_arrays_that_are_registered_afterwards_travel_as_registered() -> None:
    code = """
        import numpy, shmrpc
        from shmrpc.wire.codec import get_codec

        codec, value = get_codec("msgspec"), numpy.zeros(600)
        assert [len(codec.encode(value).buffers) for _ in range(3)] == [1, 1, 1]
        shmrpc.register(numpy.ndarray, lambda value: "registered", lambda text: text)
        assert all(b"registered" in codec.encode(value) for _ in range(3))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
