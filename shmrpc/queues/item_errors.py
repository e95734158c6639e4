"""What is raised for an item that cannot be put, or be read."""

from __future__ import annotations

from shmrpc.errors import DecodeError, EncodeError
from shmrpc.values.unsendable import UNSENDABLE, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE

#: What making bytes of an item raises; BufferError is that of raw ones that do not lie together.
_UNENCODABLE = (*UNSENDABLE, BufferError)


def unencodable(queue: str, error: Exception, index: int | None = None) -> Exception:
    """The error for an item that encoding has failed with; any other, as of a signal's handler, as it is.

    ``index``: its place among the items that are put together.
    """
    if not is_unsendable(error, _UNENCODABLE):
        return error
    item = "the item" if index is None else f"the item at index {index}"
    told = EncodeError(f"queue {queue!r}: {item} cannot be put: {reason(error)}")
    told.__cause__ = error
    return told


def undecodable(queue: str, error: Exception, number: int | None = None) -> Exception:
    """The error for an item that cannot be read, by its number; without, for one that was got and is gone."""
    if not is_unsendable(error, UNREADABLE):
        return error
    item = "an item that was removed" if number is None else f"item {number}"
    told = DecodeError(f"queue {queue!r}: {item} cannot be read: {reason(error)}")
    told.__cause__ = error
    return told
