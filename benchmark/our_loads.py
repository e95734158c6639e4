"""Loads that only our own client can do: what options cost, and many calls in a frame."""

from __future__ import annotations

import time

from benchmark import loads
from benchmark.durations import Durations
from benchmark.processes import Caller
from benchmark.results import Result

_now = time.perf_counter_ns
#: Calls of a :func:`mapped`; one lasts some milliseconds.
_MAPPED = 20_000


async def under_a_deadline(caller: Caller, *, seconds: float) -> Result:
    """Return the small call by a client that was given a timeout, which never fires."""
    client = caller.client.client.with_options(timeout=30)
    return await loads.one_after_another(Caller(client, caller.connect), seconds=seconds)


async def under_a_deadline_each(caller: Caller, *, seconds: float) -> Result:
    """Return the same, with the timeout said anew for each call."""
    times: list[int] = []
    client, i = caller.client.client, 0
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        await client.with_options(timeout=30).add(i, 2)
        after = _now()
        times.append(after - before)
        before = after
        i += 1
    return Result(i, (before - start) / 1e9, Durations.of(times))


async def mapped(caller: Caller, *, seconds: float) -> Result:
    """Return the small call by ``map()``, many in a frame."""
    calls, start = 0, time.perf_counter()
    while not calls or time.perf_counter() < start + seconds:
        numbers = range(_MAPPED)
        async for _ in caller.client.client.map("add", numbers, numbers):
            calls += 1
    return Result(calls, time.perf_counter() - start)


async def one_way(caller: Caller, *, seconds: float) -> Result:
    """Return the small call without waiting for its result; the last one is waited for."""
    notify, calls = caller.client.client.notify, 0
    start = time.perf_counter()
    while not calls or time.perf_counter() < start + seconds:
        await notify("add", calls, 2)
        calls += 1
    await caller.client.add(1, 2)
    return Result(calls, time.perf_counter() - start)


async def most_in_use(caller: Caller, *, size: int, messages: int) -> Result:
    """Return the bytes of shared memory in which messages lay at once, at most, in :func:`benchmark.loads.bulk`."""
    client, peak = caller.client.client, 0
    # Only a benchmark has to know what an arena has in use.
    memory = client._reconnector.session.connection.channel.memory
    data, start = b"\1" * size, time.perf_counter()
    for _ in range(messages):
        await client.notify("take", data)
        peak = max(peak, memory()[1])
    assert await client.taken() == [messages, messages]
    return Result(messages, time.perf_counter() - start, extra={"bytes in use": peak})
