"""Extensions for NumPy's arrays and scalars. NumPy is imported only to receive them, never to send."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values import dtypes
from shmrpc.values.blocks import LARGE_ARRAY, check_axis_length, is_block, size_of
from shmrpc.values.decode_context import DecodeContext, library
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension
from shmrpc.values.pickling import write_pickle

NDARRAY: Final = 5
SCALAR: Final = 6
CLASSED: Final = 38

#: Array classes of NumPy that differ from ndarray only in behaviour. A memmap arrives without a file, as from a pickle.
_CLASSES: Final = ("numpy.matrix", "numpy.recarray", "numpy._core.defchararray.chararray", "numpy.memmap")

#: Letters of ``np.longlong`` and ``np.ulonglong``, separate classes whose dtypes equal those of 64 bits.
_TWINS: Final = ("q", "Q")
#: Kinds of dtypes whose arrays support the buffer protocol.
_EXPORTED: Final = frozenset("biufcSU")
#: Largest number of elements of no bytes in one array, which the received bytes do not limit.
_MAX_EMPTY: Final = 65536


def write_array(value: Any, context: EncodeContext) -> Ext:
    """Encode an array: without a copy if it is large and contiguous or in shared memory, else as a contiguous copy.

    Pickles an array of Python objects if the context allows pickles. Raises TypeError for a dtype that cannot be sent.
    """
    np = sys.modules["numpy"]
    try:
        dtype = dtypes.encode(value.dtype)
    except dtypes.HoldsObjects:
        if context.pickled:
            return write_pickle(value, context)
        raise
    if value.flags.c_contiguous and value.nbytes >= LARGE_ARRAY and type(dtype) is str and dtype[1] in _EXPORTED:
        # The common case: the array exports its memory itself.
        return Ext(NDARRAY, context.pack((dtype, value.shape, context.place(value, value))))
    array = np.asarray(value)
    if array.nbytes < LARGE_ARRAY and not (array.nbytes and _is_shared(array)):
        memory, strides, offset = _compact(np, array)
        data = memory.tobytes()
    else:
        memory, strides, offset = _shared_range(array) or _compact(np, array)
        data = context.place(value, memory)
    payload = [dtype, list(array.shape), data]
    if strides is not None:
        payload += [list(strides), offset]
    return Ext(NDARRAY, context.pack(payload))


def _write_masked(value: Any, context: EncodeContext) -> Any:
    """Encode a masked array as a pickle. Raises TypeError if pickles are not allowed."""
    if context.pickled:
        return write_pickle(value, context)
    raise TypeError("a masked array cannot be sent: send .filled(), or its .data and .mask")


def _write_of_class(value: Any, context: EncodeContext) -> Ext:
    """Encode an array of one of NumPy's derived classes as a plain array and the name of the class."""
    return Ext(CLASSED, context.pack([type(value).__name__, write_array(sys.modules["numpy"].asarray(value), context)]))


def _write_scalar(value: Any, context: EncodeContext) -> Ext:
    """Return the extension of a NumPy scalar. Raises TypeError for a dtype that cannot be described."""
    dtype = dtypes.encode(value.dtype)
    # An empty str has a dtype of no bytes, but ``tobytes`` returns some.
    payload = [dtype, value.tobytes()[: value.dtype.itemsize]]
    if value.dtype.char in _TWINS:
        payload.append(value.dtype.char)
    return Ext(SCALAR, context.pack(payload))


def _read_array(payload: Any, context: DecodeContext) -> Any:
    """Return an array: a read-only view of the received memory, or a writable copy if the context ``owns`` arrays."""
    made = _view_array(payload, context)
    return made.copy(order="K") if context.owns else made


def _view_array(payload: Any, context: DecodeContext) -> Any:
    """Return an array over the received memory. Raises ValueError if it does not fit, DecodeError without NumPy."""
    np: Any = library("numpy", "a NumPy array")
    encoded, shape, place, *layout = payload
    dtype, data = dtypes.build(np, encoded), context.data(place)
    count = math.prod(map(check_axis_length, shape))
    if dtype.itemsize == 0 and count > _MAX_EMPTY:
        raise ValueError(f"{count} elements of no bytes")
    if not layout:
        if count * dtype.itemsize != size_of(data):
            raise ValueError(f"{size_of(data)} bytes are not {count} elements of {dtype}")
        return np.ndarray(shape, dtype, buffer=data)
    strides, offset = layout
    if count * dtype.itemsize > size_of(data):  # A stride of 0 would make many elements of few bytes.
        raise ValueError(f"{count} elements of {dtype} do not lie in {size_of(data)} bytes")
    return np.ndarray(shape, dtype, buffer=data, offset=offset, strides=strides)


def _read_of_class(payload: Any, context: DecodeContext) -> Any:
    """Return a view of the array as an instance of its class. Raises ValueError for an unknown class."""
    np: Any = library("numpy", "a NumPy array")
    name, array = payload
    known = {cls.rpartition(".")[2]: cls for cls in _CLASSES}
    if name not in known or type(array) is not np.ndarray:
        raise ValueError(f"{name!r:.100} is not a class of NumPy's arrays that travels")
    module, _, attribute = known[name].rpartition(".")
    return array.view(getattr(library(module, "a NumPy array"), attribute))


