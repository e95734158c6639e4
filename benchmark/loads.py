"""Loads of a client with a loop. Each load is given a caller and its length in seconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from benchmark.durations import Durations
from benchmark.payloads import payload
from benchmark.processes import Caller
from benchmark.results import Result
from benchmark.sync_loads import BATCH

_now = time.perf_counter_ns


async def one_after_another(caller: Caller, *, seconds: float) -> Result:
    """Return the small call, again as soon as it is answered."""
    times: list[int] = []
    add, i = caller.client.add, 0
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        result = await add(i, 2)
        after = _now()
        times.append(after - before)
        before = after
        i += 1
    assert result == i + 1
    return Result(i, (before - start) / 1e9, Durations.of(times))


async def echo(caller: Caller, *, seconds: float, kind: str, size: int) -> Result:
    """Return a payload there and back, again as soon as it is there, three times at least."""
    value, call = payload(kind, size), caller.client.echo
    times: list[int] = []
    back = await call(value)
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < 3:
        back = await call(value)
        after = _now()
        times.append(after - before)
        before = after
    assert len(back) == len(value)
    assert back == value
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


async def sparse(caller: Caller, *, seconds: float, interval: float) -> Result:
    """Return the small call after each ``interval`` seconds of sleep, with cold caches."""
    times: list[int] = []
    add = caller.client.add
    start = _now()
    end = start + int(seconds * 1e9)
    while _now() < end or not times:
        await asyncio.sleep(interval)
        before = _now()
        await add(1, 2)
        times.append(_now() - before)
    return Result(len(times), (_now() - start) / 1e9, Durations.of(times))


async def in_flight(caller: Caller, *, seconds: float, tasks: int) -> Result:
    """Return the small call from many tasks at once."""
    end = time.perf_counter() + seconds

    async def call() -> int:
        add, calls = caller.client.add, 0
        while not calls or time.perf_counter() < end:
            await add(calls, 2)
            calls += 1
        return calls

    start = time.perf_counter()
    calls = sum(await asyncio.gather(*(call() for _ in range(tasks))))
    return Result(calls, time.perf_counter() - start)


async def open_loop(caller: Caller, *, seconds: float, rate: int) -> Result:
    """Return the small call at a fixed rate, whether the calls before are answered or not.

    Each time counts from when the call was due, so that a call which had to wait because the client or the server was
    late is as late as its user would have seen it. ``kept up`` is the share of the rate at which answers came; a
    subject that is half a second behind is called no longer.
    """
    count = max(10, int(seconds * rate))
    times: list[int] = []
    add, behind = caller.client.add, set[asyncio.Task[None]]()

    async def call(due: int) -> None:
        await add(1, 2)
        times.append(_now() - due)

    start = _now() + 1_000_000
    for number in range(count):
        due = start + number * 1_000_000_000 // rate
        while (left := due - _now()) > 0:
            # A timer would be late by more than the times that are measured here: the last part is waited out.
            await asyncio.sleep(left / 1e9 - 0.001 if left > 2_000_000 else 0)
        task = asyncio.ensure_future(call(due))
        behind.add(task)
        task.add_done_callback(behind.discard)
        if len(behind) > rate // 2 + 100:
            break
    await asyncio.gather(*behind)
    elapsed = (_now() - start) / 1e9
    kept_up = len(times) / count if len(times) < count else min(1.0, count / rate / elapsed)
    return Result(len(times), elapsed, Durations.of(times), extra={"kept up": kept_up})


async def stream(caller: Caller, *, seconds: float) -> Result:
    """Return a stream of small items, read for so long and then left."""
    items, start = 0, time.perf_counter()
    end, feed = start + seconds, caller.client.count(1 << 40)
    async for item in feed:
        assert item == items
        items += 1
        if items % 64 == 0 and time.perf_counter() > end:
            break
    elapsed = time.perf_counter() - start
    await _leave(feed)
    return Result(items, elapsed)


async def _leave(feed: AsyncIterator[Any]) -> None:
    await feed.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)  # The other side hears of it in its own time.


async def acquire_and_release(caller: Caller, *, seconds: float) -> Result:
    """Acquire and release a lock without contention; the times are the means of batches."""
    times: list[int] = []
    lock = caller.client.lock
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        for _ in range(BATCH):
            async with lock:
                pass
        after = _now()
        times.append((after - before) // BATCH)
        before = after
    return Result(len(times) * BATCH, (before - start) / 1e9, Durations.of(times))


async def bulk(caller: Caller, *, seconds: float, size: int, messages: int, **how: Any) -> Result:
    """So many messages of ``bytes`` one way, until the other side has looked at the last; again and again."""
    data, sent = b"\1" * size, 0
    start = time.perf_counter()
    while not sent or time.perf_counter() - start < seconds:
        await caller.client.bulk(data, messages, **how)
        sent += messages
    elapsed = time.perf_counter() - start
    return Result(sent, elapsed, extra={"GB/s": sent * size / elapsed / 1e9})


async def for_a_while(caller: Caller, *, seconds: float, start_at: float) -> Result:
    """Return the small calls that are answered in a time that begins for all clients at once, by CLOCK_MONOTONIC."""
    await asyncio.sleep(max(0.0, start_at - time.monotonic()))
    add, calls, end = caller.client.add, 0, start_at + seconds
    before = time.process_time()
    while True:
        await add(calls, 2)
        if time.monotonic() > end:
            break
        calls += 1
    return Result(calls, seconds, cpu=time.process_time() - before)


async def beside_a_ticker(caller: Caller, *, seconds: float) -> Result:
    """Small calls without pause beside a ticker of a millisecond on the same loop; the times are how late it is."""
    late: list[int] = []
    add, busy = caller.client.add, True

    async def call() -> int:
        calls = 0
        while busy:
            await add(calls, 2)
            calls += 1
        return calls

    task = asyncio.ensure_future(call())
    start = _now()
    while not late or _now() < start + seconds * 1e9:
        due = _now() + 1_000_000
        await asyncio.sleep(0.001)
        late.append(max(0, _now() - due))
    busy = False
    return Result(await task, (_now() - start) / 1e9, Durations.of(late))


async def first_answer_connecting(caller: Caller, *, patience: float) -> Result:
    """From nothing to an answer, tried again until there is a server; says when that was, by CLOCK_MONOTONIC."""
    end = time.monotonic() + patience
    while True:
        with contextlib.suppress(Exception):
            async with caller.connect() as client:
                assert await client.add(1, 2) == 3
                return Result(1, 0.0, extra={"answered at": time.monotonic()})
        if time.monotonic() > end:
            raise TimeoutError(f"no answer for {patience:g} s")
        await asyncio.sleep(0.001)


async def one_more_connecting(caller: Caller, *, seconds: float) -> Result:
    """Connect, calls once and disconnects, again and again; the times are those until the answer."""
    times: list[int] = []
    start = _now()
    while not times or _now() < start + seconds * 1e9:
        before = _now()
        async with caller.connect() as client:
            assert await client.add(1, 2) == 3
            times.append(_now() - before)
    return Result(len(times), (_now() - start) / 1e9, Durations.of(times))


#: Connections of :func:`hold`.
_held: Final = contextlib.AsyncExitStack()


async def hold(caller: Caller, *, connections: int) -> Result:
    """Make more connections, call once over each, and keep them."""
    start = time.perf_counter()
    for _ in range(connections):
        client = await _held.enter_async_context(caller.connect())
        assert await client.add(1, 2) == 3
    return Result(connections, time.perf_counter() - start)


async def let_go(_caller: Caller) -> Result:
    """End what :func:`hold` has connected."""
    await _held.aclose()
    return Result(0, 0.0)
