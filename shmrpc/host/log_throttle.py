"""A throttle for log messages that recur with each retry."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from typing import Final

#: Seconds without a recurrence after which a reason is logged at its full level again.
_QUIET_SECONDS: Final = 10.0


class LogThrottle:
    """A throttle that logs a recurring reason once per episode.

    An episode ends when the reason has not recurred for 10 seconds. A client that waits for a free connection, for
    example, retries several times a second. The throttle keeps each reason forever, so pass only a few different ones.
    """

    def __init__(self) -> None:
        #: Last occurrence of each reason, in seconds of time.monotonic().
        self._last_seen: dict[Hashable, float] = {}

    def level_for(self, reason: Hashable, level: int) -> int:
        """Record an occurrence of a reason; return ``level`` for the first one of an episode, DEBUG for the others."""
        now = time.monotonic()
        last = self._last_seen.get(reason)
        self._last_seen[reason] = now
        return level if last is None or now - last > _QUIET_SECONDS else logging.DEBUG
