"""The credit between the two ends of a stream, sans I/O.

The receiver gives credit, in bytes; the sender may send while any is left, so it oversteps by one item at most. Credit
is given back as items are consumed, a quarter of the window at a time: a slow consumer slows its own producer, what is
kept for it stays bounded, and other streams do not notice. Over a long way one window for each round trip is little:
there the receiver gives more than was consumed, as much as the delay of the way asks for.

Natively the same is kept by ``_core.StreamSender``, which sends from a loop, and by ``_core.ThreadCalls``, which bounds
what waits for threads: they are given :data:`WINDOW` and :data:`OVERHEAD`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import Body, body_weight

#: Bytes that may be under way in one stream.
WINDOW: Final = 128 << 10
#: What an item costs besides its bytes: small ones take memory too.
OVERHEAD: Final = 48
#: Bytes consumed for which it pays to send a frame of credit.
WORTH_GRANTING: Final = WINDOW // 4


def weight(body: Body) -> int:
    """What an item takes of a stream's credit, in bytes."""
    return (len(body) if type(body) is bytes else body_weight(body)) + OVERHEAD


class ReceiveWindow:
    """The receiving end's account: what the sender may still send, and what was consumed since credit was given."""

    __slots__ = ("_allowed", "_consumed", "_extra", "_target_extra")

    def __init__(self, allowed: int = WINDOW, extra: Callable[[], int] | None = None) -> None:
        self._allowed = allowed
        self._consumed = 0
        #: Bytes that were given beyond the first credit, and what says how many that ought to be: over a long way.
        self._extra, self._target_extra = 0, extra

    def open(self) -> int:
        """The first credit, for a sender that begins without any."""
        self._allowed += WINDOW
        return WINDOW

    def receive(self, size: int) -> None:
        """Counts items of this weight that have come. Raises RemoteProtocolError if there was no credit for them."""
        if self._allowed <= 0:
            raise RemoteProtocolError("it sent an item for which it had no credit")
        self._allowed -= size

    def consume(self, size: int) -> int:
        """Counts items that are used up; the credit to give back now, 0 as long as it is not worth a frame."""
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
    """The sending end's account: the credit that is left."""

    __slots__ = ("closed", "credit")

    def __init__(self, credit: int = 0) -> None:
        self.credit = credit
        #: Whether the receiver wants no more.
        self.closed = False

    @property
    def is_open(self) -> bool:
        """Whether an item may be sent now."""
        return self.credit > 0 and not self.closed

    def grant(self, size: int) -> None:
        """Adds credit: the receiver has consumed this many bytes."""
        self.credit += size

    def close(self) -> None:
        """Ends the sending: no more is wanted. Again: nothing."""
        self.closed = True

    def spend(self, size: int) -> None:
        """Spends credit on an item of this weight. It may have been the last one for which there was credit."""
        self.credit -= size

    def take(self, size: int) -> bool:
        """Takes credit for an item if an item may be sent: in one step, which no signal's handler comes between."""
        if self.credit <= 0 or self.closed:
            return False
        self.credit -= size
        return True
