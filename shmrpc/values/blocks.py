"""The blocks that large data arrive in, and from which size on that is."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeGuard

from shmrpc._core import Unmapped

__all__ = ["LARGE", "LARGE_ARRAY", "Block", "Data", "Unmapped", "bytes_of", "is_block", "length_of_axis", "size_of"]

#: Bytes from here on travel beside the body, in bytes.
LARGE: Final = 32768
#: The same for what need not be copied at the receiver.
LARGE_ARRAY: Final = 4096


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


def bytes_of(data: Data) -> bytes:
    """The same bytes, copied if they are in a block."""
    return data if isinstance(data, bytes) else data.to_bytes()


def length_of_axis(value: Any) -> int:
    """The same number; ValueError for what is none of 0 or more."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no length of an axis")
    return value
