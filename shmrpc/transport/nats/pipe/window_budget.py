"""Distributes the bytes that each connection may have in flight to this process.

NATS disconnects a process that is 64 MiB behind, whatever the number of its connections. Therefore the receiver limits
each sender: to an equal share of half of :data:`BUDGET` at first, then repeatedly to twice as much for those that use
their window, until the other half is used up. An idle sender returns to its share with its next heartbeat.
"""

from __future__ import annotations

from typing import Final

#: Bytes that may be in flight to one process: half of what NATS keeps for it.
BUDGET: Final = 32 << 20
#: Bytes that may be in flight to one end of a connection: maximum and minimum.
WINDOW: Final = 4 << 20
LEAST: Final = 4 << 10


class WindowBudget:
    """The windows of all pipes of a link."""

    def __init__(self) -> None:
        self._ends = 0
        self._given = 0

    @property
    def share(self) -> int:
        """Window in bytes of a pipe that has received nothing."""
        return max(LEAST, min(WINDOW, BUDGET // 2 // max(1, self._ends)))

    @property
    def is_short(self) -> bool:
        """True if so much is assigned that other connections may lack window."""
        return self._given > BUDGET * 3 // 4

    def join(self) -> int:
        """Assign the first window to another pipe; return it."""
        self._ends += 1
        return self.change(0, self.share)

    def leave(self, window: int) -> None:
        """Take back the window of a pipe."""
        self._ends -= 1
        self._given -= window

    def change(self, window: int, wanted: int) -> int:
        """Change a window as far as the budget allows; return the new one."""
        free = max(0, BUDGET - self._given + window)
        changed = max(LEAST, min(wanted, WINDOW, free))
        self._given += changed - window
        return changed
