"""One timer for all deadlines of a loop, which is set lazily, because most calls end long before their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from shmrpc.basics.clock import host_nanoseconds

_K = TypeVar("_K")


class Deadlines(Generic[_K]):
    """Set of keys with deadlines, which calls ``expire(key)`` at a key's deadline unless the key was discarded.

    For one thread: make and use the object in the running event loop. ``expire`` runs in a callback of the loop, also
    for a deadline that has passed before; the key is then forgotten. Deadlines are nanoseconds of the host's clock.
    Adding and discarding cost one operation on a dict each. The timer is set again only for a deadline that is earlier
    than all others.
    """

    def __init__(self, expire: Callable[[_K], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._due: dict[_K, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Deadline for which the timer is armed, in nanoseconds.
        self._armed = 0

    def add(self, key: _K, deadline: int) -> None:
        """Set or replace the deadline of a key."""
        self._due[key] = deadline
        if self._timer is None or deadline < self._armed:
            self._arm(deadline)

    def discard(self, key: _K) -> None:
        """Forget the deadline of a key, if it has one."""
        self._due.pop(key, None)

    def close(self) -> None:
        """Forget all deadlines, and cancel the timer. Idempotent."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: int) -> None:
        """Set the timer to this deadline, in place of an earlier setting."""
        if self._timer is not None:
            self._timer.cancel()
        self._armed = deadline
        self._timer = self._loop.call_later(max(0.0, (deadline - host_nanoseconds()) / 1e9), self._on_timer)

    def _on_timer(self) -> None:
        """Call ``expire`` for all keys whose deadline has passed, and set the timer for the rest.

        Forgets each key after ``expire(key)`` has returned: ``expire`` must not add the key again, and is called again
        if it raises.
        """
        self._timer = None
        now = host_nanoseconds()
        try:
            for key in [key for key, deadline in self._due.items() if deadline <= now]:
                if key in self._due:
                    self._expire(key)
                    self._due.pop(key, None)
        finally:  # Rearm for the remaining keys, even if a signal handler has raised an exception.
            if self._due and self._timer is None:
                self._arm(min(self._due.values()))
