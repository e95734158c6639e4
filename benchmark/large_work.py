"""The service for large data: arrays go out as they came in, or are averaged."""

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


@service.endpoint
def echo(value: Any) -> Any:
    """Return the value."""
    return value


@service.endpoint
def mean(frame: Frame) -> float:
    """Return the mean of a frame."""
    return float(frame.mean())


@service.endpoint
def keep(frame: Frame) -> None:
    """Keep a frame for :func:`time_mean`."""
    _kept[:] = [frame]


@service.endpoint
def forget() -> None:
    """Let go of it."""
    _kept.clear()


@service.endpoint
def time_mean() -> int:
    """Return the nanoseconds that the mean of the kept frame takes here."""
    (frame,) = _kept
    before = time.perf_counter_ns()
    float(frame.mean())
    return time.perf_counter_ns() - before
