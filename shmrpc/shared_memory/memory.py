"""Memory: bytes that all processes see."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from shmrpc.basics.checks import check_whole, public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.locks.lock import BlockingLock, Lock
from shmrpc.objects.handle import AsyncClosing, Closing, opened

if TYPE_CHECKING:
    import numpy as np


class MemoryBase(Closing):
    """What a memory is in loops and in threads alike."""

    @public_name("Memory")
    def __new__(cls, name: str, size: int) -> Self:
        """Open the memory, and make it if nobody else has."""
        size = check_whole(f"memory {name!r}: size", size, "a number of bytes")
        if not 1 <= size < 1 << 36:
            raise ValueError(f"memory {name!r}: expected a size of 1 byte to 64 GiB, got {size}")
        return cls._of(opened(name, "memory", size))

    def close(self) -> None:
        """Close the memory. Idempotent.

        This process leaves the name with the last use of it. Its memory is given back with the last view or array.
        """
        self.__dict__.pop("buf", None)  # Ours alone must not keep the memory.
        super().close()
        if (lock := self.__dict__.get("lock")) is not None:
            lock.close()

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._name.amount

    @functools.cached_property
    def buf(self) -> memoryview:
        """All its bytes, writable. Zeros when the memory is made.

        Others see what is written at once, and maybe half of it: hold :attr:`lock` around what belongs together. A view
        that was got before :meth:`close` may be read and written after it; but then no other process may see it. Raises
        LocalProtocolError if the memory is closed.
        """
        return memoryview(self._name.bytes())

    def array(self, shape: int | Sequence[int], dtype: Any = "u1", offset: int = 0) -> np.ndarray[Any, Any]:
        """A NumPy array of this shape and dtype that lies in the memory, ``offset`` bytes from its beginning.

        Raises ValueError if it is not within the memory, or a length is negative.
        """
        import numpy as np  # Only who asks for arrays needs it.

        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(
                f"memory {self.name!r}: an array of {kind} has Python objects, which no other process can see"
            )
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
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
class Memory(AsyncClosing, MemoryBase):
    """Bytes that all processes see that open the name: see :func:`shmrpc.memory`.

    ``with`` and ``async with`` close it at the end of the block.
    """

    @functools.cached_property
    def lock(self) -> Lock:
        """A lock of its own."""
        return Lock._of(self._name)


@public_class("shmrpc.sync.Memory")
class BlockingMemory(ThreadsOnly, MemoryBase):
    """A :class:`shmrpc.Memory` whose lock blocks the thread that waits for it. ``with`` closes it."""

    @functools.cached_property
    def lock(self) -> BlockingLock:
        """A lock of its own."""
        return BlockingLock._of(self._name)


def memory(name: str, size: int) -> Memory:
    """Opens ``size`` bytes that all processes see that open the name: made by the first, of zeros.

    Raises NameInUse if the name is open as something else or with another size, SharedMemoryError if there is no room,
    and LocalProtocolError if the directory where names are met is not safe.
    """
    return Memory(name, size)


@public_name("memory")
def blocking_memory(name: str, size: int) -> BlockingMemory:
    """Opens ``size`` bytes as :func:`shmrpc.memory` does, with a lock that blocks the thread that waits for it."""
    return BlockingMemory(name, size)
