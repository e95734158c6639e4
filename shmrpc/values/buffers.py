"""Bytes, bytearrays, memoryviews and arrays of Python's own; and the blocks that large data arrive in."""

from __future__ import annotations

import array
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

from msgspec.msgpack import Ext

from shmrpc.values import extensions

if TYPE_CHECKING:
    from shmrpc.values.decode import Lifting
    from shmrpc.values.encode import Packing

#: Bytes from here on travel beside the body, in bytes.
LARGE: Final = 32768
#: The same for what need not be copied at the receiver.
LARGE_ARRAY: Final = 4096

#: What `memoryview.cast` takes, and the typecodes of `array.array`.
_FORMATS: Final = frozenset("cbB?hHiIlLqQnNfdP")
_TYPECODES: Final = frozenset("bBuwhHiIlLqQfd")
_OWN_ORDER: Final = "<" if sys.byteorder == "little" else ">"


class Block(Protocol):
    """Received memory: bytes that are read only, and stay as long as anything looks at them."""

    def to_bytes(self) -> bytes:
        """A copy."""
        ...

    def release(self) -> None:
        """Gives it back now."""
        ...

    def private(self) -> Any:
        """The same bytes as a buffer that can be written, and nobody else sees it."""
        ...

    def shared(self) -> Any:
        """The same bytes as a buffer that can be written, and the sender sees it."""
        ...


#: What a payload's data is found to be.
Data = bytes | Block


def is_block(value: object) -> TypeGuard[Block]:
    """Whether it is received memory, and not plain bytes."""
    return hasattr(value, "private") and hasattr(value, "shared")


def size_of(data: Data) -> int:
    """In bytes."""
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes  # type: ignore[arg-type]


def write_bytes(value: bytes, packing: Packing) -> Any:
    """Small ones are MessagePack's own."""
    if len(value) < LARGE:
        return value if type(value) is bytes else bytes(value)
    return Ext(extensions.BYTES, packing.pack(packing.place(value, value)))


def write_bytearray(value: bytearray, packing: Packing) -> Ext:
    """An extension also when it is small."""
    data = bytes(value) if len(value) < LARGE else packing.place(value, value)
    return Ext(extensions.BYTEARRAY, packing.pack(data))


def write_memoryview(value: memoryview, packing: Packing) -> Ext:
    """Its bytes, and how they are to be looked at."""
    form = _native_format(value.format)
    if form is None:
        raise TypeError(f"a memoryview of format {value.format!r} cannot be sent: .cast('B') makes bytes of it")
    return _write_view(value, value, form, packing)


def write_buffer(value: Any, packing: Packing) -> Ext:
    """Whatever else has the buffer protocol; what memoryview cannot name the elements of goes as bytes."""
    view = memoryview(value)
    form = _native_format(view.format)
    if form is None:
        view, form = memoryview(view.tobytes()), "B"
    return _write_view(value, view, form, packing)


def _write_view(owner: Any, view: memoryview, form: str, packing: Packing) -> Ext:
    size, shape = view.nbytes, view.shape or ()
    if size < LARGE or not view.c_contiguous:
        copy = view.tobytes()
        data = copy if size < LARGE else packing.place(owner, copy)
    else:
        data = packing.place(owner, pickle.PickleBuffer(view).raw())
    if 0 in shape:  # memoryview makes none that look at nothing in several dimensions.
        shape = (0,)
    plain = form == "B" and len(shape) == 1
    return Ext(extensions.MEMORYVIEW, packing.pack(data if plain else [data, form, list(shape)]))


def _native_format(form: str) -> str | None:
    """One that `memoryview.cast` takes; None if there is none for it."""
    order, letter = (form[0], form[1:]) if form[:1] in ("@", "=", "<", ">", "!") else ("@", form)
    if letter not in _FORMATS:
        return None
    if order == "@":
        return letter
    # ctypes names the order even where it is the machine's own.
    same = letter not in "nNP" and struct.calcsize(f"={letter}") == struct.calcsize(f"@{letter}")
    return letter if same and order in ("=", _OWN_ORDER) else None


def write_python_array(value: array.array[Any], packing: Packing) -> Ext:
    """Its bytes as they are in memory."""
    size = len(value) * value.itemsize
    data = value.tobytes() if size < LARGE else packing.place(value, memoryview(value).cast("B"))
    return Ext(extensions.ARRAY, packing.pack([value.typecode, data]))


def read_bytes(payload: Any, lifting: Lifting) -> bytes:
    """A copy; the same one wherever the same buffer stands."""
    return lifting.once(extensions.BYTES, payload, bytes_of)  # type: ignore[no-any-return]


def bytes_of(data: Data) -> bytes:
    """The same bytes, copied if they are in a block."""
    return data if isinstance(data, bytes) else data.to_bytes()


def read_bytearray(payload: Any, lifting: Lifting) -> bytearray:
    """A copy; the same one wherever the same buffer stands, as at the sender."""
    return lifting.once(extensions.BYTEARRAY, payload, _bytearray_of)  # type: ignore[no-any-return]


def _bytearray_of(data: Data) -> bytearray:
    return bytearray(data)  # type: ignore[arg-type]


def read_memoryview(payload: Any, lifting: Lifting) -> memoryview:
    """A view that can only be read."""
    if not isinstance(payload, list):
        return memoryview(lifting.data(payload)).toreadonly()  # type: ignore[arg-type]
    place, form, shape = payload
    view = memoryview(lifting.data(place)).toreadonly()  # type: ignore[arg-type]
    if form not in _FORMATS:
        raise ValueError(f"{form!r} is no format of a memoryview")
    result: Any = view.cast(form) if len(shape) == 1 and _fits(view, form, shape[0]) else view.cast(form, shape)
    return result  # type: ignore[no-any-return]


def _fits(view: memoryview, form: str, length: int) -> bool:
    if struct.calcsize(form) * length != view.nbytes:
        raise ValueError(f"{view.nbytes} bytes are not {length} elements")
    return True


def read_python_array(payload: Any, lifting: Lifting) -> array.array[Any]:
    """A copy; the same one wherever the same buffer stands."""
    typecode, place = payload
    if not (isinstance(typecode, str) and typecode in _TYPECODES):
        raise ValueError(f"{typecode!r} is no typecode")

    def copied(data: Data) -> array.array[Any]:
        result: array.array[Any] = array.array(typecode)
        result.frombytes(data)  # type: ignore[arg-type]
        return result

    return lifting.once((extensions.ARRAY, typecode), place, copied)  # type: ignore[no-any-return]
