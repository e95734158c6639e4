"""The loads of large data: arrays that are built in place, and a picture whose mean is asked for."""

from __future__ import annotations

import statistics
import time
from typing import Final

from benchmark.durations import Durations
from benchmark.processes import Caller
from benchmark.results import Result

#: A picture of a camera: height, width, colours.
FRAME: Final = (1080, 1920, 3)

_now = time.perf_counter_ns


async def array_trip(caller: Caller, *, seconds: float, size: int) -> Result:
    """Return an array of ``size`` bytes, built in place once, there and back again and again; it is not read."""
    echo = caller.client.echo
    times: list[int] = []
    array = caller.client.empty(size, "uint8")
    array[:] = 1
    back = await echo(array)
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < 3:
        back = await echo(array)
        after = _now()
        times.append(after - before)
        before = after
    array[-1] = 2
    assert back.shape == array.shape
    assert back[-1] == 2, "what came back is a copy"
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


async def array_copied(caller: Caller, *, seconds: float, size: int) -> Result:
    """Return an array of ``size`` bytes of float64 there and back, again and again, by a way that copies it."""
    import numpy as np  # A rival's client may do without.

    call, array = caller.client.array, np.arange(size // 8, dtype=np.float64)
    times: list[int] = []
    back = await call(array)
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < 3:
        back = await call(array)
        after = _now()
        times.append(after - before)
        before = after
    assert back.dtype == array.dtype
    assert (back == array).all()
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


async def frame_mean(caller: Caller, *, seconds: float) -> Result:
    """Return a frame in and its mean back; after each call the server takes the mean of the same frame by itself."""
    client = caller.client
    frame = client.empty(FRAME, "uint8")
    frame[:] = 3
    await client.keep(frame)
    called: list[int] = []
    alone: list[int] = []
    start = _now()
    while _now() < start + seconds * 1e9 or len(called) < 3:
        before = _now()
        result = await client.mean(frame)
        called.append(_now() - before)
        alone.append(await client.time_mean())
        assert result == 3
    elapsed = (_now() - start) / 1e9
    await client.forget()
    medians = statistics.median(called) / 1e3, statistics.median(alone) / 1e3
    extra = {"alone": medians[1], "more than alone": medians[0] - medians[1]}
    return Result(len(called), elapsed, Durations.of(called), extra=extra)
