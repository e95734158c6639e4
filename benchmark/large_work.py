"""The service for large data: what comes in goes out, is looked at, or is averaged."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import shmrpc

service = shmrpc.Service("benchmark-large")

#: A picture: height, width, colours.
Frame = npt.NDArray[np.uint8]

_kept: Final[list[Frame]] = []
_counts: Final = [0, 0]


@service.endpoint
def echo(value: Any) -> Any:
    """What comes in goes out."""
    return value


@service.endpoint
def take(message: bytes) -> None:
    """Counts a message, and looks at its length and its last byte."""
    _counts[0] += 1
    _counts[1] += message[len(message) - 1]


@service.endpoint
def look(message: memoryview) -> None:
    """The same where the message lies."""
    _counts[0] += 1
    _counts[1] += message[len(message) - 1]


@service.endpoint
def taken() -> list[int]:
    """How many messages came since the last time, and the sum of their last bytes."""
    counts = list(_counts)
    _counts[:] = 0, 0
    return counts


@service.endpoint
def mean(frame: Frame) -> float:
    """The mean of a frame."""
    return float(frame.mean())


@service.endpoint
def keep(frame: Frame) -> None:
    """Keeps a frame for :func:`time_mean`."""
    _kept[:] = [frame]


@service.endpoint
def forget() -> None:
    """Lets go of it."""
    _kept.clear()


@service.endpoint
def time_mean() -> int:
    """The nanoseconds that the mean of the kept frame takes here."""
    (frame,) = _kept
    before = time.perf_counter_ns()
    float(frame.mean())
    return time.perf_counter_ns() - before
