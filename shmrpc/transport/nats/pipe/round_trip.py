"""The round-trip time to a peer, and the extra credit of streams that it requires."""

from __future__ import annotations

from typing import Final

#: Bytes of extra credit of one stream: for each second of round-trip time, and the maximum.
_EXTRA_PER_SECOND: Final = 64 << 20
MAX_EXTRA: Final = 4 << 20
#: Weight of a longer round trip in the average, because the message may have been delayed by others.
_LONGER: Final = 1 / 8


class RoundTrip:
    """Average time from sending a message to its acknowledgement."""

    def __init__(self) -> None:
        #: The average in seconds; 0 before the first acknowledgement.
        self.seconds = 0.0
        #: Number of the message being timed, and the time when it was sent.
        self._timed = (0, 0.0)

    def begin(self, number: int, acknowledged: int, when: float) -> None:
        """Time message ``number``, sent at ``when``, unless the peer still has to acknowledge the timed message.

        ``acknowledged``: total number of messages that the peer has acknowledged.
        """
        if self._timed[0] <= acknowledged:
            self._timed = number, when

    def end(self, before: int, taken: int, now: float) -> None:
        """Update the average if the timed message is among those after ``before`` and up to ``taken``.

        The peer has acknowledged these messages by ``now``. A time shorter than the average replaces the average, a
        longer time counts an eighth.
        """
        number, when = self._timed
        if before < number <= taken:
            took = now - when
            longer = self.seconds + (took - self.seconds) * _LONGER
            self.seconds = min(took, longer) if self.seconds else took

    def extra_credit(self) -> int:
        """Return the bytes of credit for a stream beyond its first credit."""
        return min(MAX_EXTRA, int(self.seconds * _EXTRA_PER_SECOND))
