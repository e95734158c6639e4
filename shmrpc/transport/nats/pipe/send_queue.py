"""Frames that wait to be sent in messages, and the record of messages that the peer has not acknowledged."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.transport.nats.messages import PROOF
from shmrpc.transport.nats.pipe.frame_reader import FRAME

#: Header of a message: proof, number, number of received messages, window, clock.
MESSAGE_HEADER: Final = struct.Struct(f"<{PROOF}sQQQQ")
#: Maximum bytes of a message in addition to one piece: its header, and that of a frame before the piece.
HEADER_RESERVE: Final = 1 << 10
#: Frames up to this size are copied into one piece, if NATS accepts that many bytes.
_SMALL: Final = 16 << 10


class SendQueue:
    """Unsent frames of one direction, as pieces of a stream of bytes.

    ``piece``: maximum bytes of a large frame in one message.
    """

    def __init__(self, piece: int) -> None:
        self._piece = piece
        #: Maximum bytes of a frame that is copied into one piece.
        self.small = min(_SMALL, piece)
        #: Unsent pieces, each with the id of the request that begins in it, or 0.
        self.pieces: deque[tuple[bytes | memoryview, int]] = deque()
        #: Unsent bytes.
        self.waiting_bytes = 0
        #: Number of sent messages, and bytes of frames in them.
        self.sent_count = self._sent_bytes = 0
        #: Messages and bytes that the peer has acknowledged.
        self.acknowledged_count = self._acknowledged_bytes = 0
        #: Bytes that the peer allows in flight.
        self.peer_window = 0
        #: Unacknowledged messages: the position of the end of each, and the first request that begins in it, or 0.
        self.unacknowledged: deque[tuple[int, int]] = deque()
        #: Number of messages that certainly reached no subscriber.
        self.undelivered_count = 0

    def put(self, header: bytes, request: int, *parts: bytes | memoryview) -> None:
        """Copy a frame into pieces that fit into messages. The owner may change the buffers afterwards.

        ``request``: id of the call if the frame begins one, otherwise 0.
        """
        size = len(header) + sum(map(len, parts))
        self.waiting_bytes += size
        if size <= self.small:
            self.pieces.append((b"".join((header, *parts)), request))
        else:
            self.pieces.append((header, request))
            step = self._piece
            for part in parts:
                self.pieces.extend((bytes(part[at : at + step]), 0) for at in range(0, len(part), step))

    @property
    def _room(self) -> int:
        """Bytes that may be sent now."""
        return 0 if self.undelivered_count else self._acknowledged_bytes + self.peer_window - self._sent_bytes

    @property
    def is_sendable(self) -> bool:
        """True if the peer has room for some of the waiting bytes."""
        return bool(self.pieces) and self._room >= min(len(self.pieces[0][0]), FRAME.size)

    def take_message(self) -> tuple[list[bytes | memoryview], int]:
        """Remove the bytes of the next message, and record the message as sent.

        Returns a list of an empty place for the header and the pieces, and the size of the pieces, which may be 0.
        """
        parts: list[bytes | memoryview] = [b""]
        first, largest = 0, self._piece + HEADER_RESERVE
        size, room = MESSAGE_HEADER.size, self._room
        while self.pieces:
            piece, request = self.pieces[0]
            length = len(piece)
            if len(parts) > 1 and size + length > largest:
                break
            if length > room:
                if room < FRAME.size:
                    break  # The header of a frame must not be split.
                rest = memoryview(piece)
                piece, length = rest[:room], room
                self.pieces[0] = rest[room:], 0
            else:
                self.pieces.popleft()
            first = first or request
            parts.append(piece)
            size += length
            room -= length
        body = size - MESSAGE_HEADER.size
        self._sent_bytes += body
        self.waiting_bytes -= body
        self.sent_count += 1
        self.unacknowledged.append((self._sent_bytes, first))
        return parts, body

    def acknowledge(self, count: int) -> None:
        """Record that the peer has received the first ``count`` messages.

        Raises RemoteProtocolError if ``count`` is lower than before, or higher than the number of sent messages.
        """
        if not self.acknowledged_count <= count <= self.sent_count:
            raise RemoteProtocolError(f"it acknowledged {count} messages, {self.sent_count} were sent")
        for _ in range(count - self.acknowledged_count):
            self._acknowledged_bytes, _ = self.unacknowledged.popleft()
        self.acknowledged_count = count

    def last_delivered_request(self) -> int | None:
        """Return the id before that of the first request that certainly was not delivered; None if there is none.

        A request was not delivered if it is unsent, or began in a message that reached no subscriber.
        """
        undelivered = []
        if self.undelivered_count:
            undelivered = [*self.unacknowledged][max(0, len(self.unacknowledged) - self.undelivered_count) :]
        waiting = next((request for _, request in self.pieces if request), 0)
        first = next((request for _, request in undelivered if request), waiting)
        return first - 1 if first else None

    def clear(self) -> None:
        """Discard the unsent bytes of a closed pipe. ``waiting_bytes`` keeps its value."""
        self.pieces.clear()
