"""Limits the number of handshakes, and the time for which a client may keep others waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

#: Maximum number of accepted clients without a connection. Each costs a descriptor.
MAX_ARRIVING: Final = 512
#: Maximum number of handshakes in progress. Each costs about ten descriptors, and the memory of a connection.
MAX_HANDSHAKES: Final = 64
#: Seconds after which a client that keeps others waiting is rejected.
MAX_HANDSHAKE_WAIT: Final = 1.0


_C = TypeVar("_C")


class HandshakeLimiter(Generic[_C]):
    """The clients that have arrived, those in a handshake, and those that wait to begin theirs.

    ``begin`` starts a client's handshake, and ``reject_for_now`` rejects a client with a reason; both may call
    :meth:`remove`. Belongs to the event loop that runs when it is created.
    """

    def __init__(self, begin: Callable[[_C], None], reject_for_now: Callable[[_C, str], None]) -> None:
        self._begin = begin
        self._reject_for_now = reject_for_now
        #: Times of arrival and of the start of handshakes on the monotonic clock, oldest first.
        self._arrived_at: dict[_C, float] = {}
        self._started_at: dict[_C, float] = {}
        #: Clients in the order in which their handshakes begin.
        self._waiting: dict[_C, None] = {}
        self._loop = asyncio.get_running_loop()
        self._retry_timer: asyncio.TimerHandle | None = None

    def admit(self, client: _C) -> bool:
        """Count a client that has arrived, until :meth:`remove`. Returns False, uncounted, if there are too many.

        To make room, the oldest client is rejected if it arrived more than MAX_HANDSHAKE_WAIT seconds ago.
        """
        if len(self._arrived_at) >= MAX_ARRIVING and not self._reject_oldest(self._arrived_at):
            return False
        self._arrived_at[client] = time.monotonic()
        return True

    @property
    def is_alone(self) -> bool:
        """True if at most one client is about to be connected."""
        return len(self._arrived_at) <= 1

    def request(self, client: _C) -> None:
        """Start the handshake of an admitted client now, before returning, or once a place is free."""
        self._waiting[client] = None
        self._begin_next()

    def remove(self, client: _C) -> None:
        """Forget a client that is connected or has left, and start waiting handshakes. Idempotent."""
        self._arrived_at.pop(client, None)
        self._started_at.pop(client, None)
        self._waiting.pop(client, None)
        self._begin_next()

    def close(self) -> None:
        """Start no further handshakes. The waiting clients are forgotten, and not rejected."""
        self._waiting.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    def _begin_next(self) -> None:
        """Start waiting handshakes while places are free, rejecting clients that hold a place for too long."""
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
        """Start waiting handshakes, now that the oldest one in progress may be rejected."""
        self._retry_timer = None
        self._begin_next()

    def _reject_oldest(self, among: dict[_C, float]) -> bool:
        """Reject the oldest of these clients if it has had its time. Returns True if so."""
        oldest, since = next(iter(among.items()))
        if time.monotonic() - since < MAX_HANDSHAKE_WAIT:
            return False
        # Removed here, because the client may call remove() later.
        del among[oldest]
        self._reject_for_now(oldest, "it did not go on with the handshake, and others wait")
        return True
