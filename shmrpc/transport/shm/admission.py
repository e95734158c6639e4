"""Clients that are about to be connected: so many at once, and none for long while others wait for its place."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

#: Clients that have come and are not connected yet. Each costs a descriptor.
MAX_ARRIVING: Final = 512
#: Handshakes under way. Each costs about ten descriptors, and the memory of a connection.
MAX_HANDSHAKES: Final = 64
#: Seconds after which one that is in the way of others is turned away.
PATIENCE: Final = 1.0


class Arrival(Protocol):
    """A client that has come."""

    def begin(self) -> None:
        """Its handshake begins."""
        ...

    def turn_away(self, reason: str, /) -> None:
        """It is not waited for any more; it may come again."""
        ...


class Arrivals:
    """Who has come, whose handshake is under way, and who waits for a place."""

    def __init__(self) -> None:
        #: Since when, on the monotonic clock; the oldest first.
        self._here: dict[Arrival, float] = {}
        self._begun: dict[Arrival, float] = {}
        self._line: dict[Arrival, None] = {}
        self._loop = asyncio.get_running_loop()
        self._look_again: asyncio.TimerHandle | None = None

    def come(self, arrival: Arrival) -> bool:
        """A client has come; False if there are too many already."""
        if len(self._here) >= MAX_ARRIVING and not self._turn_away_oldest(self._here):
            return False
        self._here[arrival] = time.monotonic()
        return True

    def want(self, arrival: Arrival) -> None:
        """A client wants its handshake: it begins now, or once there is a place."""
        self._line[arrival] = None
        self._begin_next()

    def leave(self, arrival: Arrival) -> None:
        """A client is connected, or gone. Again: nothing."""
        self._here.pop(arrival, None)
        self._begun.pop(arrival, None)
        self._line.pop(arrival, None)
        self._begin_next()

    def close(self) -> None:
        """Nobody begins any more."""
        self._line.clear()
        if self._look_again is not None:
            self._look_again.cancel()

    def _begin_next(self) -> None:
        while self._line:
            if len(self._begun) < MAX_HANDSHAKES:
                arrival = next(iter(self._line))
                del self._line[arrival]
                self._begun[arrival] = time.monotonic()
                arrival.begin()
            elif not self._turn_away_oldest(self._begun):
                if self._look_again is None:
                    self._look_again = self._loop.call_later(PATIENCE, self._look)
                return

    def _look(self) -> None:
        self._look_again = None
        self._begin_next()

    def _turn_away_oldest(self, among: dict[Arrival, float]) -> bool:
        oldest, since = next(iter(among.items()))
        if time.monotonic() - since < PATIENCE:
            return False
        # Here and not only when it leaves: it may leave later.
        del among[oldest]
        oldest.turn_away("it did not go on with the handshake, and others wait")
        return True
