"""The targets of locks, semaphores, signals and memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from benchmark.questions import acquire, contention, shared_bytes, signals
from benchmark.questions.crowds import LEAST
from benchmark.verdict import RowIndex, Target

_PERMIT: Final = "shmrpc.sync.Semaphore"
_SIGNALS: Final = "shmrpc.sync.Signal"


def targets() -> Iterator[Target]:
    """Yield those for a free lock, signals, a lock that many want, and bytes."""
    for case, ours, most in (
        (acquire.THREADS, _PERMIT, 0.3),
        (acquire.LOOPS, "shmrpc.Semaphore, uvloop", 0.6),
        (acquire.LOOPS, "shmrpc.Semaphore, asyncio", 0.6),
    ):
        judge = functools.partial(_pair, case=case, ours=ours, most=most)
        yield Target(f"acquire and release what is free, {ours}", f"≤ {most} µs, ahead of all", judge)
    yield Target("a signal there and back, both busy", "≤ 2 µs", _busy)
    yield Target("a signal there and back, both asleep", "≤ 1.2 × the best", _asleep)
    yield Target("8 processes contend for a lock", "≥ 2 × the best, the least served ≥ 30 %", _contention)
    yield Target("bytes of shared memory, 1 KB to 1 MB", "≥ 90 % of memcpy", _bytes)


def _pair(found: RowIndex, case: str, ours: str, most: float) -> tuple[str, bool]:
    own, rival = found.value(acquire.NAME, case, ours), found.best_rival(acquire.NAME, case)
    return f"{own:.2f} µs, {rival / own:.1f} ×", own <= most and own < rival


def _busy(found: RowIndex) -> tuple[str, bool]:
    own = found.value(signals.NAME, signals.BUSY, _SIGNALS)
    return f"{own:.2f} µs", own <= 2


def _asleep(found: RowIndex) -> tuple[str, bool]:
    own, rival = found.value(signals.NAME, signals.ASLEEP, _SIGNALS), found.best_rival(signals.NAME, signals.ASLEEP)
    return f"{own:.1f} µs against {rival:.1f}, {own / rival:.2f} ×", own <= 1.2 * rival


def _contention(found: RowIndex) -> tuple[str, bool]:
    case, ours = found.case(contention.NAME), _PERMIT
    own, rival = found.value(contention.NAME, case, ours), found.best_rival(contention.NAME, case)
    least = found.extra(contention.NAME, case, ours, LEAST)
    text = f"{own:,.0f}/s, {own / rival:.1f} ×; the least served has {least:.0%} of a fair share"
    return text, own >= 2 * rival and least >= 0.3


def _bytes(found: RowIndex) -> tuple[str, bool]:
    cases = [f"{way}, {size}" for way in shared_bytes.WAYS for size in shared_bytes.SIZES]

    def share(case: str) -> float:
        own, floor = (found.value(shared_bytes.NAME, case, name) for name in ("shmrpc.memory", shared_bytes.FLOOR))
        return floor / own

    worst = min(cases, key=share)
    return f"{share(worst):.0%} at worst: {worst}", share(worst) >= 0.9
