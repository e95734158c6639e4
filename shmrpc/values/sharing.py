"""Memory that sender and receiver share: arrays built in it, written in place, and given back early."""

from __future__ import annotations

import importlib
import math
import operator
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_args, get_origin

from shmrpc import _core
from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.values import arrays, arrow, tensors
from shmrpc.values.aliases import UNIONS
from shmrpc.values.blocks import Block, is_block

if TYPE_CHECKING:
    import numpy
    import numpy.typing

_T = TypeVar("_T")
#: Makes a number of bytes of memory that the peer can be given, with the buffer protocol.
Allocate = Callable[[int], Any]


def empty_array(
    allocate: Allocate, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike
) -> numpy.ndarray[Any, Any]:
    """A NumPy array in shared memory, with whatever contents were there before."""
    try:
        np = importlib.import_module("numpy")
    except ImportError as error:
        absent = "numpy is not installed here: pip install numpy; or use buffer(), which needs none"
        raise ImportError(
            f"empty() makes a NumPy array, and {describe_import_failure('numpy', error, absent)}"
        ) from error
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds references to Python objects, which mean nothing to another process")
    lengths = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape: expected lengths of 0 or more, got {shape}")
    memory = allocate(math.prod(lengths) * kind.itemsize)
    return np.ndarray(lengths, kind, buffer=memory)  # type: ignore[no-any-return]


def empty_buffer(allocate: Allocate, size: int) -> memoryview:
    """Writable bytes in shared memory, with whatever contents were there before."""
    if size < 0:
        raise ValueError(f"size: expected 0 bytes or more, got {size}")
    return memoryview(allocate(size))[:size]


class _WritableMark:
    def __repr__(self) -> str:
        return "WRITABLE"


WRITABLE: Final = _WritableMark()

#: ``Writable[np.ndarray]``: a parameter whose memory the endpoint writes in place, so that the caller sees it.
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
    """The same array or memoryview, over writable memory that the sender sees.

    A small one, which came in the body, is copied: its sender does not see what is written. TypeError for what is
    neither an array nor a memoryview.
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
    offset = value.__array_interface__["data"][0] - _core.address_of(memoryview(block))
    made = np.ndarray(value.shape, value.dtype, buffer=block.shared(), offset=offset, strides=value.strides)
    return made if type(value) is np.ndarray else made.view(type(value))


def _writable_view(value: memoryview) -> memoryview:
    if not value.readonly:
        return value
    block = block_of(value)
    if block is None:
        return _shaped(memoryview(bytearray(value.tobytes())), value)
    if not value.c_contiguous:
        raise TypeError("a memoryview with gaps cannot be made writable: take the whole one, and then the part of it")
    offset = _core.address_of(value) - _core.address_of(memoryview(block))
    return _shaped(memoryview(block.shared())[offset : offset + value.nbytes], value)


def _shaped(memory: memoryview, like: memoryview) -> memoryview:
    if like.ndim == 1 or not like.nbytes:
        return memory.cast(like.format)  # type: ignore[call-overload, no-any-return]
    return memory.cast(like.format, like.shape)  # type: ignore[call-overload, no-any-return]


class Leased(Generic[_T]):
    """The peer's memory under an array, to be given back before the array is gone; see :func:`leased`."""

    def __init__(self, value: _T) -> None:
        self._value = value
        self._block = block_of(value)
        if self._block is None and not (hasattr(value, "__dlpack__") or _core.is_buffer(value)):
            raise TypeError(f"expected an array, a tensor, a memoryview or a buffer, got {type(value).__qualname__}")

    def release(self) -> None:
        """Give the memory back now. Nothing happens the second time, or if the array lies in no shared memory."""
        if self._block is not None:
            self._block.release()

    def __enter__(self) -> _T:
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def leased(value: _T, /) -> Leased[_T]:
    """Give a received array's memory back at the end of a block: ``with shmrpc.leased(image) as image: ...``.

    Or when you say so: ``lease = shmrpc.leased(image)``, later ``lease.release()``. Without this, the memory goes
    back when the array and all views of it are gone. Afterwards, do not use the array or a view of it: they show
    whatever the sender puts there next. ``.copy()`` what you want to keep.

    ``value``: an array, tensor, memoryview or buffer as it came. One that lies in no shared memory, such as a small
    one, is fine too: nothing happens. Raises TypeError for anything else.
    """
    return Leased(value)
