"""Memory: bytes that many processes read and write, with a lock."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from shmrpc.basics.checks import check_whole, public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.locks.lock import BlockingLock, Lock
from shmrpc.objects.handle import AsyncContextHandle, ContextHandle, open_object

if TYPE_CHECKING:
    import numpy as np


class MemoryBase(ContextHandle):
    """Part of a memory that is the same for loops and for threads."""

    @public_name("Memory")
    def __new__(cls, name: str, size: int) -> Self:
        """Open the memory; create it, as zeros, if no process has it open.

        Raises TypeError or ValueError for a size that is not from 1 byte to less than 64 GiB.
        """
        size = check_whole(f"memory {name!r}: size", size, "a number of bytes")
        if not 1 <= size < 1 << 36:
            raise ValueError(f"memory {name!r}: expected a size of 1 byte to 64 GiB, got {size}")
        return cls._wrap(open_object(name, "memory", size))

    def close(self) -> None:
        """Close the memory. Idempotent.

        With its last handle, this process leaves the memory, and releases its lock. When the last process leaves, the
        memory is deleted. The pages are unmapped with the last view or array. Also closes :attr:`lock`.
        """
        self.__dict__.pop("buf", None)  # This view must not keep the memory mapped.
        super().close()
        if (lock := self.__dict__.get("lock")) is not None:
            lock.close()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._object.amount

    @functools.cached_property
    def buf(self) -> memoryview:
        """A writable view of all bytes, which are zero in a new memory.

        Other processes see each change at once, even a half-written one: hold :attr:`lock` around related changes. A
        view from before :meth:`close` can be read and written afterwards, but other processes may not see the
        changes. Raises LocalProtocolError if the memory is closed.
        """
        return memoryview(self._object.bytes())

    def array(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "u1", offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """Return a NumPy array of this shape and dtype over the memory, from byte ``offset`` on.

        The array is writable, and shares the bytes with :attr:`buf`: no copy is made. Raises ValueError if the array is
        not within the memory, if a length is negative, or if the dtype has Python objects; LocalProtocolError if the
        memory is closed; TypeError for an invalid dtype, or a shape that is no whole number (also one of NumPy's) or
        sequence of these; and ImportError without NumPy.
        """
        import numpy as np  # Programs without arrays do not need it.

        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(
                f"memory {self.name!r}: an array of {kind} has Python objects, which no other process can see"
            )
        try:
            lengths: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
        except TypeError:
            lengths = tuple(map(operator.index, shape))  # type: ignore[arg-type]
        if any(length < 0 for length in lengths):
            raise ValueError(f"memory {self.name!r}: expected lengths of 0 or more, got shape {lengths}")
        needed = offset + math.prod(lengths) * kind.itemsize
        if offset < 0 or needed > self.size:
            raise ValueError(
                f"memory {self.name!r} has {self.size} bytes; an array of shape {lengths} and dtype {kind} from byte "
                f"{offset} on would end at byte {needed}"
            )
        return np.ndarray(lengths, kind, self.buf, offset)


@public_class("shmrpc.Memory")
class Memory(AsyncContextHandle, MemoryBase):
    """Bytes that all processes share that open the same name; see :func:`shmrpc.memory`.

    ``with`` and ``async with`` close the memory at the end of the block.
    """

    @functools.cached_property
    def lock(self) -> Lock:
        """The lock of this memory, which all processes share, the same object each time. It is not reentrant.

        Closing one of the memory and its lock closes both.
        """
        return Lock._wrap(self._object)


@public_class("shmrpc.sync.Memory")
class BlockingMemory(ThreadsOnly, MemoryBase):
    """A :class:`shmrpc.Memory` whose lock blocks the thread that waits. ``with`` closes the memory."""

    @functools.cached_property
    def lock(self) -> BlockingLock:
        """The lock of this memory, which all processes share, the same object each time. It is not reentrant.

        Closing one of the memory and its lock closes both.
        """
        return BlockingLock._wrap(self._object)


def memory(name: str, size: int) -> Memory:
    """Open ``size`` bytes that all processes share that open the same name; the first process creates them, as zeros.

    Raises NameConflict if the name is open as another kind of object or with another size, SharedMemoryError if there
    is no room, LocalProtocolError if the directory of shared objects is not safe, TypeError or ValueError for an
    invalid name or size, and WaitTimeout and RemoteProtocolError as :class:`Semaphore` does.
    """
    return Memory(name, size)


@public_name("memory")
def blocking_memory(name: str, size: int) -> BlockingMemory:
    """Open ``size`` bytes as :func:`shmrpc.memory` does, with a lock that blocks the thread that waits.

    Raises the same errors.
    """
    return BlockingMemory(name, size)
