"""Received memory that is written in place, so that its sender sees it."""

from __future__ import annotations

import ctypes
import sys
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from shmrpc.values import arrays, arrow, tensors
from shmrpc.values.aliases import UNIONS
from shmrpc.values.blocks import Block, is_block

_T = TypeVar("_T")


class _WritableMark:
    def __repr__(self) -> str:
        return "WRITABLE"


WRITABLE: Final = _WritableMark()

#: ``Writable[np.ndarray]``: a parameter whose memory the endpoint writes in place, for the caller to see.
Writable = Annotated[_T, WRITABLE]


def is_writable(kind: Any) -> bool:
    """Whether a declared type is `Writable`, or that or None."""
    origin = get_origin(kind)
    if origin is Annotated:
        return WRITABLE in get_args(kind)[1:]
    return origin in UNIONS and any(map(is_writable, get_args(kind)))


def block_of(value: Any) -> Block | None:
    """The received block under a NumPy array, a memoryview, a tensor or an Arrow buffer; None if there is none."""
    found = arrow.block_of_buffer(value) or tensors.block_of_tensor(value)
    if found is not None:
        return found
    base = arrays.base_of(value)
    return base if is_block(base) else None


def writable(value: Any) -> Any:
    """The same array or memoryview, over memory that can be written and that the sender sees.

    What came in the body, since it is small, is copied: its sender does not see what is written. TypeError for what
    is no array and no memoryview.
    """
    is_array = isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ()))
    if not (is_array or isinstance(value, memoryview)):
        raise TypeError(f"expected a NumPy array or a memoryview to write to, got {type(value).__qualname__}")
    return _writable_array(value) if is_array else _writable_view(value)


def _writable_array(value: Any) -> Any:
    if value.flags.writeable:
        return value
    block = block_of(value)
    if block is None:
        return value.copy(order="K")
    np: Any = sys.modules["numpy"]
    offset = value.__array_interface__["data"][0] - _address(memoryview(block))
    return np.ndarray(value.shape, value.dtype, buffer=block.shared(), offset=offset, strides=value.strides)


def _writable_view(value: memoryview) -> memoryview:
    if not value.readonly:
        return value
    block = block_of(value)
    if block is None:
        return _shaped(memoryview(bytearray(value.tobytes())), value)
    offset = _address(value) - _address(memoryview(block))
    if not value.c_contiguous:
        raise TypeError("a memoryview with gaps cannot be made writable: take the whole one, and then the part of it")
    return _shaped(memoryview(block.shared())[offset : offset + value.nbytes], value)


def _shaped(memory: memoryview, like: memoryview) -> memoryview:
    if like.ndim == 1 or not like.nbytes:
        return memory.cast(like.format)  # type: ignore[call-overload, no-any-return]
    return memory.cast(like.format, like.shape)  # type: ignore[call-overload, no-any-return]


class _PyBuffer(ctypes.Structure):
    """The interpreter's own view of a buffer: nothing in Python says where memory is that can only be read."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


#: PyBUF_FULL_RO.
_ANY_BUFFER: Final = 0x11C


def _address(view: memoryview) -> int:
    found = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), _ANY_BUFFER)
    try:
        return found.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
