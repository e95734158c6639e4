"""How many claims of an iterator have not ended."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import sys
import time
import weakref
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("shmrpc")
#: Seconds after which an iterator that waits looks whether it waits for its own loop.
LONG_WAIT: Final = 1.0


class Prefetched:
    """The claims that an iterator has handed out, so that there are only a few at a time.

    One that has ended leaves its place to the next, and so does one whose ``lease``, in seconds, is over; 0: without.
    """

    def __init__(self, most: int, lease: float, wake: Callable[[], object]) -> None:
        """``wake()`` is called in any thread when a claim has ended: whoever waits for a place is to look again."""
        self._most = most
        self._lease = lease or math.inf
        self._wake = wake
        self._given = 0
        self._last: weakref.ref[object] | None = None
        self._has_warned = False
        #: When the claims are over, by their numbers.
        self._held: dict[int, float] = {}
        #: Claims end also where Python collects garbage, in the middle of anything: only such a queue bears that.
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def keep(self, claim: object) -> None:
        """Remembers the claim that is handed out."""
        self._last = weakref.ref(claim)

    def warn(self, queue: str) -> None:
        """Warn, once, that the iterator waits for a claim to which only its own loop refers."""
        claim = self._last() if self._last is not None else None
        # Beside the loop's variable that are the one here, and the argument.
        if claim is None or self._has_warned or sys.getrefcount(claim) > 3:
            return
        self._has_warned = True
        _log.warning(
            "queue %r: claims() waits for %s, which it has handed out and which has not ended: call ack() or"
            " give_back(), or use 'with claim:'; or take more at a time with prefetch=",
            queue,
            repr(claim),  # A record that is kept would keep the claim.
        )

    def add(self) -> Callable[[], None]:
        """Counts a claim, and returns what is to be called at its end."""
        number = self._given = self._given + 1
        self._held[number] = time.monotonic() + self._lease

        def end() -> None:
            self._ended.put(number)
            self._wake()

        return end

    def is_full(self) -> bool:
        """Whether no more may be claimed now."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._held.pop(self._ended.get_nowait(), None)
        now = time.monotonic()
        self._held = {number: over for number, over in self._held.items() if over > now}
        return len(self._held) >= self._most

    def next_over(self) -> float | None:
        """In how many seconds a lease is over, if there are any."""
        first = min(self._held.values(), default=math.inf)
        return None if first == math.inf else max(0.0, first - time.monotonic())