def _read_scalar(payload: Any, context: DecodeContext) -> Any:
    """Return a NumPy scalar. Raises ValueError for data that does not fit the dtype."""
    np: Any = library("numpy", "a NumPy scalar")
    encoded, data, *twin = payload
    dtype = dtypes.build(np, encoded)
    if twin:
        plain, (letter,) = dtype, twin
        dtype = np.dtype(letter if letter in _TWINS else None)
        if dtype != plain:
            raise ValueError(f"{letter!r:.100} is no other name of {plain}")
    if not isinstance(data, bytes) or len(data) != dtype.itemsize:
        raise ValueError(f"expected {dtype.itemsize} bytes for {dtype}")
    return np.ndarray((), dtype, buffer=data)[()]


def covering_bytes(array: Any) -> tuple[Any, int]:
    """Return a view of the bytes from an array's lowest to its highest address, and the first element's offset.

    The view is read-only. The array must have elements.
    """
    np = sys.modules["numpy"]
    spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    before, after = -sum(span for span in spans if span < 0), sum(span for span in spans if span > 0)
    lowest = array[(..., *(slice(None, None, -1 if step < 0 else 1) for step in array.strides))]
    first = lowest[(..., *(slice(0, 1),) * array.ndim)].reshape(1).view(np.uint8)
    size = before + after + array.itemsize
    return np.lib.stride_tricks.as_strided(first, (size,), (1,), writeable=False), before


def base_of(value: Any) -> Any:
    """Return the object that owns the memory of an array or a memoryview: a block, or the last base, perhaps itself."""
    while not is_block(value):
        below = value.obj if isinstance(value, memoryview) else getattr(value, "base", None)
        if below is None:
            break
        value = below
    return value


def _is_shared(array: Any) -> bool:
    """Return True if an array lies in shared memory, as one from ``empty()`` does."""
    return type(base_of(array)).__module__ == "shmrpc._core"


def _shared_range(array: Any) -> tuple[Any, tuple[int, ...], int] | None:
    """Return the shared memory under an array with gaps, its strides and its offset; None if a copy is better."""
    if _transpose_to_c_order(array) is not None or not _is_shared(array):
        return None
    memory, offset = covering_bytes(array)
    return (memory, array.strides, offset) if memory.nbytes >= array.nbytes > 0 else None


def _compact(np: Any, array: Any) -> tuple[Any, tuple[int, ...] | None, int]:
    """Return the elements as contiguous bytes in the order of memory, the strides if that is not C order, and 0."""
    row = array if array.flags.c_contiguous else _transpose_to_c_order(array)
    if row is None:
        array = array.copy(order="K")
        row = array if array.flags.c_contiguous else _transpose_to_c_order(array)
    if row is None:
        array = row = np.ascontiguousarray(array)
    return _view_bytes(np, row), None if row is array else array.strides, 0


def _transpose_to_c_order(array: Any) -> Any:
    """Return a transposed view whose elements are contiguous in C order; None if no order of the axes gives one."""
    row = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return row if row.flags.c_contiguous else None


def _view_bytes(np: Any, array: Any) -> Any:
    """Return the bytes of a contiguous array as a view."""
    return array.reshape(-1).view(np.uint8) if array.itemsize else np.empty(0, np.uint8)


def without_scalars(value: Any) -> Any:
    """Return a value with Python's numbers in place of NumPy's, in builtin containers, too; the same if it has none."""
    np = sys.modules.get("numpy")
    return value if np is None else _without_scalars(value, np.generic)


def _without_scalars(value: Any, scalar: type) -> Any:
    """Return a value with Python's numbers for instances of ``scalar``, in builtin containers too; the same if none."""
    if isinstance(value, scalar):
        return value.item()  # type: ignore[attr-defined]
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        items = [_without_scalars(item, scalar) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else kind(items)
    if kind is dict:
        pairs = [(_without_scalars(k, scalar), _without_scalars(v, scalar)) for k, v in value.items()]
        same = all(a is k and b is v for (a, b), (k, v) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    return value


EXTENSIONS: Final = (
    # Before ndarray, the base class of these.
    Extension(
        CLASSED,
        "NumPy array of another class",
        "`[class, NumPy array]`: `matrix`, `recarray`, `chararray` or `memmap`",
        _read_of_class,
        dict.fromkeys(_CLASSES, _write_of_class),
    ),
    Extension(
        NDARRAY,
        "NumPy array",
        "`[dtype, shape, data]` in C order, else `[dtype, shape, data, strides, offset]`, in bytes",
        _read_array,
        {
            "numpy.ma.MaskedArray": _write_masked,
            "numpy.ndarray": write_array,
        },
    ),
    Extension(
        SCALAR,
        "NumPy scalar",
        "`[dtype, bin]`, with a third, `q` or `Q`, for a C `long long`, signed or not",
        _read_scalar,
        {"numpy.generic": _write_scalar},
        covers=lambda kind: kind.__module__ == "numpy",
    ),
)
