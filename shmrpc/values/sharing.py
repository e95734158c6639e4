"""Arrays and buffers in shared memory: built in place, and given back early."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shmrpc.basics.missing import why_missing
from shmrpc.values.buffers import is_buffer
from shmrpc.values.leases import block_of

if TYPE_CHECKING:
    import numpy
    import numpy.typing

_T = TypeVar("_T")
#: Makes so many bytes of memory that the peer can be given, by the buffer protocol.
Allocate = Callable[[int], Any]


def empty_array(
    allocate: Allocate, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike
) -> numpy.ndarray[Any, Any]:
    """A NumPy array in shared memory, whose contents are whatever was there."""
    try:
        np = importlib.import_module("numpy")
    except ImportError as error:
        absent = "numpy is not installed here: pip install numpy; or use buffer(), which needs none"
        raise ImportError(f"empty() makes a NumPy array, and {why_missing('numpy', error, absent)}") from error
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds references to Python objects, which mean nothing to another process")
    lengths = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape: expected lengths of 0 or more, got {shape}")
    memory = allocate(math.prod(lengths) * kind.itemsize)
    return np.ndarray(lengths, kind, buffer=memory)  # type: ignore[no-any-return]


def empty_buffer(allocate: Allocate, size: int) -> memoryview:
    """Writable bytes in shared memory, whose contents are whatever was there."""
    if size < 0:
        raise ValueError(f"size: expected 0 bytes or more, got {size}")
    return memoryview(allocate(size))[:size]


class Leased(Generic[_T]):
    """Memory of the peer's that an array lies in, to be given back before the array goes; see :func:`leased`."""

    def __init__(self, value: _T) -> None:
        self._value = value
        self._block = block_of(value)
        if self._block is None and not (hasattr(value, "__dlpack__") or is_buffer(value)):
            raise TypeError(f"expected an array, a tensor, a memoryview or a buffer, got {type(value).__qualname__}")

    def release(self) -> None:
        """Gives the memory back now. Again, or for what lies in no shared memory: nothing."""
        if self._block is not None:
            self._block.release()

    def __enter__(self) -> _T:
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def leased(value: _T, /) -> Leased[_T]:
    """Gives a received array's memory back at the end of a block: ``with shmrpc.leased(image) as image: ...``.

    Or when you say so: ``lease = shmrpc.leased(image)``, later ``lease.release()``. Without it the memory goes
    back when the array and all views of it are gone. Afterwards neither the array nor a view of it must be used
    any more: what they show is then whatever the sender puts there next. ``.copy()`` what you want to keep.

    ``value``: an array, tensor, memoryview or buffer as it came. One that lies in no shared memory, as a small
    one, is fine too: nothing happens. Raises TypeError for what is no such thing.
    """
    return Leased(value)
