"""Flow control by credit between the two ends of a stream, without I/O.

The receiver grants credit in bytes. The sender may send while credit is left, and so exceeds it by at most one item.
The receiver grants new credit for consumed items, a quarter of the window at a time. A slow consumer therefore slows
only its own producer, and the memory for its items is bounded. For a long round trip one window is too little: there
the receiver grants more than was consumed, depending on the measured delay.

``_core.StreamSender``, which sends from an event loop, and ``_core.ThreadCalls``, which bounds items that wait for
threads, implement the same with :data:`WINDOW` and :data:`OVERHEAD`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import Body, body_weight

#: Bytes of one stream that may be in flight.
WINDOW: Final = 128 << 10
#: Bytes that an item costs in addition to its size, because small items take memory, too.
OVERHEAD: Final = 48
#: Consumed bytes for which a frame of credit pays off.
WORTH_GRANTING: Final = WINDOW // 4


def weight(body: Body) -> int:
    """Return the credit that an item costs, in bytes."""
    return (len(body) if type(body) is bytes else body_weight(body)) + OVERHEAD


class ReceiveWindow:
    """Credit at the receiving end: bytes that the sender may still send, and bytes consumed since the last grant.

    ``extra``, for a long round trip, returns the number of bytes to grant in addition to the window.
    """

    __slots__ = ("_allowed", "_consumed", "_extra", "_target_extra")

    def __init__(self, allowed: int = WINDOW, extra: Callable[[], int] | None = None) -> None:
        self._allowed = allowed
        self._consumed = 0
        #: Bytes granted in addition to the window, and the function that returns how many there should be.
        self._extra, self._target_extra = 0, extra

    def open(self) -> int:
        """Return the first credit in bytes, for a sender that starts without any. Call once, with ``allowed`` 0."""
        self._allowed += WINDOW
        return WINDOW

    def receive(self, size: int) -> None:
        """Subtract the size of received items. Raises RemoteProtocolError if no credit was left before.

        The credit may become negative, because a sender may exceed it by one item.
        """
        if self._allowed <= 0:
            raise RemoteProtocolError("it sent an item for which it had no credit")
        self._allowed -= size

    def consume(self, size: int) -> int:
        """Add consumed bytes. Returns the credit that the caller must grant; 0 while a grant is not worth a frame."""
        self._consumed += size
        if self._consumed < WORTH_GRANTING:
            return 0
        granted, self._consumed = self._consumed, 0
        if self._target_extra is not None and (more := self._target_extra() - self._extra) > 0:
            self._extra += more
            granted += more
        self._allowed += granted
        return granted


class SendWindow:
    """Credit at the sending end, in bytes."""

    __slots__ = ("closed", "credit")

    def __init__(self, credit: int = 0) -> None:
        self.credit = credit
        #: True if the receiver takes no more items.
        self.closed = False

    @property
    def is_open(self) -> bool:
        """True if an item may be sent now."""
        return self.credit > 0 and not self.closed

    def grant(self, size: int) -> None:
        """Add credit: the receiver has consumed ``size`` bytes."""
        self.credit += size

    def close(self) -> None:
        """Stop sending: the receiver takes no more items. Idempotent."""
        self.closed = True

    def spend(self, size: int) -> None:
        """Subtract the credit of a sent item. The credit may become negative."""
        self.credit -= size

    def try_spend(self, size: int) -> bool:
        """Subtract the credit of an item and return True if an item may be sent. Atomic for signal handlers.

        Returns False, without a change, if no credit is left or the receiver takes no more items.
        """
        if self.credit <= 0 or self.closed:
            return False
        self.credit -= size
        return True
