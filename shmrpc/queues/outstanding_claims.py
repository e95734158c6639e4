"""The outstanding claims of an iterator, whose number is limited."""

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
#: Seconds after which an iterator that waits checks that it does not wait for its own loop.
WARN_AFTER: Final = 1.0


def _count_references() -> int:
    """Return what ``sys.getrefcount()`` says of an object that only a variable refers to: 1 from CPython 3.14 on."""
    it = object()
    return sys.getrefcount(it)


#: References to a claim that only the variable of the program's loop and a variable here refer to.
_FORGOTTEN: Final = _count_references() + 1


class OutstandingClaims:
    """The claims that an iterator has handed out and that have not ended.

    A claim is removed when it ends, or when its lease expires.
    """

    def __init__(self, limit: int, lease: float, wake: Callable[[], object]) -> None:
        """Make an empty set of up to ``limit`` claims.

        ``lease`` is the length of their leases in seconds; 0 for none. ``wake()`` is called in any thread when a claim
        has ended, so that an iterator that waits because the set is full checks again.
        """
        self._limit = limit
        self._lease = lease or math.inf
        self._wake = wake
        #: The number of the last claim.
        self._last_number = 0
        self._last: weakref.ref[object] | None = None
        self._has_warned = False
        #: Monotonic times, in seconds, at which the leases expire, by the numbers of the claims.
        self._expiries: dict[int, float] = {}
        #: Numbers of claims that have ended. The garbage collector may end a claim in the middle of any function: only
        #: such a queue is safe then.
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def add(self) -> Callable[[], None]:
        """Add a new claim; return the function to call when the claim ends, in any thread, also more than once."""
        number = self._last_number = self._last_number + 1
        self._expiries[number] = time.monotonic() + self._lease

        def end() -> None:
            self._ended.put(number)
            self._wake()

        return end

    def is_full(self) -> bool:
        """Remove the claims that have ended or expired; return True if ``limit`` claims remain."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._expiries.pop(self._ended.get_nowait(), None)
        now = time.monotonic()
        self._expiries = {number: expiry for number, expiry in self._expiries.items() if expiry > now}
        return len(self._expiries) >= self._limit

    def next_expiry(self) -> float | None:
        """Return the seconds until the first lease expires, at least 0; None if no lease will."""
        first = min(self._expiries.values(), default=math.inf)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def remember_last(self, claim: object) -> None:
        """Remember the claim that the iterator is about to hand out, without keeping the claim alive."""
        self._last = weakref.ref(claim)

    def warn_of_forgotten_claim(self, queue: str) -> None:
        """Log a warning, once, if only the loop over the iterator, which waits, still refers to the last claim."""
        claim = self._last() if self._last is not None else None
        if claim is None or self._has_warned or sys.getrefcount(claim) > _FORGOTTEN:
            return
        self._has_warned = True
        _log.warning(
            "queue %r: claims() waits for %s, which has not ended: call ack() or nack(), or use 'with claim:', or pass"
            " a larger prefetch=",
            queue,
            repr(claim),  # The log may keep its arguments, and must not keep the claim.
        )
