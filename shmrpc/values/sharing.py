"""Memory that sender and receiver share: arrays built in it, written in place, and released early."""

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
#: Allocates bytes of memory that can be lent to the peer, with the buffer protocol.
Allocate = Callable[[int], Any]


def empty_array(
    allocate: Allocate, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike
) -> numpy.ndarray[Any, Any]:
    """Return a new NumPy array in shared memory, with undefined contents.

    Raises ImportError without NumPy, TypeError for a dtype with Python objects, ValueError for a negative length, and
    the errors of ``allocate``.
    """
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
    """Return writable bytes in shared memory, with undefined contents. Raises ValueError for a negative size."""
    if size < 0:
        raise ValueError(f"size: expected 0 bytes or more, got {size}")
    return memoryview(allocate(size))[:size]


class _WritableMark:
    """Type of the mark WRITABLE in the metadata of ``Annotated``."""

    def __repr__(self) -> str:
        return "WRITABLE"


WRITABLE: Final = _WritableMark()

#: ``Writable[np.ndarray]`` declares a parameter that the endpoint writes in place, in the caller's memory.
Writable = Annotated[_T, WRITABLE]


def is_writable(kind: Any) -> bool:
    """Return True if a declared type is ``Writable[T]``, or a union with such a type."""
    origin = get_origin(kind)
    if origin is Annotated:
        return WRITABLE in get_args(kind)[1:]
    return origin in UNIONS and any(map(is_writable, get_args(kind)))


def can_be_writable(kind: Any) -> bool:
    """Return False if no value of a declared type could be written to: see :func:`writable`."""
    origin = get_origin(kind)
    if origin is Annotated:
        return can_be_writable(get_args(kind)[0])
    if origin in UNIONS:
        return any(can_be_writable(member) for member in get_args(kind) if member is not type(None))
    found = origin or kind
    if found in (Any, object) or not isinstance(found, type):
        return True  # The argument decides.
    return issubclass(found, (memoryview, getattr(sys.modules.get("numpy"), "ndarray", memoryview)))


def block_of(value: Any) -> Block | None:
    """Return the received block under an array, a memoryview, a tensor or an Arrow buffer; None if there is none."""
    found = arrow.block_of_buffer(value) or tensors.block_of_tensor(value)
    if found is not None:
        return found
    base = arrays.base_of(value)
    return base if is_block(base) else None


def writable(value: Any) -> Any:
    """Return a received array or memoryview as a writable one over the memory that the sender shares.

    A small value, which arrived in the body, is copied, so that the sender does not see changes. A writable value is
    returned itself. Raises TypeError for a value that is neither an array nor a memoryview, and for a read-only
    memoryview with gaps; BufferError for an item or a message whose memory no process may change; and Unmapped if this
    process has no room to map the memory.
    """
    is_array = isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ()))
    if not (is_array or isinstance(value, memoryview)):
        raise TypeError(f"expected a NumPy array or a memoryview to write to, got {type(value).__qualname__}")
    return _writable_array(value) if is_array else _writable_view(value)


def _writable_array(value: Any) -> Any:
    """Return a writable array itself, another one over its shared block, or a copy if it has no block."""
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
    """Return a writable view itself, another one over its shared block, or over a copy if it has no block.

    Raises TypeError for a view of a block with gaps.
    """
    if not value.readonly:
        return value
    block = block_of(value)
    if block is None:
        return _cast_like(memoryview(bytearray(value.tobytes())), value)
    if not value.c_contiguous:
        raise TypeError("a memoryview with gaps cannot be made writable: take the whole one, and then the part of it")
    offset = _core.address_of(value) - _core.address_of(memoryview(block))
    return _cast_like(memoryview(block.shared())[offset : offset + value.nbytes], value)


def _cast_like(memory: memoryview, like: memoryview) -> memoryview:
    """Return a view of bytes in the format and the shape of another view."""
    if like.ndim == 1 or not like.nbytes:
        return memory.cast(like.format)  # type: ignore[call-overload, no-any-return]
    return memory.cast(like.format, like.shape)  # type: ignore[call-overload, no-any-return]


class Leased(Generic[_T]):
    """Loan of the peer's memory under an array, which can be returned early; see :func:`leased`. Raises TypeError."""

    def __init__(self, value: _T) -> None:
        self._value = value
        self._block = block_of(value)
        if self._block is None and not (hasattr(value, "__dlpack__") or _core.is_buffer(value)):
            raise TypeError(f"expected an array, a tensor, a memoryview or a buffer, got {type(value).__qualname__}")

    def release(self) -> None:
        """Return the memory to its owner now. Idempotent; does nothing for an array outside shared memory."""
        if self._block is not None:
            self._block.release()

    def __enter__(self) -> _T:
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def leased(value: _T, /) -> Leased[_T]:
    """Return a received array's memory at the end of a block: ``with shmrpc.leased(image) as image: ...``.

    Or at any time: ``loan = shmrpc.leased(image)``, later ``loan.release()``. Without this, the memory is returned
    when the array and all views of it are gone. Do not use the array or a view of it afterwards: they show the data
    that the sender puts there next. Keep a ``.copy()`` if you need one.

    ``value`` is an array, tensor, memoryview or buffer as it arrived. For a value outside shared memory, such as a
    small one, nothing happens. Raises TypeError for any other value.
    """
    return Leased(value)
