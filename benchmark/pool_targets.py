"""The targets of pools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

from benchmark.fractal_loads import TICKER, TRANSPORT
from benchmark.pool_loads import COPIES
from benchmark.questions import (
    pool_broadcast,
    pool_fractals,
    pool_map,
    pool_mixed,
    pool_replacement,
    pool_run,
    pool_study,
    pool_submit,
)
from benchmark.subjects import POOLS
from benchmark.verdict import NotAsked, RowIndex, Target

_EXECUTOR: Final = "ProcessPoolExecutor"
_TCP: Final = "TCP, pickle"
#: From how many ints on the study's tables are held against its own factor.
_LARGE: Final = 100_000


def targets() -> Iterator[Target]:
    """Yield those for each question of pools."""
    for subject in POOLS:
        ours = subject.name
        for what, target, judge in _OF_A_POOL:
            if judge is not _fractals or "fractals" in subject.abilities:
                yield Target(f"{what}, {ours}", target, functools.partial(judge, ours=ours))
    yield Target("an array by a pool, against a list by TCP and pickle", "≤ 0.1 × the time", _arrays)


def _run(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, call, executor = (found.value(pool_run.NAME, "", name) for name in (ours, pool_run.CALL, _EXECUTOR))
    text = f"{own:.2f} µs, {own / call:.2f} × a call, {executor / own:.0f} times as fast"
    return text, own <= 1.5 * call and executor >= 30 * own


def _submit(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, executor = (found.value(pool_submit.NAME, "", name) for name in (ours, _EXECUTOR))
    return f"{own:.2f} µs, {executor / own:.0f} times as fast", own <= 2 and executor >= 20 * own


def _map(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, joblib, whole = (
        found.value(pool_map.NAME, "", name) for name in (ours, "joblib", "multiprocessing.Pool, whole list")
    )
    text = f"{own:.2f} µs, {joblib / own:.0f} × joblib, {whole / own:.2f} × Pool with the whole list"
    return text, own <= 0.3 and joblib >= 10 * own and own <= whole


def _mixed(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, floor = (found.value(pool_mixed.NAME, "", name) for name in (ours, pool_mixed.FLOOR))
    best = found.best_rival(pool_mixed.NAME, "")
    return f"{own:.3f} × (processes alone {floor:.3f}, the best rival {best:.3f})", own <= 1.1


def _broadcast(found: RowIndex, ours: str) -> tuple[str, bool]:
    case = found.case(pool_broadcast.NAME)
    copies = found.extra(pool_broadcast.NAME, case, ours, COPIES)
    return f"{copies:.2f} copies of {case}, {found.value(pool_broadcast.NAME, case, ours):,.0f} ms", copies <= 1.1


def _replacement(found: RowIndex, ours: str) -> tuple[str, bool]:
    own = found.value(pool_replacement.NAME, "", ours)
    return f"{own:.1f} ms", own <= 50


def _fractals(found: RowIndex, ours: str) -> tuple[str, bool]:
    cpus = found.value(pool_fractals.NAME, "", ours)
    transport, ticker = (found.extra(pool_fractals.NAME, "", ours, name) for name in (TRANSPORT, TICKER))
    text = f"{cpus:.0%} of the CPUs paint, {transport:.2%} is transport, the ticker's p99 {ticker:.2f} ms"
    return text, cpus >= 0.9 and transport <= 0.01 and ticker < 2


def _arrays(found: RowIndex) -> tuple[str, bool]:
    factors: dict[int, float] = {}
    for size in (_LARGE, 10 * _LARGE):
        try:
            by_tcp = found.value(pool_study.NAME, f"table 7: {size:,} ints", _TCP)
            factors[size] = found.value(pool_study.NAME, f"table 10: array of {size:,}", POOLS[0].name) / by_tcp
        except NotAsked:
            continue
    if not factors:
        raise NotAsked(pool_study.NAME)
    text = ", ".join(f"{size:,}: {factor:.3f}" for size, factor in factors.items())
    return text, max(factors.values()) <= 0.1


#: Targets of each of our pools.
_OF_A_POOL: Final[tuple[tuple[str, str, Callable[..., tuple[str, bool]]], ...]] = (
    ("a task that does nothing, p50", "≤ 1.5 × a call, ≥ 30 × ProcessPoolExecutor", _run),
    ("many tasks, submitted one by one, each", "≤ 2 µs, ≥ 20 × ProcessPoolExecutor", _submit),
    ("many tasks, mapped, each", "≤ 0.3 µs, ≥ 10 × joblib, ≥ Pool with the whole list", _map),
    ("tasks of 1 µs to 10 ms", "≤ 1.1 × the ideal", _mixed),
    ("an array for four workers", "one copy", _broadcast),
    ("a killed worker to its replacement at work", "≤ 50 ms", _replacement),
    ("a pool that paints", "≥ 90 % of the CPUs, ≤ 1 % transport, ticker p99 < 2 ms", _fractals),
)
