"""The bytes that each connection may have on the way to a process.

NATS cuts off a process that is 64 MiB behind, whatever number of connections has sent that. So the receiver says how
much each sender may send: an equal share of half of :data:`BUDGET`, and twice as much, again and again, for those that
use what they have, until the other half is given out. An idle one goes back to its share with its next heartbeat.
"""

from __future__ import annotations

from typing import Final

#: Bytes that may be on the way to one process together: half of what NATS keeps for it.
BUDGET: Final = 32 << 20
#: Bytes that may be on the way to one end of a connection: at most, and at least.
WINDOW: Final = 4 << 20
LEAST: Final = 4 << 10


class WindowBudget:
    """The windows of all ends of connections that a process has with one server of NATS."""

    def __init__(self) -> None:
        self._ends = 0
        self._given = 0

    @property
    def share(self) -> int:
        """Bytes for an end that has used nothing so far."""
        return max(LEAST, min(WINDOW, BUDGET // 2 // max(1, self._ends)))

    @property
    def is_short(self) -> bool:
        """Return True if so much is given out that other connections may lack room."""
        return self._given > BUDGET * 3 // 4

    def join(self) -> int:
        """Give another end its first window."""
        self._ends += 1
        return self.change(0, self.share)

    def leave(self, window: int) -> None:
        """Take back the window of an end."""
        self._ends -= 1
        self._given -= window

    def change(self, window: int, wanted: int) -> int:
        """Change an end's window to what is wanted, as far as the budget goes, and return it."""
        free = max(0, BUDGET - self._given + window)
        changed = max(LEAST, min(wanted, WINDOW, free))
        self._given += changed - window
        return changed
