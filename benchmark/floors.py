"""The floors: loads of a client without a server, for the machine and the codec alone."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import itertools
import mmap
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgpack
import msgspec

from benchmark.compiled import library
from benchmark.durations import Durations
from benchmark.payloads import payload
from benchmark.processes import Caller, Rendezvous
from benchmark.results import Result

#: Round trips of a ping-pong for one figure.
_BATCH: Final = 10_000
#: Blocks of shared memory begin where a page does.
_PAGE: Final = mmap.PAGESIZE

_CODECS: Final[dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]]] = {
    "msgspec": (msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode),
    "msgpack": (msgpack.packb, functools.partial(msgpack.unpackb, strict_map_key=False)),
}

_now = time.perf_counter_ns


@contextlib.asynccontextmanager
async def connect(place: Rendezvous) -> AsyncIterator[None]:
    """Yield a client that calls nothing."""
    yield


def _timed(do: Callable[[], object], seconds: float) -> Result:
    """Do it for so long, three times at least."""
    times: list[int] = []
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < 3:
        do()
        after = _now()
        times.append(after - before)
        before = after
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


@functools.cache
def _passing() -> Callable[[int], float]:
    """``ping_pong.rs``: passes a word between two threads; the nanoseconds of a round trip."""
    function = library("ping_pong.rs").ping_pong
    function.argtypes, function.restype = (ctypes.c_uint32,), ctypes.c_double
    return function


async def ping_pong(_caller: Caller, *, seconds: float) -> Result:
    """Return a word there and back between two threads that spin for it."""
    once = _passing()
    times: list[int] = []
    start = _now()
    while _now() < start + seconds * 1e9 or not times:
        times.append(round(once(_BATCH)))
    took = _now() - start
    # Threads that have to share a CPU end a batch early.
    return Result(max(1, round(took / statistics.fmean(times))), took / 1e9, Durations.of(times))


async def turn(_caller: Caller, *, seconds: float) -> Result:
    """Return a future that is done in the loop's next turn: what it costs to wait for anything at all."""
    times: list[int] = []
    loop = asyncio.get_running_loop()
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
        after = _now()
        times.append(after - before)
        before = after
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


async def codec(_caller: Caller, *, seconds: float, codec: str, kind: str, size: int = 0) -> Result:
    """Encode and decode a request and its result by the codec alone. ``kind`` is a payload or ``small``."""
    encode, decode = _CODECS[codec]
    request, result = ((1000, 2), 1002) if kind == "small" else ((payload(kind, size),), payload(kind, size))

    def trip() -> None:
        decode(encode(request))
        decode(encode(result))

    return _timed(trip, seconds)


async def copies(_caller: Caller, *, seconds: float, size: int, footprint: int = 0) -> Result:
    """Copy of one ``bytes`` within this process, by memcpy.

    The destinations take turns; there are as many as go into ``footprint`` bytes, one at least, each begins on a page
    of its own, and they lie in shared memory that has been touched, since that has small pages, as an arena's has.
    """
    data, step = b"\1" * size, -(-size // _PAGE) * _PAGE
    places = max(1, footprint // step)
    with mmap.mmap(-1, places * step) as memory, memoryview(memory) as view:
        turns = itertools.cycle([slice(at, at + size) for at in range(0, places * step, step)])

        def copy() -> None:
            view[next(turns)] = data

        for _ in range(places):
            copy()
        result = _timed(copy, seconds)
    result.extra = {"GB/s": result.calls * size / result.seconds / 1e9}
    if footprint:
        result.extra["MB in use"] = footprint / 1e6
    return result
