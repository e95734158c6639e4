"""The work of processes at the ends of a queue, and the loads that order it.

Each piece of work stands here twice, for processes without a loop and, with ``_in_loop``, for those that have one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmark.durations import Durations
from benchmark.processes import Caller
from benchmark.queue_crew import Crew, Duty
from benchmark.queue_work import ELEMENTS, LAST, End, Ledger, Part, Stock, Way, check
from benchmark.results import Result
from benchmark.sharing import words
from shmrpc import QueueShutDown

#: Returns seconds of CPU time.
Clock = Callable[[], float]

_now = time.perf_counter_ns
#: Items that are put one at a time between two looks at the clock.
_UNWATCHED: Final = 50
#: Seconds of sleep before an item that shall find its reader asleep, and those in which one gets back to waiting.
_ASLEEP: Final = 0.002
_BACK: Final = 5e-6
#: Seconds that the reader of a queue that grows lets pass between two looks.
_PAUSE: Final = 0.001
#: The words of a hand-over: what was put last, and how many items were got; and whether a queue has grown.
_PUT, _GOT, _GROWN = range(3)


@dataclasses.dataclass
class Done:
    """The work of a process: its begin and end by a clock that all share, and its CPU time."""

    start: int
    end: int
    cpu: float
    #: Batches that were put, or how many items of each batch were got.
    batches: int = 0
    seen: list[int] = dataclasses.field(default_factory=list)
    times: list[int] = dataclasses.field(default_factory=list)

    @property
    def items(self) -> int:
        """The number of received items."""
        return sum(self.seen)


class Watch:
    """Takes the time of a process."""

    def __init__(self, cpu: Clock = time.process_time) -> None:
        self._cpu = cpu
        self.start, self._used = _now(), cpu()

    def done(self, **more: Any) -> Done:
        """Return the work so far."""
        return Done(self.start, _now(), self._cpu() - self._used, **more)


# Items for a while, by any number of writers, to any number of readers.


def _put_for(end: End, stock: Stock, number: int, seconds: float, cpu: Clock = time.process_time) -> Done:
    put, put_many, single = end.put, end.put_many, stock.batch == 1
    batches, count = stock.batches(number), 0
    watch = Watch(cpu)
    until = watch.start + int(seconds * 1e9)
    for batch in itertools.cycle(batches):
        if single:
            put(batch[0])
        else:
            put_many(batch)
        count += 1
        if (not single or count % _UNWATCHED == 0) and _now() > until:
            break
    return watch.done(batches=count)


def put_all(duty: Duty, *, stock: Stock, seconds: float) -> None:
    """Put as many items as possible in ``seconds``."""
    duty.begin()
    duty.tell(_put_for(duty.end, stock, duty.part.number, seconds))
    duty.end.end()
    duty.tell("ended")


async def put_all_in_loop(duty: Duty, *, stock: Stock, seconds: float) -> None:
    """Put as many items as possible in ``seconds``, in a loop."""
    put, put_many, single = duty.end.put, duty.end.put_many, stock.batch == 1
    batches, count = stock.batches(duty.part.number), 0
    await asyncio.to_thread(duty.begin)
    watch = Watch()
    end = watch.start + int(seconds * 1e9)
    for batch in itertools.cycle(batches):
        if single:
            await put(batch[0])
        else:
            await put_many(batch)
        count += 1
        if (not single or count % _UNWATCHED == 0) and _now() > end:
            break
    await asyncio.to_thread(duty.tell, watch.done(batches=count))
    duty.end.end()
    await asyncio.to_thread(duty.tell, "ended")


def _get_all(end: End, stock: Stock, cpu: Clock = time.process_time) -> Done:
    ledger, get, get_many = Ledger(stock), end.get, end.get_many
    note, seen, places, batch = ledger.note, ledger.seen, stock.places, stock.batch
    watch, over = Watch(cpu), False
    with contextlib.suppress(QueueShutDown):
        while not over:
            try:
                while batch > 1:
                    note(get_many(batch))
                while True:
                    seen[places[get()]] += 1
            except KeyError as other:
                over = end.is_over(other.args[0])
    return watch.done(seen=seen)


def _get(duty: Duty, *, stock: Stock) -> Done:
    duty.begin()
    return _get_all(duty.end, stock)


async def _get_in_loop(duty: Duty, *, stock: Stock) -> Done:
    ledger, get, get_many = Ledger(stock), duty.end.get, duty.end.get_many
    note, seen, places, batch = ledger.note, ledger.seen, stock.places, stock.batch
    await asyncio.to_thread(duty.begin)
    watch, over = Watch(), False
    with contextlib.suppress(QueueShutDown):
        while not over:
            try:
                while batch > 1:
                    note(await get_many(batch))
                while True:
                    seen[places[await get()]] += 1
            except KeyError as other:
                over = duty.end.is_over(other.args[0])
    return watch.done(seen=seen)


def rate(
    caller: Caller, *, seconds: float, writers: int, readers: int, batch: int, size: int, raw: bool = False
) -> Result:
    """Items from the first put to when the last one has been got and looked at, each of them once.

    ``batch`` 1: one at a time. ``least`` is what the worst served process got of a fair share.
    """
    way: Way = caller.client
    blocks, stock = way.loop == "none", Stock(writers, batch, size)

    def part(side: Any, number: int) -> Part:
        return Part(side, number, writers, readers, raw=raw)

    with Crew() as crew:
        # Readers first: some must be there before a writer can put.
        getting = crew.add(
            way, [part("get", number) for number in range(readers)], _get if blocks else _get_in_loop, stock=stock
        )
        putting = crew.add(
            way,
            [part("put", number) for number in range(writers)],
            put_all if blocks else put_all_in_loop,
            stock=stock,
            seconds=seconds,
        )
        crew.begin()
        put: list[Done] = crew.hear(putting, seconds)
        crew.end(putting)
        got: list[Done] = crew.hear(getting, 0.0)
        crew.part()
    return _together(stock, put, got)


def _together(stock: Stock, put: list[Done], got: list[Done]) -> Result:
    check(stock, [each.batches for each in put], [each.seen for each in got])
    took = max(each.end for each in got) - min(each.start for each in put)
    shares = [_least([each.batches for each in put]), _least([each.items for each in got])]
    return Result(
        sum(each.items for each in got),
        took / 1e9,
        cpu=sum(each.cpu for each in (*put, *got)),
        extra={"least": min(shares)},
    )


def _least(counts: list[int]) -> float:
    """Return the smallest count relative to the mean."""
    return min(counts) * len(counts) / (sum(counts) or 1)


# One item at a time, from hand to hand.


def _hand(duty: Duty, *, seconds: float, asleep: bool) -> None:
    put = duty.end.put
    with words(duty.place) as shared:
        duty.begin()
        watch = Watch()
        for number in itertools.count(1):
            if asleep:
                time.sleep(_ASLEEP)
            else:
                _spin(_BACK)
            shared[_PUT] = stamp = _now()
            put(stamp)
            while shared[_GOT] < number:
                os.sched_yield()
            if stamp > watch.start + seconds * 1e9:
                break
        duty.tell(watch.done(batches=number))
        duty.end.end()
        duty.tell("ended")


async def _hand_in_loop(duty: Duty, *, seconds: float, asleep: bool) -> None:
    put = duty.end.put
    with words(duty.place) as shared:
        await asyncio.to_thread(duty.begin)
        watch = Watch()
        for number in itertools.count(1):
            if asleep:
                await asyncio.sleep(_ASLEEP)
            else:
                _spin(_BACK)
            shared[_PUT] = stamp = _now()
            await put(stamp)
            while shared[_GOT] < number:
                await asyncio.sleep(0)
            if stamp > watch.start + seconds * 1e9:
                break
        await asyncio.to_thread(duty.tell, watch.done(batches=number))
        duty.end.end()
        await asyncio.to_thread(duty.tell, "ended")


def _spin(seconds: float) -> None:
    end = _now() + int(seconds * 1e9)
    while _now() < end:
        pass


def _take(duty: Duty) -> Done:
    get, times = duty.end.get, list[int]()
    with words(duty.place) as shared:
        duty.begin()
        watch, over = Watch(), False
        with contextlib.suppress(QueueShutDown):
            while not over:
                stamp = get()
                after = _now()
                over = _taken(duty, shared, times, stamp, after)
    return watch.done(times=times)


async def _take_in_loop(duty: Duty) -> Done:
    get, times = duty.end.get, list[int]()
    with words(duty.place) as shared:
        await asyncio.to_thread(duty.begin)
        watch, over = Watch(), False
        with contextlib.suppress(QueueShutDown):
            while not over:
                stamp = await get()
                after = _now()
                over = _taken(duty, shared, times, stamp, after)
    return watch.done(times=times)


def _taken(duty: Duty, shared: memoryview, times: list[int], stamp: int, after: int) -> bool:
    """Record how long it took; whether it was no item but the end."""
    if stamp != shared[_PUT]:
        return duty.end.is_over(stamp)
    times.append(after - stamp)
    shared[_GOT] = len(times)
    return False


def hand_over(caller: Caller, *, seconds: float, asleep: bool) -> Result:
    """From before an item is put to when its reader has it, an item at a time; the reader waits, or has slept."""
    way: Way = caller.client
    blocks = way.loop == "none"
    with words(way.place) as shared:
        shared[_PUT], shared[_GOT] = 0, 0
    with Crew() as crew:
        getting = crew.add(way, [Part("get", 0, 1, 1)], _take if blocks else _take_in_loop)
        hand = _hand if blocks else _hand_in_loop
        putting = crew.add(way, [Part("put", 0, 1, 1)], hand, seconds=seconds, asleep=asleep)
        crew.begin()
        return _one_way(crew, putting, getting, seconds)


def _one_way(crew: Crew, putting: list[Any], getting: list[Any], seconds: float) -> Result:
    """Return the result of one writer, and of readers that have received everything and measured the times."""
    (put,) = crew.hear(putting, seconds)
    crew.end(putting)
    got: list[Done] = crew.hear(getting, 0.0)
    crew.part()
    for each in got:
        if len(each.times) != put.batches:
            raise ValueError(f"{put.batches} items were put, {len(each.times)} came")
    took, times = max(each.end for each in got) - put.start, itertools.chain.from_iterable(each.times for each in got)
    return Result(put.batches, took / 1e9, Durations.of(list(times)), cpu=put.cpu + sum(each.cpu for each in got))


# Arrays, of which both sides touch every element.


def _put_arrays(duty: Duty, *, seconds: float, how: str) -> None:
    put, _ = duty.end.arrays[how]()
    duty.begin()
    watch = Watch()
    for number in itertools.count():
        put(number)
        if _now() > watch.start + seconds * 1e9:
            break
    duty.tell(watch.done(batches=number + 1))
    put(LAST)
    duty.tell("ended")


def _get_arrays(duty: Duty, *, how: str) -> Done:
    _, get = duty.end.arrays[how]()
    times: list[int] = []
    duty.begin()
    watch = Watch()
    before = watch.start
    for number in itertools.count():
        total = get()
        if total == LAST * ELEMENTS:
            break
        if total != number * ELEMENTS:
            raise ValueError(f"array {number} has a sum of {total}")
        after = _now()
        times.append(after - before)
        before = after
    return watch.done(times=times)


def arrays(caller: Caller, *, seconds: float, how: str, readers: int = 1) -> Result:
    """Arrays one way, filled by one side and summed up by the other; of several readers each gets all of them."""
    import numpy  # noqa: F401 - imported here once, and not by each process that is forked

    way: Way = caller.client
    with Crew() as crew:
        parts = [Part("get", number, 1, readers, most=16) for number in range(readers)]
        getting = crew.add(way, parts, _get_arrays, how=how)
        putting = crew.add(way, [Part("put", 0, 1, readers, most=16)], _put_arrays, seconds=seconds, how=how)
        crew.begin()
        result = _one_way(crew, putting, getting, seconds)
    result.extra = {"GB/s": result.calls * ELEMENTS * 8 / result.seconds / 1e9}
    return result


# A queue that grows while it is used.


def _fill(duty: Duty, *, stock: Stock, most: int) -> None:
    put, size, times = duty.end.put, duty.end.size, list[int]()
    items = itertools.cycle(itertools.chain.from_iterable(stock.batches(duty.part.number)))
    with words(duty.place) as shared:
        duty.begin()
        watch = Watch()
        before = watch.start
        for number, item in enumerate(items, 1):
            put(item)
            after = _now()
            times.append(after - before)
            before = after
            if number % _UNWATCHED == 0:
                if size() >= most:
                    break
                before = _now()
        shared[_GROWN] = 1
    duty.tell(watch.done(batches=number, times=times))
    duty.end.end()
    duty.tell("ended")


def _nibble(duty: Duty, *, stock: Stock) -> Done:
    """Get few items until the queue has grown, and then all."""
    get_many, ledger = duty.end.get_many, Ledger(stock)
    with words(duty.place) as shared:
        duty.begin()
        watch = Watch()
        with contextlib.suppress(QueueShutDown):
            while True:
                ledger.note(get_many(_UNWATCHED))
                if not shared[_GROWN]:
                    time.sleep(_PAUSE)
    return watch.done(seen=ledger.seen)


def growth(caller: Caller, *, seconds: float, most: int, size: int) -> Result:
    """Put until ``most`` items wait, of which a reader takes some meanwhile, whatever ``seconds`` that takes."""
    way: Way = caller.client
    stock = Stock(1, 1, size)
    with words(way.place) as shared:
        shared[_GROWN] = 0
    with Crew() as crew:
        getting = crew.add(way, [Part("get", 0, 1, 1, most=0)], _nibble, stock=stock)
        putting = crew.add(way, [Part("put", 0, 1, 1, most=0)], _fill, stock=stock, most=most)
        crew.begin()
        (put,) = crew.hear(putting, seconds)
        crew.end(putting)
        (got,) = crew.hear(getting, 0.0)
        crew.part()
    check(stock, [put.batches], [got.seen])
    took = (put.end - put.start) / 1e9
    return Result(put.batches, took, Durations.of(put.times), cpu=put.cpu + got.cpu)


# Threads of two processes, which share a handle or have one each.


def _in_threads(duty: Duty, way: Way, work: Callable[[End, int], Done], threads: int, one_handle: bool) -> list[Done]:
    """Return the work of each thread, once all have ended."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        others: Any = () if one_handle else (stack.enter_context(way.open(duty.part)) for _ in range(threads))  # type: ignore[arg-type]
        ends = list(others) or [duty.end] * threads
        duty.begin()
        return list(pool.map(work, ends, range(threads)))


