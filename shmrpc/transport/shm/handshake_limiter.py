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
MAX_HANDSHAKE_WAIT: Final = 1.0


_C = TypeVar("_C")


class HandshakeLimiter(Generic[_C]):
    """The clients that have come, those whose handshake is under way, and those that wait for a place.

    ``begin`` begins a client's handshake; ``reject_for_now`` ends the wait for one, and says why.
    """

    def __init__(self, begin: Callable[[_C], None], reject_for_now: Callable[[_C, str], None]) -> None:
        self._begin = begin
        self._reject_for_now = reject_for_now
        #: Since when, on the monotonic clock; the oldest first.
        self._arrived_at: dict[_C, float] = {}
        self._started_at: dict[_C, float] = {}
        #: In the order in which they are to begin.
        self._waiting: dict[_C, None] = {}
        self._loop = asyncio.get_running_loop()
        self._retry_timer: asyncio.TimerHandle | None = None

    def admit(self, client: _C) -> bool:
        """Counts a client that has come; False if there are too many already."""
        if len(self._arrived_at) >= MAX_ARRIVING and not self._reject_oldest(self._arrived_at):
            return False
        self._arrived_at[client] = time.monotonic()
        return True

    @property
    def is_alone(self) -> bool:
        """Whether no more than one client is about to be connected."""
        return len(self._arrived_at) <= 1

    def request(self, client: _C) -> None:
        """Begins a client's handshake now, or once there is a place."""
        self._waiting[client] = None
        self._begin_next()

    def remove(self, client: _C) -> None:
        """Makes place: a client is connected, or gone. Again: nothing."""
        self._arrived_at.pop(client, None)
        self._started_at.pop(client, None)
        self._waiting.pop(client, None)
        self._begin_next()

    def close(self) -> None:
        """Begins no handshake any more."""
        self._waiting.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    def _begin_next(self) -> None:
        while self._waiting:
            if len(self._started_at) < MAX_HANDSHAKES:
                client = next(iter(self._waiting))
                del self._waiting[client]
                self._started_at[client] = time.monotonic()
                self._begin(client)
            elif not self._reject_oldest(self._started_at):
                if self._retry_timer is None:
                    self._retry_timer = self._loop.call_later(MAX_HANDSHAKE_WAIT, self._retry)
                return

    def _retry(self) -> None:
        self._retry_timer = None
        self._begin_next()

    def _reject_oldest(self, among: dict[_C, float]) -> bool:
        oldest, since = next(iter(among.items()))
        if time.monotonic() - since < MAX_HANDSHAKE_WAIT:
            return False
        # Here, and not only when it leaves, which may be later.
        del among[oldest]
        self._reject_for_now(oldest, "it did not go on with the handshake, and others wait")
        return True
