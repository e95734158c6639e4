"""Checks of arguments that several kinds of shared objects take."""

from __future__ import annotations

from typing import Final

from shmrpc.basics.checks import check_count, check_real

#: The longest timeout, in seconds: every timer of an event loop or a thread can count that many.
_LONGEST_TIMEOUT: Final = 1e8
#: The largest number of items, as the core's signed integers of 64 bits have it.
MAX_ITEMS: Final = (1 << 63) - 1


def check_timeout(timeout: float | None) -> float | None:
    """Return a timeout in seconds as a float, at most 1e8, which any timer can count; None for no limit.

    Raises TypeError if the timeout is no number, and ValueError if it is negative or NaN.
    """
    if timeout is None:
        return None
    check_real("timeout", timeout, "a number of seconds (None: no limit)")
    if not timeout >= 0:
        raise ValueError(f"timeout: expected seconds, 0 or more (None: no limit), got {timeout}")
    return float(min(timeout, _LONGEST_TIMEOUT))


def check_item_count(count: int) -> int:
    """Return a number of items, 1 or more; a number above MAX_ITEMS is replaced by MAX_ITEMS.

    Raises TypeError if the number is no integer, and ValueError if it is below 1.
    """
    return min(check_count("number of items", count, 1), MAX_ITEMS)
