"""The work of readers of a topic, and the loads of topics: one publishes, and each reader checks every message.

Those that publish do as those that write into a queue, and so do hands and arrays: see :mod:`benchmark.queue_loads`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, Final

from benchmark.durations import Durations
from benchmark.processes import Caller
from benchmark.queue_crew import Crew, Duty
from benchmark.queue_loads import Done, Watch, put_all, put_all_in_loop
from benchmark.queue_work import OVER, Follower, Part, Stock, Way
from benchmark.results import Result

#: Seconds of sleep between two batches that are published at a slow pace, so that all readers sleep again.
_PAUSE: Final = 0.002
#: The name of the extra figure for the publisher's CPU time of a message.
COST: Final = "publisher CPU, µs"

_now = time.perf_counter_ns


def _over(item: Any, count: int) -> int:
    """Return the number of messages before the end. Raises ValueError for another object."""
    if item != OVER:
        raise ValueError(f"message {count} is another")
    return count


def _read(duty: Duty, *, stock: Stock) -> tuple[Done, int]:
    get, get_many, batch, follower, count = duty.end.get, duty.end.get_many, stock.batch, Follower(stock), 0
    duty.begin()
    watch = Watch()
    if batch == 1:
        for expected in itertools.cycle(stock.items):
            if (item := get()) != expected:
                break
            count += 1
        return watch.done(), _over(item, count)
    try:
        while True:
            follower.note(get_many(batch))
    except KeyError as other:
        return watch.done(), _over(other.args[0], follower.count)


async def _read_in_loop(duty: Duty, *, stock: Stock) -> tuple[Done, int]:
    get, get_many, batch, follower, count = duty.end.get, duty.end.get_many, stock.batch, Follower(stock), 0
    await asyncio.to_thread(duty.begin)
    watch = Watch()
    if batch == 1:
        for expected in itertools.cycle(stock.items):
            if (item := await get()) != expected:
                break
            count += 1
        return watch.done(), _over(item, count)
    try:
        while True:
            follower.note(await get_many(batch))
    except KeyError as other:
        return watch.done(), _over(other.args[0], follower.count)


def _publish_slowly(duty: Duty, *, stock: Stock, seconds: float) -> None:
    put_many, batches, times, cpu = duty.end.put_many, itertools.cycle(stock.batches(0)), list[int](), 0
    duty.begin()
    watch = Watch()
    while not times or _now() < watch.start + seconds * 1e9:
        time.sleep(_PAUSE)
        batch, used = next(batches), time.thread_time_ns()
        before = _now()
        put_many(batch)
        times.append(_now() - before)
        cpu += time.thread_time_ns() - used
    done = watch.done(batches=len(times), times=times)
    done.cpu = cpu / 1e9  # Sleeping is no part of it.
    duty.tell(done)
    duty.end.end()
    duty.tell("ended")


async def _publish_slowly_in_loop(duty: Duty, *, stock: Stock, seconds: float) -> None:
    put_many, batches, times, cpu = duty.end.put_many, itertools.cycle(stock.batches(0)), list[int](), 0
    await asyncio.to_thread(duty.begin)
    watch = Watch()
    while not times or _now() < watch.start + seconds * 1e9:
        await asyncio.sleep(_PAUSE)
        batch, used = next(batches), time.thread_time_ns()
        before = _now()
        await put_many(batch)
        times.append(_now() - before)
        cpu += time.thread_time_ns() - used
    done = watch.done(batches=len(times), times=times)
    done.cpu = cpu / 1e9
    await asyncio.to_thread(duty.tell, done)
    duty.end.end()
    await asyncio.to_thread(duty.tell, "ended")


def rate(caller: Caller, *, seconds: float, readers: int, batch: int, size: int, slowly: bool = False) -> Result:
    """Messages from the first that is published to when each reader has got and looked at the last one.

    They are counted once, whatever the number of readers. ``batch`` 1: one at a time. ``slowly``: a batch each 2 ms;
    the times are those of publishing one.
    """
    way: Way = caller.client
    stock, blocks = Stock(1, batch, size), way.loop == "none"
    if slowly:
        publish: Any = _publish_slowly if blocks else _publish_slowly_in_loop
    else:
        publish = put_all if blocks else put_all_in_loop
    with Crew() as crew:
        # Readers first: they get what is published from now on.
        parts = [Part("get", number, 1, readers) for number in range(readers)]
        reading = crew.add(way, parts, _read if blocks else _read_in_loop, stock=stock)
        publishing = crew.add(way, [Part("put", 0, 1, readers)], publish, stock=stock, seconds=seconds)
        crew.begin()
        (put,) = crew.hear(publishing, seconds)
        crew.end(publishing)
        read: list[tuple[Done, int]] = crew.hear(reading, 0.0)
        crew.part()
    messages = put.batches * batch
    for _, count in read:
        if count != messages:
            raise ValueError(f"{messages} messages were published, and a reader has got {count}")
    took = max(done.end for done, _ in read) - put.start
    return Result(
        messages,
        took / 1e9,
        Durations.of(put.times) if put.times else None,
        cpu=put.cpu + sum(done.cpu for done, _ in read),
        extra={COST: put.cpu / messages * 1e6},
    )
