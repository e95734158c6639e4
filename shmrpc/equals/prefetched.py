"""How many claims of an iterator have not ended."""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable


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
        #: When the claims are over, by their numbers.
        self._held: dict[int, float] = {}
        #: Claims end also where Python collects garbage, in the middle of anything: only such a queue bears that.
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()

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
