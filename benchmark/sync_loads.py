"""Loads of a client without a loop: those of ``loads.py`` with functions that block."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from benchmark.durations import Durations
from benchmark.payloads import payload
from benchmark.processes import Caller
from benchmark.results import Result

_now = time.perf_counter_ns
#: Acquisitions of a free lock between two readings of the clock, and the least number of copied bytes.
BATCH: Final = 100
COPIED_AT_ONCE: Final = 100_000


def one_after_another(caller: Caller, *, seconds: float) -> Result:
    """Return the small call, again as soon as it is answered."""
    times: list[int] = []
    add, i = caller.client.add, 0
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        result = add(i, 2)
        after = _now()
        times.append(after - before)
        before = after
        i += 1
    assert result == i + 1
    return Result(i, (before - start) / 1e9, Durations.of(times))


def echo(caller: Caller, *, seconds: float, kind: str, size: int) -> Result:
    """Return a payload there and back, again as soon as it is there, three times at least."""
    value, call = payload(kind, size), caller.client.echo
    times: list[int] = []
    back = call(value)
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or len(times) < 3:
        back = call(value)
        after = _now()
        times.append(after - before)
        before = after
    assert len(back) == len(value)
    assert back == value
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


def sparse(caller: Caller, *, seconds: float, interval: float) -> Result:
    """Return the small call after each ``interval`` seconds of sleep, with cold caches."""
    times: list[int] = []
    add = caller.client.add
    start = _now()
    end = start + int(seconds * 1e9)
    while _now() < end or not times:
        time.sleep(interval)
        before = _now()
        add(1, 2)
        times.append(_now() - before)
    return Result(len(times), (_now() - start) / 1e9, Durations.of(times))


def in_batches(batch: Callable[[], None], count: int, seconds: float) -> Result:
    """Measure operations that are too short for the clock, ``count`` at once; each time is a batch's mean."""
    times: list[int] = []
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        batch()
        after = _now()
        times.append((after - before) // count)
        before = after
    return Result(len(times) * count, (before - start) / 1e9, Durations.of(times))


def acquire_and_release(caller: Caller, *, seconds: float) -> Result:
    """Acquire and release a lock without contention."""
    acquire, release = caller.client.lock.acquire, caller.client.lock.release

    def batch() -> None:
        for _ in range(BATCH):
            acquire()
            release()

    return in_batches(batch, BATCH, seconds)


def copies(caller: Caller, *, seconds: float, size: int, write: bool, read: bool, shared: bool) -> Result:
    """Write all bytes of a memory from private memory, read them into it, or both; ``shared``: the memory is shared."""
    source, target = memoryview(bytearray(b"\1" * size)), memoryview(bytearray(size))
    memory = caller.client(size) if shared else memoryview(bytearray(size))
    memory[:] = bytes(size) if write else source
    count = max(1, COPIED_AT_ONCE // size)

    def batch() -> None:
        for _ in range(count):
            if write:
                memory[:] = source
            if read:
                target[:] = memory

    result = in_batches(batch, count, seconds)
    assert memory == source
    assert not read or target == source
    return result


def bulk(caller: Caller, *, seconds: float, size: int, messages: int, **how: Any) -> Result:
    """So many messages of ``bytes`` one way, until the other side has looked at the last; again and again."""
    data, sent = b"\1" * size, 0
    start = time.perf_counter()
    while not sent or time.perf_counter() - start < seconds:
        caller.client.bulk(data, messages, **how)
        sent += messages
    elapsed = time.perf_counter() - start
    return Result(sent, elapsed, extra={"GB/s": sent * size / elapsed / 1e9})


def for_a_while(caller: Caller, *, seconds: float, start_at: float) -> Result:
    """Return the small calls that are answered in a time that begins for all clients at once, by CLOCK_MONOTONIC."""
    time.sleep(max(0.0, start_at - time.monotonic()))
    add, calls, end = caller.client.add, 0, start_at + seconds
    before = time.process_time()
    while True:
        add(calls, 2)
        if time.monotonic() > end:
            break
        calls += 1
    return Result(calls, seconds, cpu=time.process_time() - before)


def first_answer_connecting(caller: Caller, *, patience: float) -> Result:
    """From nothing to an answer, tried again until there is a server; says when that was, by CLOCK_MONOTONIC."""
    end = time.monotonic() + patience
    while True:
        with contextlib.suppress(Exception), caller.connect() as client:
            assert client.add(1, 2) == 3
            return Result(1, 0.0, extra={"answered at": time.monotonic()})
        if time.monotonic() > end:
            raise TimeoutError(f"no answer for {patience:g} s")
        time.sleep(0.001)


def one_more_connecting(caller: Caller, *, seconds: float) -> Result:
    """Connect, calls once and disconnects, again and again; the times are those until the answer."""
    times: list[int] = []
    start = _now()
    while not times or _now() < start + seconds * 1e9:
        before = _now()
        with caller.connect() as client:
            assert client.add(1, 2) == 3
            times.append(_now() - before)
    return Result(len(times), (_now() - start) / 1e9, Durations.of(times))


#: Connections of :func:`hold`.
_held: Final = contextlib.ExitStack()


def hold(caller: Caller, *, connections: int) -> Result:
    """Make more connections, call once over each, and keep them."""
    start = time.perf_counter()
    for _ in range(connections):
        client = _held.enter_context(caller.connect())
        assert client.add(1, 2) == 3
    return Result(connections, time.perf_counter() - start)


def let_go(_caller: Caller) -> Result:
    """End what :func:`hold` has connected."""
    _held.close()
    return Result(0, 0.0)
