"""The end of a timeout, and the rest of it, by the clock of this process."""

from __future__ import annotations

import time


def end_of_wait(timeout: float | None) -> float | None:
    """Return the time of ``time.monotonic()`` at which a wait of ``timeout`` seconds ends; None for no limit."""
    return None if timeout is None else time.monotonic() + timeout


def seconds_left(end: float | None) -> float | None:
    """Return the seconds until ``end``, a time of ``time.monotonic()``, at least 0; None for no limit."""
    return None if end is None else max(0.0, end - time.monotonic())
