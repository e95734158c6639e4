"""Loads of a client of pools. Every result is checked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from benchmark.command_tasks import TASKS, check
from benchmark.durations import Durations
from benchmark.pool_tasks import keep, pid_after, same, spin
from benchmark.pool_work import Pools, Team, of
from benchmark.processes import Caller, pss_of
from benchmark.results import Result

_fork: Final = multiprocessing.get_context("fork")
#: Calls between two looks at the clock that ends a turn.
_CALLS: Final = 32
#: The shortest and the longest of tasks that are mixed, in seconds.
_QUICK, _LONG = 1e-6, 10e-3
#: Length of a task of a worker that must be distinguishable from the others, in seconds.
_PAUSE: Final = 1e-3
#: The longest time without a replacement for a killed worker, in seconds.
_MISSED: Final = 10.0
#: The leading figures that stand among the extras.
TASK, IDEAL, COPIES = "a task, µs", "times the ideal", "copies"

_now = time.perf_counter_ns


def _do(caller: Caller, workers: int, load: Callable[[Team], Any]) -> Result:
    pools: Pools = caller.client
    result: Result = pools.do(workers, load)
    return result


def run(caller: Caller, *, seconds: float, workers: int, task: str = "", size: int = 0) -> Result:
    """Return one task after the other: one that gives what it is given, or one of :mod:`benchmark.command_tasks`."""
    function, given = (TASKS[task], size) if task else (same, 1)

    async def load(team: Team) -> Result:
        once, stamps = team.run, [0]
        result = once(function, given)
        waits = result is not (result := await of(result))
        if task:
            check(task, size, result)
        elif result != given:
            raise ValueError(f"{given} was given, and {result!r} came back")
        del result
        start = stamps[0] = _now()
        end = start + int(seconds * 1e9)
        while stamps[-1] < end:
            for _ in range(1 if task else _CALLS):
                if waits:
                    await once(function, given)
                else:
                    once(function, given)
                stamps.append(_now())
        times = [after - before for before, after in pairwise(stamps)]
        return Result(len(times), (stamps[-1] - start) / 1e9, Durations.of(times))

    return _do(caller, workers, load)


def many(caller: Caller, *, seconds: float, workers: int, count: int, how: str) -> Result:
    """Tasks that do nothing, handed in one by one, or mapped."""
    items = list(range(count))

    async def load(team: Team) -> Result:
        start = _now()
        results = await of(team.submit(same, items) if how == "submit" else team.map(same, items))
        took = _now() - start
        if results != items:
            raise ValueError(f"{count} tasks gave {len(results)} results, or others than theirs")
        return Result(count, took / 1e9, extra={TASK: took / count / 1e3})

    return _do(caller, workers, load)


def durations(total: float) -> list[float]:
    """Seconds that tasks take, from the quickest to the longest, about as much together."""
    mean = (_LONG - _QUICK) / 9.21  # Between each two there is the same factor: the logarithm of 10,000.
    count = max(50, int(total / mean))
    return [_QUICK * (_LONG / _QUICK) ** (number / (count - 1)) for number in range(count)]


def mixed(caller: Caller, *, seconds: float, workers: int, total: float) -> Result:
    """Tasks from 1 µs to 10 ms of CPU time, the quick ones first, mapped: how many times the ideal they take."""
    items = durations(total * workers)

    async def load(team: Team) -> Result:
        await of(team.map(same, items))  # So that the workers are there.
        start = _now()
        results = await of(team.map(spin, items))
        took = (_now() - start) / 1e9
        if len(results) != len(items):
            raise ValueError(f"{len(items)} tasks gave {len(results)} results")
        return Result(len(items), took, extra={IDEAL: took * workers / sum(items)})

    return _do(caller, workers, load)


def alone(caller: Caller, *, seconds: float, workers: int, total: float) -> Result:
    """Return the same tasks in as many processes, which have their share from the beginning."""
    items = durations(total * workers)

    def work(share: list[float]) -> None:
        for item in share:
            spin(item)

    processes = [_fork.Process(target=work, args=(items[number::workers],)) for number in range(workers)]
    start = _now()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    took = (_now() - start) / 1e9
    return Result(len(items), took, extra={IDEAL: took * workers / sum(items)})


def broadcast(caller: Caller, *, seconds: float, workers: int, size: int) -> Result:
    """Return an array for all workers, until each has read all of it; how many copies of it there are then."""
    import numpy as np  # Only arrays need it.

    async def load(team: Team) -> Result:
        await _kept_by_all(team, workers, np.ones(8))  # Let the workers import what arrays need.
        before = pss_of(os.getpid())
        array = np.full(size // 8, 2.0)
        start = _now()
        shared = await of(team.share(array))
        found = dict(await of(team.map(keep, [shared] * workers)))
        took = (_now() - start) / 1e9
        found |= await _kept_by_all(team, workers, shared, found)
        if {*found.values()} != {2.0 * len(array)}:
            raise ValueError(f"the array's sum is {2.0 * len(array)}, and workers have found {found.values()}")
        del array
        copies = (pss_of(os.getpid()) - before) / size
        return Result(1, took, extra={"ms": took * 1e3, COPIES: copies})

    return _do(caller, workers, load)


async def _kept_by_all(team: Team, workers: int, shared: Any, found: Mapping[int, float] | None = None) -> Any:
    """Has all workers keep it; what each has found. ``found``: those that do so already."""
    known = dict(found or {})
    until = time.monotonic() + _MISSED
    while len(known) < workers and time.monotonic() < until:  # One may have had two of the tasks.
        await _all(team, workers)
        known |= dict(await of(team.map(keep, [shared] * workers)))
    if len(known) != workers:
        raise ValueError(f"{len(known)} of {workers} workers have read it")
    return known


async def _all(team: Team, workers: int) -> set[int]:
    """Return the workers, once they all work."""
    pids: set[int] = set()
    until = time.monotonic() + _MISSED
    while len(pids) < workers and time.monotonic() < until:
        pids |= {*await of(team.map(pid_after, [10 * _PAUSE] * workers))}
    if len(pids) != workers:
        raise ValueError(f"{len(pids)} of {workers} workers have done something")
    return pids


def replacement(caller: Caller, *, seconds: float, workers: int) -> Result:
    """Kills a worker that has nothing to do, until another one has run a task in its place."""

    async def load(team: Team) -> Result:
        pids = await _all(team, workers)
        start = _now()
        os.kill(min(pids), signal.SIGKILL)
        until = start + int(_MISSED * 1e9)
        while _now() < until:
            try:
                found = {*await of(team.map(pid_after, [_PAUSE] * workers))}
            except Exception:  # The pool is broken, or a task was in doubt.
                if (renew := getattr(team, "renew", None)) is not None:
                    renew()
                continue
            if found - pids:
                took = _now() - start
                return Result(1, took / 1e9, extra={"ms": took / 1e6})
        raise ValueError(f"no other worker was there after {_MISSED:g} s")

    return _do(caller, workers, load)
