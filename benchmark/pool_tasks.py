"""Tasks for pools of any make."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

#: Values that a worker keeps of those that all workers were given.
_kept: Final[list[Any]] = []


def same(value: Any) -> Any:
    """Return what it is given."""
    return value


def spin(seconds: float) -> None:
    """Use a CPU for this long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def pid_after(seconds: float) -> int:
    """Which process this is; after a while, so that each worker gets its share."""
    time.sleep(seconds)
    return os.getpid()


def keep(value: Any) -> tuple[int, float]:
    """Keep an array from now on, or what gives one, and adds up all of it; with the process."""
    _kept[:] = [value]
    array = value() if isinstance(value, Callable) else value  # type: ignore[arg-type]
    return os.getpid(), float(array.sum())
