"""Distribution of the bytes that each connection may have in flight to this process.

NATS disconnects a process that is 64 MiB behind, whatever the number of its connections. Therefore the receiver limits
each sender: to an equal share of half of :data:`BUDGET` at first, then repeatedly to twice as much for those that use
their window, until the other half is used up. An idle sender returns to its share with its next heartbeat.
"""

from __future__ import annotations

from typing import Final

#: Bytes that may be in flight to one process: half of the bytes that NATS buffers for a process.
BUDGET: Final = 32 << 20
#: Bytes that may be in flight to one end of a connection: maximum and minimum.
WINDOW: Final = 4 << 20
MIN_WINDOW: Final = 4 << 10


class WindowBudget:
    """The windows of all pipes of a link."""

    def __init__(self) -> None:
        self._pipe_count = 0
        self._assigned = 0

    @property
    def share(self) -> int:
        """Window in bytes of a pipe that has received nothing."""
        return max(MIN_WINDOW, min(WINDOW, BUDGET // 2 // max(1, self._pipe_count)))

    @property
    def is_short(self) -> bool:
        """True if more than three quarters are assigned, so that other connections may not get what they could use."""
        return self._assigned > BUDGET * 3 // 4

    def join(self) -> int:
        """Count another pipe, and return its first window."""
        self._pipe_count += 1
        return self.change(0, self.share)

    def leave(self, window: int) -> None:
        """Take back the window of a closed pipe, which has ``window`` bytes now. Call this once for each pipe."""
        self._pipe_count -= 1
        self._assigned -= window

    def change(self, window: int, wanted: int) -> int:
        """Change a window to ``wanted`` bytes as far as the budget allows; return the new window.

        The new window has at most WINDOW bytes, and at least MIN_WINDOW, even beyond the budget.
        """
        free = max(0, BUDGET - self._assigned + window)
        changed = max(MIN_WINDOW, min(wanted, WINDOW, free))
        self._assigned += changed - window
        return changed
