"""Decoding of frames from the bytes of messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from shmrpc.errors import RemoteProtocolError
from shmrpc.transport.nats.messages import MAX_MESSAGE
from shmrpc.transport.nats.pipe.partial_frame import PartialFrame
from shmrpc.wire.codec import Body

#: Takes the place of an opcode: the body is a message of :mod:`.messages`.
CONTROL: Final = 0xFFFF_FFFF
#: Start of a frame: opcode, call id, bytes of the body, number of buffers.
FRAME: Final = struct.Struct("<IQII")
#: Maximum number of buffers of one frame.
_MAX_BUFFERS: Final = 1 << 16

#: Handles a frame: opcode, call id, body, and the sender's clock in nanoseconds. Returns False to stop reading.
Deliver = Callable[[int, int, Body, int], bool]


class FrameLimits(msgspec.Struct, frozen=True):
    """Maximum bytes of a body, and of the large buffers of one frame."""

    max_frame: int
    max_memory: int


class FrameReader:
    """Decoder of the frames of one direction, which may arrive in parts."""

    def __init__(self, limits: FrameLimits, deliver: Deliver) -> None:
        self.limits = limits
        self._deliver = deliver
        self._partial: PartialFrame | None = None

    def read(self, data: bytes, at: int, clock: int) -> None:
        """Deliver the frames that a message completes, and keep a partial one. The bytes of frames begin at ``at``.

        ``clock``: the sender's clock in nanoseconds. Drops the rest of the message once ``deliver`` returns False.
        Raises RemoteProtocolError or struct.error for invalid data, and what ``deliver`` raises.
        """
        end = len(data)
        while at < end:
            if self._partial is not None:
                at += self._partial.fill(memoryview(data)[at:])
                if not self._deliver_complete(clock):
                    return
                continue
            opcode, call_id, size, count = FRAME.unpack_from(data, at)
            at += FRAME.size
            most = MAX_MESSAGE if opcode == CONTROL else self.limits.max_frame
            if size > most:
                raise RemoteProtocolError(f"it sent a body of {size} bytes, the limit is {most}")
            if not count and at + size <= end:
                if not self._deliver(opcode, call_id, data[at : at + size], clock):
                    return
                at += size
                continue
            if count > _MAX_BUFFERS:
                raise RemoteProtocolError(f"it sent {count} buffers with a body, the limit is {_MAX_BUFFERS}")
            self._partial = PartialFrame(opcode, call_id, size, count, self.limits.max_memory)
            if not self._deliver_complete(clock):
                return

    def _deliver_complete(self, clock: int) -> bool:
        """Deliver the partial frame if it is complete. Returns False to stop reading."""
        partial = self._partial
        if partial is None or not partial.is_complete:
            return True
        self._partial = None
        return self._deliver(partial.opcode, partial.call_id, partial.body(), clock)

    def clear(self) -> None:
        """Discard the partial frame, if there is one."""
        self._partial = None