def _put_in_threads(duty: Duty, *, way: Way, stock: Stock, seconds: float, threads: int, one_handle: bool) -> None:
    def work(end: End, number: int) -> Done:
        return _put_for(end, stock, number, seconds, time.thread_time)

    duty.tell(_in_threads(duty, way, work, threads, one_handle))
    duty.end.end()
    duty.tell("ended")


def _get_in_threads(duty: Duty, *, way: Way, stock: Stock, threads: int, one_handle: bool) -> list[Done]:
    def work(end: End, _: int) -> Done:
        return _get_all(end, stock, time.thread_time)

    return _in_threads(duty, way, work, threads, one_handle)


def rate_of_threads(caller: Caller, *, seconds: float, threads: int, one_handle: bool, batch: int, size: int) -> Result:
    """Measure the rate as :func:`rate` does, with writing threads in one process and reading threads in another."""
    way: Way = caller.client
    stock, given = Stock(threads, batch, size), {"way": way, "threads": threads, "one_handle": one_handle}
    with Crew() as crew:
        getting = crew.add(way, [Part("get", 0, 1, 1)], _get_in_threads, stock=stock, **given)
        putting = crew.add(way, [Part("put", 0, 1, 1)], _put_in_threads, stock=stock, seconds=seconds, **given)
        crew.begin()
        (put,) = crew.hear(putting, seconds)
        crew.end(putting)
        (got,) = crew.hear(getting, 0.0)
        crew.part()
    return _together(stock, put, got)


# Members that wait.

_waiting: Final = contextlib.ExitStack()


def _wait(duty: Duty) -> None:
    duty.begin()
    duty.end.get()


async def _wait_in_loop(duty: Duty) -> None:
    await asyncio.to_thread(duty.begin)
    await duty.end.get()


def wait(caller: Caller, *, members: int) -> Result:
    """So many processes begin to wait for an item, and go on to."""
    way: Way = caller.client
    crew = _waiting.enter_context(Crew())
    work: Callable[..., Any] = _wait if way.loop == "none" else _wait_in_loop
    crew.add(way, [Part("get", number, 0, members) for number in range(members)], work)
    crew.begin()
    return Result(members, 1.0)


def let_go(_caller: Caller) -> Result:
    """End them."""
    _waiting.close()
    return Result(0, 0.0)
