"""The loads: what a client does while it is measured. Each takes the client and returns latencies or counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import shmrpc
from benchmark.work import nested

Result = dict[str, Any]
AsyncLoad = Callable[..., Awaitable[Result]]

_now = time.perf_counter_ns
NESTED = nested()


async def one_after_another(client: Any, *, calls: int) -> Result:
    """The small call, again as soon as it is answered."""
    add, latencies = client.add, [0] * calls
    start = _now()
    for i in range(calls):
        before = _now()
        await add(i, 2)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


async def large(client: Any, *, calls: int) -> Result:
    """The large call, again as soon as it is answered."""
    echo, latencies = client.echo, [0] * calls
    start = _now()
    for i in range(calls):
        before = _now()
        await echo(NESTED)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


async def sparse(client: Any, *, calls: int, interval: float) -> Result:
    """The small call every ``interval`` seconds: nobody is hot."""
    add, latencies = client.add, [0] * calls
    start = _now()
    for i in range(calls):
        await asyncio.sleep(interval)
        before = _now()
        await add(i, 2)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


async def in_flight(client: Any, *, calls: int, tasks: int) -> Result:
    """The small call from many tasks at once."""

    async def caller(count: int) -> None:
        add = client.add
        for i in range(count):
            await add(i, 2)

    start = _now()
    await asyncio.gather(*(caller(calls // tasks) for _ in range(tasks)))
    return {"latencies": [], "calls": calls // tasks * tasks, "seconds": (_now() - start) / 1e9}


async def stream(client: Any, *, calls: int) -> Result:
    """A stream of small items; each is a call in the figures."""
    start, items = _now(), 0
    async for _ in client.count(calls):
        items += 1
    assert items == calls
    return {"latencies": [], "calls": items, "seconds": (_now() - start) / 1e9}


async def under_a_deadline(client: Any, *, calls: int) -> Result:
    """The small call, with a timeout that never fires."""
    return await one_after_another(client.with_options(timeout=30), calls=calls)


async def under_a_deadline_each(client: Any, *, calls: int) -> Result:
    """The same, with the options said anew for each call."""
    latencies = [0] * calls
    start = _now()
    for i in range(calls):
        before = _now()
        await client.with_options(timeout=30).add(i, 2)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


async def mapped(client: Any, *, calls: int) -> Result:
    """The small call by map(), many in a frame."""
    start, results = _now(), 0
    async for _ in client.map("add", range(calls), range(calls)):
        results += 1
    assert results == calls
    return {"latencies": [], "calls": results, "seconds": (_now() - start) / 1e9}


async def one_way(client: Any, *, calls: int) -> Result:
    """The small call with nobody waiting for its result; at the end one that is waited for."""
    notify = client.notify
    start = _now()
    for i in range(calls):
        await notify("add", i, 2)
    await client.add(1, 2)
    return {"latencies": [], "calls": calls, "seconds": (_now() - start) / 1e9}


async def for_a_while(client: Any, *, seconds: float, start_at: float) -> Result:
    """As many small calls as go into a time that begins for all clients at once (CLOCK_MONOTONIC)."""
    await asyncio.sleep(max(0.0, start_at - time.monotonic()))
    add, calls, end = client.add, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for i in range(50):
            await add(i, 2)
        calls += 50
    return {"latencies": [], "calls": calls, "seconds": seconds}


async def beside_a_ticker(client: Any, *, seconds: float) -> Result:
    """Small calls without pause beside a 1 ms ticker on the same loop; the latencies are its latenesses."""
    lateness: list[int] = []
    busy = True

    async def caller() -> int:
        calls = 0
        while busy:
            await client.add(calls, 2)
            calls += 1
        return calls

    task = asyncio.create_task(caller())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        due = _now() + 1_000_000
        await asyncio.sleep(0.001)
        lateness.append(max(0, _now() - due))
    busy = False
    return {"latencies": lateness, "calls": await task, "seconds": seconds}


def sync_one_after_another(client: Any, *, calls: int) -> Result:
    """The small call in a thread without a loop."""
    add, latencies = client.add, [0] * calls
    start = _now()
    for i in range(calls):
        before = _now()
        add(i, 2)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


def sync_large(client: Any, *, calls: int) -> Result:
    """The large call in a thread without a loop."""
    echo, latencies = client.echo, [0] * calls
    start = _now()
    for i in range(calls):
        before = _now()
        echo(NESTED)
        latencies[i] = _now() - before
    return {"latencies": latencies, "calls": calls, "seconds": (_now() - start) / 1e9}


class Direct:
    """The same calls as plain awaits: the floor of any transport."""

    @staticmethod
    async def add(a: int, b: int) -> int:
        """The small call."""
        return a + b

    @staticmethod
    async def echo(value: Any) -> Any:
        """The large call."""
        return value


async def idle(client: Any, *, seconds: float) -> Result:
    """Nothing."""
    await asyncio.sleep(seconds)
    return {"latencies": [], "calls": 0, "seconds": seconds}


_held: list[Any] = []


async def connect_more(client: Any, *, connections: int) -> Result:
    """Connects that many times more, and keeps the connections."""
    for _ in range(connections):
        _held.append(await shmrpc.connect("benchmark"))
    return {"latencies": [], "calls": 0, "seconds": 0.0}
