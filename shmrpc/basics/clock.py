"""The clock of deadlines: the host's CLOCK_MONOTONIC, which is the same for all of its processes.

In a time namespace, which a container may have, a process reads this clock with an offset. A deadline travels between
processes, so a deadline is always an instant of the host's clock. Outside of such namespaces, the host's clock is
``time.monotonic_ns``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Names of CLOCK_MONOTONIC in the kernel's list of offsets; Linux 5.6 writes its number.
_MONOTONIC = ("monotonic", "1")


def _read_ahead() -> int:
    """Return how many nanoseconds this process's CLOCK_MONOTONIC is ahead of the host's; 0 if the kernel hides it."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:  # The kernel has no time namespaces, or there is no /proc.
        return 0
    for name, seconds, nanoseconds in map(str.split, lines):
        if name in _MONOTONIC:
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


#: Nanoseconds by which this process's CLOCK_MONOTONIC is ahead of the host's.
AHEAD: Final = _read_ahead()


def _choose_clock() -> Callable[[], int]:
    """Return a function that returns the host's time in nanoseconds."""
    clock = time.monotonic_ns
    return (lambda: clock() - AHEAD) if AHEAD else clock


#: Returns the time of the host's CLOCK_MONOTONIC, in nanoseconds.
host_nanoseconds: Callable[[], int] = _choose_clock()


def seconds_until(deadline: int) -> float:
    """Return the seconds until an instant of the host's clock; negative once it has passed."""
    return (deadline - host_nanoseconds()) / 1e9
