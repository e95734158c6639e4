"""Checks of arguments that several kinds of shared objects take."""

from __future__ import annotations

from typing import Final

from shmrpc.basics.checks import check_count, check_real

#: Seconds of the longest timeout: every timer of an event loop or a thread can count that many.
_LONGEST_TIMEOUT: Final = 1e8
#: The largest number of items, as the core's signed integers of 64 bits have it.
MAX_ITEMS: Final = (1 << 63) - 1


def check_timeout(timeout: float | None) -> float | None:
    """Return a timeout in seconds as a timer can count it, or None for no limit.

    Raises TypeError if it is no number, and ValueError if it is negative or not a number of seconds.
    """
    if timeout is None:
        return None
    check_real("timeout", timeout, "a number of seconds (None: no limit)")
    if not timeout >= 0:
        raise ValueError(f"timeout: expected seconds, 0 or more (None: no limit), got {timeout}")
    return float(min(timeout, _LONGEST_TIMEOUT))


def check_item_count(count: int) -> int:
    """Return a number of items as the core can count it. Raises TypeError or ValueError for less than 1."""
    return min(check_count("number of items", count, 1), MAX_ITEMS)
