"""Extensions for bytes, bytearray, memoryview and array.array."""

from __future__ import annotations

import array
import struct
import sys
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values.blocks import LARGE, Data, bytes_of
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

BYTES: Final = 1
BYTEARRAY: Final = 2
MEMORYVIEW: Final = 3
ARRAY: Final = 4

#: Formats of ``memoryview.cast``, and type codes of ``array.array``.
_FORMATS: Final = frozenset("cbB?hHiIlLqQnNfdP")
_TYPECODES: Final = frozenset("bBuwhHiIlLqQfd")
_OWN_ORDER: Final = "<" if sys.byteorder == "little" else ">"


def _write_bytes(value: bytes, context: EncodeContext) -> Any:
    """Return small bytes unchanged, which travel as a MessagePack bin, and an extension for large ones."""
    if len(value) < LARGE:
        return value
    return Ext(BYTES, context.pack(context.place(value, value)))


def _write_bytearray(value: bytearray, context: EncodeContext) -> Ext:
    """Return the extension of a bytearray. The bytes of a large one go beside the body."""
    data = bytes(value) if len(value) < LARGE else context.place(value, value)
    return Ext(BYTEARRAY, context.pack(data))


def _write_memoryview(value: memoryview, context: EncodeContext) -> Ext:
    """Return the extension of a memoryview. Raises TypeError for a format that cannot be sent."""
    form = _native_format(value.format)
    if form is None:
        raise TypeError(f"a memoryview of format {value.format!r} cannot be sent: .cast('B') makes bytes of it")
    return _write_view(value, value, form, context)


def _write_view(owner: Any, view: memoryview, form: str, context: EncodeContext) -> Ext:
    """Encode a view with its format and its shape. Raises TypeError for a shape that cannot be rebuilt."""
    size, shape = view.nbytes, view.shape or ()
    if size < LARGE or not view.c_contiguous:
        copy = view.tobytes()
        data = copy if size < LARGE else context.place(owner, copy)
    else:
        from pickle import PickleBuffer  # Imported on use: few programs need it.

        data = context.place(owner, PickleBuffer(view).raw())
    if 0 in shape and len(shape) > 1:  # memoryview.cast() cannot build such a view.
        raise TypeError(f"a memoryview of shape {shape} cannot be sent: send the array that it shows, or bytes")
    plain = form == "B" and len(shape) == 1
    return Ext(MEMORYVIEW, context.pack(data if plain else [data, form, list(shape)]))


def _native_format(form: str) -> str | None:
    """Return the letter for a format in ``memoryview.cast``, or None if cast() does not support the format."""
    order, letter = (form[0], form[1:]) if form[:1] in ("@", "=", "<", ">", "!") else ("@", form)
    if letter not in _FORMATS:
        return None
    if order == "@":
        return letter
    # Arrays of ctypes name the byte order even if it is the machine's own.
    same = letter not in "nNP" and struct.calcsize(f"={letter}") == struct.calcsize(f"@{letter}")
    return letter if same and order in ("=", _OWN_ORDER) else None


def _write_array(value: array.array[Any], context: EncodeContext) -> Ext:
    """Return the extension of an array of the standard library. The bytes of a large one go beside the body."""
    size = len(value) * value.itemsize
    data = value.tobytes() if size < LARGE else context.place(value, memoryview(value).cast("B"))
    return Ext(ARRAY, context.pack([value.typecode, data]))


def _read_memoryview(payload: Any, context: DecodeContext) -> memoryview[Any]:
    """Return a read-only view of the received memory. Raises ValueError for a format or a size that does not fit."""
    if not isinstance(payload, list):
        return memoryview(context.data(payload)).toreadonly()
    place, form, shape = payload
    view = memoryview(context.data(place)).toreadonly()
    if form not in _FORMATS:
        raise ValueError(f"{form!r} is not a format of a memoryview")
    if len(shape) == 1 and struct.calcsize(form) * shape[0] != view.nbytes:
        raise ValueError(f"{view.nbytes} bytes are not {shape[0]} elements")
    return view.cast(form) if len(shape) == 1 else view.cast(form, shape)


def _read_array(payload: Any, context: DecodeContext) -> array.array[Any]:
    """Return an array with a copy of the data; the same one each time for the same buffer.

    Raises ValueError for an unknown typecode, and for data that ends within an element.
    """
    typecode, place = payload
    if not (isinstance(typecode, str) and typecode in _TYPECODES):
        raise ValueError(f"{typecode!r} is not a typecode")

    def copied(data: Data) -> array.array[Any]:
        result: array.array[Any] = array.array(typecode)
        result.frombytes(data)
        return result

    return context.once((ARRAY, typecode), place, copied)  # type: ignore[no-any-return]


#: Bytes, bytearrays and arrays arrive as copies: one copy for each buffer, however often the value refers to it.
EXTENSIONS: Final = (
    Extension(
        BYTES,
        "bytes",
        "data: large ones only, small ones are MessagePack's own bin",
        lambda payload, context: context.once(BYTES, payload, bytes_of),
        {bytes: _write_bytes},
    ),
    Extension(
        BYTEARRAY,
        "bytearray",
        "data",
        lambda payload, context: context.once(BYTEARRAY, payload, bytearray),
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
