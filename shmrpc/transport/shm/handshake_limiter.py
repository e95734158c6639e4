"""Clients that are about to be connected: bounds how many, and for how long one may keep others waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

#: Clients that have come and are not connected. Each costs a descriptor.
MAX_ARRIVING: Final = 512
#: Handshakes under way. Each costs about ten descriptors, and the memory of a connection.
MAX_HANDSHAKES: Final = 64
#: Seconds after which a client that keeps others waiting is turned away.
PATIENCE: Final = 1.0


_A = TypeVar("_A")


class Arrivals(Generic[_A]):
    """The clients that have come, those whose handshake is under way, and those that wait for a place.

    ``begin`` begins a client's handshake; ``turn_away`` ends the wait for one, and says why.
    """

    def __init__(self, begin: Callable[[_A], None], turn_away: Callable[[_A, str], None]) -> None:
        self._begin = begin
        self._turn_away = turn_away
        #: Since when, on the monotonic clock; the oldest first.
        self._here: dict[_A, float] = {}
        self._begun: dict[_A, float] = {}
        #: In the order in which they are to begin.
        self._line: dict[_A, None] = {}
        self._loop = asyncio.get_running_loop()
        self._look_again: asyncio.TimerHandle | None = None

    def come(self, arrival: _A) -> bool:
        """Counts a client that has come; False if there are too many already."""
        if len(self._here) >= MAX_ARRIVING and not self._turn_away_oldest(self._here):
            return False
        self._here[arrival] = time.monotonic()
        return True

    @property
    def is_alone(self) -> bool:
        """Whether no more than one client is about to be connected."""
        return len(self._here) <= 1

    def want(self, arrival: _A) -> None:
        """Begins a client's handshake now, or once there is a place."""
        self._line[arrival] = None
        self._begin_next()

    def leave(self, arrival: _A) -> None:
        """Makes place: a client is connected, or gone. Again: nothing."""
        self._here.pop(arrival, None)
        self._begun.pop(arrival, None)
        self._line.pop(arrival, None)
        self._begin_next()

    def close(self) -> None:
        """Begins no handshake any more."""
        self._line.clear()
        if self._look_again is not None:
            self._look_again.cancel()

    def _begin_next(self) -> None:
        while self._line:
            if len(self._begun) < MAX_HANDSHAKES:
                arrival = next(iter(self._line))
                del self._line[arrival]
                self._begun[arrival] = time.monotonic()
                self._begin(arrival)
            elif not self._turn_away_oldest(self._begun):
                if self._look_again is None:
                    self._look_again = self._loop.call_later(PATIENCE, self._look)
                return

    def _look(self) -> None:
        self._look_again = None
        self._begin_next()

    def _turn_away_oldest(self, among: dict[_A, float]) -> bool:
        oldest, since = next(iter(among.items()))
        if time.monotonic() - since < PATIENCE:
            return False
        # Here, and not only when it leaves, which may be later.
        del among[oldest]
        self._turn_away(oldest, "it did not go on with the handshake, and others wait")
        return True
