"""What a server's clients send, as one queue: who pumps it, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from shmrpc import _core
from shmrpc.wire import frames

#: Seconds for which a turn of the loop may keep new frames waiting, if there is a moment to look.
LONG: Final = 1e-3


class ShmInbox:
    """The frames of all clients of a server. ``take`` takes them from the poller until there are no more."""

    def __init__(self, spin: float, take: Callable[[], None]) -> None:
        self.poller = _core.Poller(spin=spin, fault=frames.FAULT)
        self.set_spinning = self.poller.set_spinning
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        self._open = True
        #: When frames were last taken.
        self._taken = 0.0

    def glance(self) -> None:
        """Takes what is there, if the loop has not turned for long. Not within a task."""
        if time.monotonic() - self._taken > LONG:
            self.pump()

    def pump(self) -> None:
        """Lets frames be taken; then rests until a bell rings, or for one turn of the loop."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            if self._open:
                self._take()
        finally:  # Even if a signal is to end the program: until it does, others are served.
            self._taken = time.monotonic()
            if self._open and not self.poller.rest():
                self._again = self._loop.call_soon(self.pump)

    def close(self) -> None:
        """Nothing is taken any more."""
        self._open = False
        if self._again is not None:
            self._again.cancel()
