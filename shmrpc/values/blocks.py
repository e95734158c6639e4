"""The blocks that large data arrives in, and how large that is."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeGuard

from shmrpc._core import Unmapped

__all__ = [
    "LARGE",
    "LARGE_ARRAY",
    "Block",
    "Data",
    "Unmapped",
    "bytes_of",
    "is_block",
    "length_of_axis",
    "size_of",
]

#: From this size on, in bytes, a buffer is large, and travels beside the body.
LARGE: Final = 32768
#: The same for what the receiver need not copy.
LARGE_ARRAY: Final = 4096


class Block(Protocol):
    """Received memory: read-only bytes, which stay as long as anything looks at them."""

    def to_bytes(self) -> bytes:
        """A copy."""
        ...

    def release(self) -> None:
        """Give the memory back now."""
        ...

    def private(self) -> Any:
        """A writable buffer of the same bytes, which nobody else sees."""
        ...

    def shared(self) -> Any:
        """A writable buffer of the same bytes, which the sender sees."""
        ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


#: Where a payload's data is: in the payload, or in a buffer beside it.
Data = bytes | Block


def is_block(value: object) -> TypeGuard[Block]:
    """Whether a value is received memory."""
    return hasattr(value, "private") and hasattr(value, "shared")


def size_of(data: Data) -> int:
    """The size in bytes."""
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def bytes_of(data: Data) -> bytes:
    """The same bytes, copied if they are in a block."""
    return data if isinstance(data, bytes) else data.to_bytes()


def length_of_axis(value: Any) -> int:
    """The same number; ValueError if it is not an integer of 0 or more."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not the length of an axis")
    return value
