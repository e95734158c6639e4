"""The clock of deadlines: CLOCK_MONOTONIC as the host has it, which is the same for all of its processes.

A process in a time namespace, such as a container may have, sees it shifted. A deadline travels, so it is always an
instant of the host's clock; for whoever is in no such namespace that is ``time.monotonic_ns`` itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: Names of CLOCK_MONOTONIC in the kernel's list of offsets; Linux 5.6 has its number there.
_MONOTONIC = ("monotonic", "1")


def _offset() -> int:
    """Nanoseconds by which this process sees the clock ahead of the host's."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:  # A kernel without time namespaces, or no /proc to tell of them.
        return 0
    for name, seconds, nanoseconds in map(str.split, lines):
        if name in _MONOTONIC:
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def _host_clock() -> Callable[[], int]:
    offset, clock = _offset(), time.monotonic_ns
    return (lambda: clock() - offset) if offset else clock


#: The time, in nanoseconds, on the host's CLOCK_MONOTONIC.
host_nanoseconds: Callable[[], int] = _host_clock()


def seconds_until(deadline: int) -> float:
    """How far away an instant of the host's clock is; less than 0 once it has passed."""
    return (deadline - host_nanoseconds()) / 1e9
