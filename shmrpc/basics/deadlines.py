"""One lazily armed timer for all deadlines of a loop's side: most calls end long before theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from shmrpc.basics.clock import host_nanoseconds

_K = TypeVar("_K")


class Deadlines(Generic[_K]):
    """Calls ``expire(key)`` when the deadline of a key has come, unless it was discarded before.

    Deadlines are nanoseconds of the host's clock. Adding and discarding cost a dict's entry each; the timer
    is armed anew only for one nearer than all before it.
    """

    def __init__(self, expire: Callable[[_K], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._due: dict[_K, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: What the timer is armed for.
        self._armed = 0

    def add(self, key: _K, deadline: int) -> None:
        """From now on the key has this deadline."""
        self._due[key] = deadline
        if self._timer is None or deadline < self._armed:
            self._arm(deadline)

    def discard(self, key: _K) -> None:
        """The key has none any more. Again: nothing."""
        self._due.pop(key, None)

    def close(self) -> None:
        """Nothing expires any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = deadline
        self._timer = self._loop.call_later(max(0.0, (deadline - host_nanoseconds()) / 1e9), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = host_nanoseconds()
        try:
            for key in [key for key, deadline in self._due.items() if deadline <= now]:
                if key in self._due:
                    self._expire(key)
                    self._due.pop(key, None)
        finally:  # Even after an exception of a signal handler's: the others have deadlines too.
            if self._due and self._timer is None:
                self._arm(min(self._due.values()))
