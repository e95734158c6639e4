"""Loads for the tables of a study of pools; each time is of one command, or of one statement."""

from __future__ import annotations

import array
import pickle
import time
from collections.abc import Callable
from typing import Any, Final

from benchmark.command_tasks import check
from benchmark.durations import Durations
from benchmark.mandelbrot import paint, parts
from benchmark.pool_work import Pools, Team, of
from benchmark.processes import Caller
from benchmark.results import Result
from shmrpc.wire.codec import get_codec

_now = time.perf_counter_ns
#: A command is done at least so often in a turn.
_LEAST: Final = 3
#: The leading figure of a window, and its arrays and their bytes, among the extras.
SECONDS, ARRAYS, BYTES = "s", "arrays", "bytes of all"


def timed(work: Callable[[], Any], seconds: float) -> Result:
    """Do it again and again."""
    times: list[int] = []
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < _LEAST:
        work()
        after = _now()
        times.append(after - before)
        before = after
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


def command(caller: Caller, *, seconds: float, task: str, size: int, **how: Any) -> Result:
    """Return a task for another process, until its result is here."""
    do = caller.client
    check(task, size, do(task, size, **how))
    return timed(lambda: do(task, size, **how), seconds)


def ints(caller: Caller, *, seconds: float, size: int, way: str) -> Result:
    """Ints to bytes, or from bytes, by Python's array."""
    values = list(range(size))
    data = array.array("q", values).tobytes()

    def back() -> list[int]:
        read = array.array("q")
        read.frombytes(data)
        return read.tolist()

    assert back() == values
    return timed((lambda: array.array("q", values).tobytes()) if way == "to bytes" else back, seconds)


def serializer(caller: Caller, *, seconds: float, size: int, way: str, ours: bool) -> Result:
    """Return a list of ints to bytes, or from bytes: by our codec, or by pickle."""
    values = list(range(size))
    codec = get_codec("msgspec")
    encode: Callable[[Any], Any] = codec.encode_all if ours else lambda value: pickle.dumps(value, -1)
    decode: Callable[[Any], Any] = codec.decoder(list[int]) if ours else pickle.loads
    data = encode(values)
    assert decode(data) == values
    return timed((lambda: encode(values)) if way == "encode" else (lambda: decode(data)), seconds)


def _window(width: int, height: int, count: int, arrays: list[Any], began: int) -> Result:
    """Return the figures of a window that was painted. Raises ValueError if a part is missing."""
    took = (_now() - began) / 1e9
    size = sum(len(each) for each in arrays)
    if size != width * height or arrays[0].tobytes() != paint(parts(width, height, count)[0]).tobytes():
        raise ValueError(f"a window of {width} x {height} points was painted with {size}, or otherwise")
    return Result(1, took, extra={SECONDS: took, ARRAYS: float(count), BYTES: float(size)})


def window(caller: Caller, *, seconds: float, width: int, height: int, count: int, alone: bool = False) -> Result:
    """Return a window in that number of arrays, each a command; ``alone``: this process paints them."""
    do, began = caller.client, _now()
    arrays = [paint(part) if alone else do("paint", part) for part in parts(width, height, count)]
    return _window(width, height, count, arrays, began)


def window_by_pool(caller: Caller, *, seconds: float, width: int, height: int, count: int, workers: int) -> Result:
    """Return the same by a pool."""
    pools: Pools = caller.client

    async def load(team: Team) -> Result:
        await of(team.map(len, ["", ""] * workers))  # So that the workers are there.
        began = _now()
        arrays = await of(team.map(paint, parts(width, height, count)))
        return _window(width, height, count, arrays, began)

    return pools.do(workers, load)
