"""Conversion of deadlines between the clocks of two hosts.

A request carries its deadline as an instant of its sender's ``CLOCK_MONOTONIC``, and each NATS message the time of that
clock when it was sent. The time left at that moment is the time left on arrival: the transit time is unknown, and not
counted.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from shmrpc.errors import RemoteProtocolError
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body

#: Kinds of requests with a deadline in place of their first element, and with one in their header, the first element.
_FIRST: Final = frames.CALL_DEADLINE
_HEADERS: Final = (frames.CALL_WITH, frames.BATCH)

_array: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_number = msgspec.msgpack.Decoder(int)
_header = msgspec.msgpack.Decoder(dict[str, Any])
_encoder = msgspec.msgpack.Encoder()
#: Largest deadline, in nanoseconds.
_MAX_DEADLINE: Final = (1 << 63) - 1


def shift_deadline(opcode: int, body: Body, shift: int) -> Body:
    """Return the body of a frame with its deadline, if it has one, moved by ``shift`` nanoseconds.

    Returns other bodies unchanged. Raises RemoteProtocolError if a request that may have a deadline is invalid.
    """
    kind = opcode & 0xFF
    if kind != _FIRST and kind not in _HEADERS:
        return body
    data = body if isinstance(body, bytes) else body.body
    try:
        parts = _array.decode(data)
        if not parts:
            return body  # The missing parts are reported where the call is run.
        if kind == _FIRST:
            parts[0] = msgspec.Raw(_encoder.encode(_shift(_number.decode(parts[0]), shift)))
        else:
            header = _header.decode(parts[0])
            if not isinstance(header.get("deadline"), int):
                return body
            header["deadline"] = _shift(header["deadline"], shift)
            parts[0] = msgspec.Raw(_encoder.encode(header))
    except UNREADABLE as error:
        raise RemoteProtocolError(f"a request whose deadline cannot be read: {error}") from None
    data = _encoder.encode(parts)
    return data if isinstance(body, bytes) else body.with_body(data)


def _shift(deadline: int, shift: int) -> int:
    """Return a shifted deadline within the bounds of a deadline."""
    return min(max(deadline + shift, 0), _MAX_DEADLINE)
