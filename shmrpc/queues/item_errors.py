"""Errors for items of queues that cannot be encoded or decoded."""

from __future__ import annotations

from shmrpc.errors import DecodeError, EncodeError
from shmrpc.values.encode_errors import UNSENDABLE, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE

#: The errors that encoding an item raises. BufferError is for raw items whose bytes are not contiguous.
_UNENCODABLE = (*UNSENDABLE, BufferError)


def item_encode_error(queue: str, error: Exception, index: int | None = None) -> Exception:
    """Return the EncodeError, caused by ``error``, for an item whose encoding has raised ``error``.

    ``index`` is the item's position in ``put_many()``, None for a single item. Returns ``error`` itself if encoding
    raises no such errors, or a signal handler has raised it.
    """
    if not is_unsendable(error, _UNENCODABLE):
        return error
    item = "the item" if index is None else f"the item at index {index}"
    encode_error = EncodeError(f"queue {queue!r}: {item} cannot be put: {reason(error)}")
    encode_error.__cause__ = error
    return encode_error


def item_decode_error(queue: str, error: Exception, number: int | None = None) -> Exception:
    """Return the DecodeError, caused by ``error``, for an item whose decoding has raised ``error``.

    ``number`` is the item's position in the queue; None for an item that was removed. Returns ``error`` itself if
    decoding raises no such errors, or a signal handler has raised it.
    """
    if not is_unsendable(error, UNREADABLE):
        return error
    item = "an item that was removed" if number is None else f"item {number}"
    decode_error = DecodeError(f"queue {queue!r}: {item} cannot be read: {reason(error)}")
    decode_error.__cause__ = error
    return decode_error
