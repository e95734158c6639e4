"""The targets of queues."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Final

from benchmark.questions import (
    queue_arrays,
    queue_batches,
    queue_crowd,
    queue_growth,
    queue_hand_over,
    queue_idle,
    queue_single,
)
from benchmark.questions.crowds import LEAST
from benchmark.queue_work import COPIED, IN_PLACE
from benchmark.subjects import QUEUES
from benchmark.verdict import NotAsked, NotMeasured, RowIndex, Target

_THREADS: Final = QUEUES[0].name
#: Queues of the standard library.
_PYTHONS: Final = ("multiprocessing.Queue", "multiprocessing.SimpleQueue")
_SOCKET: Final = "socket, dealing, uvloop"


def targets() -> Iterator[Target]:
    """Yield those for each question of queues."""
    for subject in QUEUES:
        ours = subject.name
        judge = functools.partial(_batches, ours=ours)
        yield Target(f"batches of 100, every shape, {ours}", "≥ 6,000,000/s, ≥ 20 × the best of Python's", judge)
        judge = functools.partial(_single, ours=ours)
        yield Target(f"one at a time, every shape, {ours}", "≥ 1,000,000/s, ≥ 3 × the best", judge)
        yield Target(f"an item from hand to hand, awake, p50, {ours}", "≤ 3 µs", functools.partial(_awake, ours=ours))
        judge = functools.partial(_asleep, ours=ours)
        yield Target(f"an item from hand to hand, asleep, p50, {ours}", "≤ 1.2 × the socket", judge)
    yield Target("arrays of 400 KB, copied", "≥ 2 × faster-fifo", _copied)
    yield Target("arrays of 400 KB, in place", "≥ iceoryx2", _in_place)
    for case in (queue_crowd.BATCHES, queue_crowd.SINGLE):
        judge = functools.partial(_crowd, case=case)
        yield Target(f"8 processes, {case}", "≥ 50 % of the best shape, the least served ≥ 30 %", judge)
    yield Target("a queue that grows to 262,144 items", "p99.9 of a put ≤ 5 ms", _growth)
    for subject in QUEUES:
        yield Target(
            f"100 processes wait, {subject.name}", "0 wake-ups, 0 CPU", functools.partial(_idle, ours=subject.name)
        )


def _python(found: RowIndex, case: str) -> float:
    return max(found.value(queue_batches.NAME, case, name) for name in _PYTHONS)


def _batches(found: RowIndex, ours: str) -> tuple[str, bool]:
    def own(case: str) -> float:
        return found.value(queue_batches.NAME, case, ours)

    cases = [case for case, _, _ in queue_batches.cases()]
    least = min(cases, key=own)
    closest = min(cases, key=lambda case: own(case) / _python(found, case))
    ratio = own(closest) / _python(found, closest)
    text = f"{own(least):,.0f}/s at least ({least}), {ratio:.0f} × at least ({closest})"
    with_lists = _at_least(found, queue_batches.NAME, own, [f"{name}, lists" for name in _PYTHONS])
    return f"{text}; {with_lists:.1f} × where those put lists", own(least) >= 6e6 and ratio >= 20


def _at_least(found: RowIndex, question: str, own: Callable[[str], float], rivals: list[str]) -> float:
    """Return the smallest ratio of ours to the best of these rivals."""
    cases = [case for case, _, _ in queue_batches.cases()]
    return min(own(case) / max(found.value(question, case, name) for name in rivals) for case in cases)


def _single(found: RowIndex, ours: str) -> tuple[str, bool]:
    def own(case: str) -> float:
        return found.value(queue_single.NAME, case, ours)

    cases = [case for case, _, _ in queue_batches.cases()]
    least = min(cases, key=own)
    closest = min(cases, key=lambda case: own(case) / found.best_rival(queue_single.NAME, case))
    ratio = own(closest) / found.best_rival(queue_single.NAME, closest)
    text = f"{own(least):,.0f}/s at least ({least}), {ratio:.1f} × at least ({closest})"
    return text, own(least) >= 1e6 and ratio >= 3


def _awake(found: RowIndex, ours: str) -> tuple[str, bool]:
    row = found.row(queue_hand_over.NAME, queue_hand_over.AWAKE, ours)
    best = found.best_rival(queue_hand_over.NAME, queue_hand_over.AWAKE)
    own = row.value or 0.0
    return f"{own:.2f} µs (p99 {row.p99 or 0.0:.1f}), the best rival {best:.1f}", own <= 3


def _asleep(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(queue_hand_over.NAME, queue_hand_over.ASLEEP, name) for name in (ours, _SOCKET))
    return f"{own:.1f} µs against {peer:.1f}, {own / peer:.2f} ×", own <= 1.2 * peer


def _copied(found: RowIndex) -> tuple[str, bool]:
    own, rival = (found.value(queue_arrays.NAME, COPIED, name) for name in (_THREADS, "faster-fifo, queue"))
    return f"{own:.1f} GB/s, {own / rival:.1f} ×", own >= 2 * rival


def _in_place(found: RowIndex) -> tuple[str, bool]:
    own, rival = (found.value(queue_arrays.NAME, IN_PLACE, name) for name in (_THREADS, "iceoryx2, samples"))
    return f"{own:.1f} GB/s, {own / rival:.2f} ×", own >= rival


def _crowd(found: RowIndex, case: str) -> tuple[str, bool]:
    crowd, pair = (f"{case}, {shape}" for shape in queue_crowd.SHAPES)
    own, alone = (found.value(queue_crowd.NAME, each, _THREADS) for each in (crowd, pair))
    least = found.extra(queue_crowd.NAME, crowd, _THREADS, LEAST)
    best = max([alone, own, *_shapes(found, case)])
    text = f"{own:,.0f}/s, {own / best:.0%}; the least served has {least:.0%} of a fair share"
    return text, own >= 0.5 * best and least >= 0.3


def _shapes(found: RowIndex, case: str) -> Iterator[float]:
    """Yield the rates of the other shapes, if they were asked."""
    question = queue_batches.NAME if case == queue_crowd.BATCHES else queue_single.NAME
    for name, kind, _ in queue_batches.cases():
        if kind == "ints":
            with contextlib.suppress(NotAsked, NotMeasured):
                yield found.value(question, name, _THREADS)


def _growth(found: RowIndex) -> tuple[str, bool]:
    own = found.value(queue_growth.NAME, "", _THREADS)
    return f"{own / 1e3:.2f} ms, no item lost", own <= 5_000


def _idle(found: RowIndex, ours: str) -> tuple[str, bool]:
    case = found.case(queue_idle.NAME)
    cpu, wakes, seconds = (
        found.extra(queue_idle.NAME, case, ours, name) for name in (queue_idle.CPU, queue_idle.WAKE_UPS, "seconds")
    )
    return f"{cpu:.2f} ms, {wakes:.0f} wake-ups in {seconds:.0f} s", cpu == 0 and wakes == 0
