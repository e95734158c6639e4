"""The length of the way to a peer and back, and the credit that a stream gets for it."""

from __future__ import annotations

from typing import Final

#: Bytes that one stream may have on the way for each second of a round trip, and at most, beyond its first credit.
_EXTRA: Final = 64 << 20
MOST_EXTRA: Final = 4 << 20
#: The share of a round trip's new length that counts if it is longer than the last ones: it may have waited.
_LONGER: Final = 1 / 8


class RoundTrip:
    """The seconds from when a message goes until the peer has said that it has come."""

    def __init__(self) -> None:
        self.seconds = 0.0
        #: The message that tells: its number, and when it went.
        self._timed = (0, 0.0)

    def begin(self, number: int, acknowledged: int, when: float) -> None:
        """Time this message, unless another one is under way."""
        if self._timed[0] <= acknowledged:
            self._timed = number, when

    def end(self, before: int, taken: int, now: float) -> None:
        """Take note that messages after ``before`` and up to ``taken`` have come."""
        number, when = self._timed
        if before < number <= taken:
            took = now - when
            longer = self.seconds + (took - self.seconds) * _LONGER
            self.seconds = min(took, longer) if self.seconds else took

    def extra_credit(self) -> int:
        """Return the bytes that a stream may have on its way beyond its first credit."""
        return min(MOST_EXTRA, int(self.seconds * _EXTRA))
