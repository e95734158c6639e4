"""Blocks of received memory, and the sizes from which buffers travel in blocks."""

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
    "check_axis_length",
    "is_block",
    "size_of",
]

#: Size in bytes from which a buffer travels beside the body.
LARGE: Final = 32768
#: Size in bytes from which an array, which the receiver need not copy, travels beside the body.
LARGE_ARRAY: Final = 4096


class Block(Protocol):
    """Received memory: read-only bytes, which stay valid as long as a view of them exists."""

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""
        ...

    def release(self) -> None:
        """Return the memory to its owner now. The caller must not read views of it afterwards. Idempotent."""
        ...

    def private(self) -> Any:
        """Return a writable buffer of the same bytes, private to this process. Raises Unmapped if there is no room."""
        ...

    def shared(self) -> Any:
        """Return a writable buffer of the same bytes, shared with the sender.

        Raises Unmapped if there is no room, BufferError if no process may change the bytes.
        """
        ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


#: Data of a payload: bytes in the payload, or a block beside it.
Data = bytes | Block


def is_block(value: object) -> TypeGuard[Block]:
    """Return True if a value is received memory."""
    return hasattr(value, "private") and hasattr(value, "shared")


def size_of(data: Data) -> int:
    """Return the size of the data in bytes."""
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def bytes_of(data: Data) -> bytes:
    """Return the data as bytes, copied if they are in a block."""
    return data if isinstance(data, bytes) else data.to_bytes()


def check_axis_length(value: Any) -> int:
    """Return the length of an axis. Raises ValueError unless it is an int of 0 or more."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not the length of an axis")
    return value
