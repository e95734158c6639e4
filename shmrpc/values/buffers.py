"""Bytes, bytearrays, memoryviews and Python's own arrays."""

from __future__ import annotations

import array
import struct
import sys
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values.blocks import LARGE, Data, bytes_of
from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reading
from shmrpc.values.writing import Writing

BYTES: Final = 1
BYTEARRAY: Final = 2
MEMORYVIEW: Final = 3
ARRAY: Final = 4

#: What `memoryview.cast` takes, and the typecodes of `array.array`.
_FORMATS: Final = frozenset("cbB?hHiIlLqQnNfdP")
_TYPECODES: Final = frozenset("bBuwhHiIlLqQfd")
_OWN_ORDER: Final = "<" if sys.byteorder == "little" else ">"


def _write_bytes(value: bytes, writing: Writing) -> Any:
    """MessagePack's own bin if they are small."""
    if len(value) < LARGE:
        return value
    return Ext(BYTES, writing.pack(writing.place(value, value)))


def _write_bytearray(value: bytearray, writing: Writing) -> Ext:
    data = bytes(value) if len(value) < LARGE else writing.place(value, value)
    return Ext(BYTEARRAY, writing.pack(data))


def _write_memoryview(value: memoryview, writing: Writing) -> Ext:
    form = _native_format(value.format)
    if form is None:
        raise TypeError(f"a memoryview of format {value.format!r} cannot be sent: .cast('B') makes bytes of it")
    return _write_view(value, value, form, writing)


def _write_view(owner: Any, view: memoryview, form: str, writing: Writing) -> Ext:
    size, shape = view.nbytes, view.shape or ()
    if size < LARGE or not view.c_contiguous:
        copy = view.tobytes()
        data = copy if size < LARGE else writing.place(owner, copy)
    else:
        from pickle import PickleBuffer  # Few programs need it.

        data = writing.place(owner, PickleBuffer(view).raw())
    if 0 in shape and len(shape) > 1:  # memoryview.cast() makes none.
        raise TypeError(f"a memoryview of shape {shape} cannot be sent: send the array that it shows, or bytes")
    plain = form == "B" and len(shape) == 1
    return Ext(MEMORYVIEW, writing.pack(data if plain else [data, form, list(shape)]))


def _native_format(form: str) -> str | None:
    """The same format as `memoryview.cast` takes it; None if it does not take it."""
    order, letter = (form[0], form[1:]) if form[:1] in ("@", "=", "<", ">", "!") else ("@", form)
    if letter not in _FORMATS:
        return None
    if order == "@":
        return letter
    # Arrays of ctypes name the order even where it is the machine's own.
    same = letter not in "nNP" and struct.calcsize(f"={letter}") == struct.calcsize(f"@{letter}")
    return letter if same and order in ("=", _OWN_ORDER) else None


def _write_array(value: array.array[Any], writing: Writing) -> Ext:
    size = len(value) * value.itemsize
    data = value.tobytes() if size < LARGE else writing.place(value, memoryview(value).cast("B"))
    return Ext(ARRAY, writing.pack([value.typecode, data]))


def _read_memoryview(payload: Any, reading: Reading) -> memoryview[Any]:
    """A read-only view."""
    if not isinstance(payload, list):
        return memoryview(reading.data(payload)).toreadonly()
    place, form, shape = payload
    view = memoryview(reading.data(place)).toreadonly()
    if form not in _FORMATS:
        raise ValueError(f"{form!r} is not a format of a memoryview")
    if len(shape) == 1 and struct.calcsize(form) * shape[0] != view.nbytes:
        raise ValueError(f"{view.nbytes} bytes are not {shape[0]} elements")
    return view.cast(form) if len(shape) == 1 else view.cast(form, shape)


def _read_array(payload: Any, reading: Reading) -> array.array[Any]:
    typecode, place = payload
    if not (isinstance(typecode, str) and typecode in _TYPECODES):
        raise ValueError(f"{typecode!r} is not a typecode")

    def copied(data: Data) -> array.array[Any]:
        result: array.array[Any] = array.array(typecode)
        result.frombytes(data)
        return result

    return reading.once((ARRAY, typecode), place, copied)  # type: ignore[no-any-return]


#: Of bytes, a bytearray and an array, the receiver has a copy: the same one wherever the same buffer stands.
EXTENSIONS: Final = (
    Extension(
        BYTES,
        "bytes",
        "data: large ones only, small ones are MessagePack's own bin",
        lambda payload, reading: reading.once(BYTES, payload, bytes_of),
        {bytes: _write_bytes},
    ),
    Extension(
        BYTEARRAY,
        "bytearray",
        "data",
        lambda payload, reading: reading.once(BYTEARRAY, payload, bytearray),
        {bytearray: _write_bytearray},
    ),
    Extension(
        MEMORYVIEW,
        "memoryview",
        "data, or `[data, format, shape]` if it is not plain bytes in a row; *format* is a letter of Python's `struct`,"
        " in the machine's sizes",
        _read_memoryview,
        {memoryview: _write_memoryview},
    ),
    Extension(ARRAY, "array.array", "`[typecode, data]`", _read_array, {array.array: _write_array}),
)
