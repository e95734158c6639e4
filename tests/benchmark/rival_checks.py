"""Loads that check replies instead of times; loads whose names end with ``_sync`` are for clients without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Final

from benchmark.payloads import RECORD
from benchmark.processes import Caller
from benchmark.results import Result
from benchmark.sharing import COUNT

#: Values to echo: bytes of sizes at which frames, rings and buffers end, and values of several kinds.
VALUES: Final[tuple[Any, ...]] = (
    *(
        bytes(range(256)) * (size // 256) + b"\1" * (size % 256)
        for size in (0, 1, 255, 4096, 65_536, 262_144, 1_000_000)
    ),
    [],
    list(range(-1000, 1000)),
    list(range(100_000)),
    RECORD,
)
_TASKS: Final = 64
_OFTEN: Final = 2000
_held: Final[list[Any]] = []


def _done(calls: int) -> Result:
    return Result(calls, 1.0)


async def call(caller: Caller) -> Result:
    """Check that sums are right and that echoed values are equal."""
    for i in range(20):
        assert await caller.client.add(i, 2) == i + 2
    for value in VALUES:
        back = await caller.client.echo(value)
        assert type(back) is type(value) and back == value
    return _done(20 + len(VALUES))


def call_sync(caller: Caller) -> Result:
    for i in range(20):
        assert caller.client.add(i, 2) == i + 2
    for value in VALUES:
        back = caller.client.echo(value)
        assert type(back) is type(value) and back == value
    return _done(20 + len(VALUES))


async def concurrent(caller: Caller) -> Result:
    """Make 300 small and large calls by 64 tasks, and check that each reply belongs to its call."""
    numbers = iter(range(300))

    async def some() -> int:
        calls = 0
        for number in numbers:
            if number % 3:
                assert await caller.client.add(number, 1000) == number + 1000
            else:
                value = number.to_bytes(2, "big") * (number * 53)
                assert await caller.client.echo(value) == value
            calls += 1
        return calls

    return _done(sum(await asyncio.gather(*(some() for _ in range(_TASKS)))))


async def hosts(caller: Caller) -> Result:
    """Make 300 calls with sums and arrays by 64 tasks, and check that each reply belongs to its call."""
    import numpy as np  # Few of the clients have arrays.

    numbers = iter(range(300))

    async def some() -> int:
        calls = 0
        for number in numbers:
            if number % 3:
                assert await caller.client.add(number, 1000) == number + 1000
            else:
                value = np.arange(number * 50, dtype=np.float64)
                back = await caller.client.array(value)
                assert back.dtype == value.dtype and (back == value).all()
            calls += 1
        return calls

    return _done(sum(await asyncio.gather(*(some() for _ in range(_TASKS)))))


async def stream(caller: Caller) -> Result:
    """Read a short stream to its end, leave endless ones early and call afterwards, and read two at a time."""
    count = caller.client.count
    assert [item async for item in count(0)] == []
    assert [item async for item in count(20_000)] == list(range(20_000))
    for most in (1, 10_000):
        seen, feed = 0, count(1 << 40)
        async for item in feed:
            assert item == seen
            seen += 1
            if seen == most:
                break
        await feed.aclose()
        assert await caller.client.add(seen, 1) == seen + 1
    one, two = count(1 << 40), count(1 << 40)
    for i in range(1000):
        assert (await anext(one), await anext(two)) == (i, i)
    await one.aclose()
    assert await anext(two) == 1000
    await two.aclose()
    assert await caller.client.add(1, 2) == 3
    return _done(1)


async def hold_stream(caller: Caller) -> Result:
    """Begin a stream and read one item of it; the sender has time to use up its credit."""
    feed = caller.client.count(1 << 40)
    assert await anext(feed) == 0
    _held.append(feed)
    await asyncio.sleep(0.1)
    return _done(1)


async def leave_stream(caller: Caller) -> Result:
    """Leave the stream."""
    await _held.pop().aclose()
    assert await caller.client.add(1, 2) == 3
    return _done(1)


async def nothing(caller: Caller) -> Result:
    """Sleep, while no subject has a reason to use CPU."""
    await asyncio.sleep(0.25)
    return _done(1)


async def bulk(caller: Caller) -> Result:
    """Send messages, whose arrival the client checks itself, then make a call."""
    for size, messages in ((1, 500), (10_000, 100), (400_000, 20)):
        await caller.client.bulk(b"\3" * size, messages)
    if hasattr(caller.client, "add"):
        assert await caller.client.add(1, 2) == 3
    return _done(620)


def bulk_sync(caller: Caller) -> Result:
    for size, messages in ((1, 500), (10_000, 100), (400_000, 20)):
        caller.client.bulk(b"\3" * size, messages)
    if hasattr(caller.client, "add"):
        assert caller.client.add(1, 2) == 3
    return _done(620)


async def connections(caller: Caller) -> Result:
    """Open eight more connections and call over each; the first one still works when they are closed."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(caller.connect()) for _ in range(8)]
        for number, client in enumerate(clients):
            assert await client.add(number, 1) == number + 1
    assert await caller.client.add(1, 2) == 3
    return _done(8)


def connections_sync(caller: Caller) -> Result:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(caller.connect()) for _ in range(8)]
        for number, client in enumerate(clients):
            assert client.add(number, 1) == number + 1
    assert caller.client.add(1, 2) == 3
    return _done(8)


async def die(caller: Caller) -> Result:
    """End the client's process after a call."""
    await caller.client.add(1, 2)
    os._exit(3)


def die_sync(caller: Caller) -> Result:
    caller.client.add(1, 2)
    os._exit(3)


async def call_often(caller: Caller) -> Result:
    """Check many sums."""
    for i in range(_OFTEN):
        assert await caller.client.add(i, 2) == i + 2
    return _done(_OFTEN)


def call_often_sync(caller: Caller) -> Result:
    for i in range(_OFTEN):
        assert caller.client.add(i, 2) == i + 2
    return _done(_OFTEN)


async def counted(caller: Caller) -> Result:
    """Return the number of calls of all processes that the lock has protected so far."""
    return _done(caller.client.words[COUNT])


def counted_sync(caller: Caller) -> Result:
    return _done(caller.client.words[COUNT])
