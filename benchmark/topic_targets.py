"""The targets of topics."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from benchmark.questions import (
    topic_arrays,
    topic_batches,
    topic_hand_over,
    topic_readers,
    topic_single,
    topic_study,
)
from benchmark.questions.queue_batches import KINDS
from benchmark.subjects import STUDIED, TOPICS
from benchmark.verdict import RowIndex, Target

_SOCKET: Final = "UNIX socket, to all"
_LEAST, _MOST = topic_readers.READERS[0], topic_readers.READERS[-1]


def targets() -> Iterator[Target]:
    """Yield those for each question of topics."""
    for subject in TOPICS:
        for question, text, least in ((topic_single, "one at a time", 1e6), (topic_batches, "batches of 100", 6e6)):
            judge = functools.partial(_rate, question=question.NAME, least=least, ours=subject.name)
            yield Target(f"{text}, 1 to 3, {subject.name}", f"≥ {least:,.0f}/s, ahead of all rivals", judge)
        for how, what in ((topic_readers.BUSY, "CPU for a message"), (topic_readers.ASLEEP, "time for a batch")):
            judge = functools.partial(_flat, how=how, ours=subject.name)
            yield Target(f"a publisher's {what}, 8 readers, {subject.name}", "≤ 1.2 × that of 1", judge)
        judge = functools.partial(_awake, ours=subject.name)
        yield Target(f"a message from hand to hand, awake, p50, {subject.name}", "≤ 3 µs", judge)
        judge = functools.partial(_asleep, ours=subject.name)
        yield Target(f"a message from hand to hand, asleep, p50, {subject.name}", "≤ 1.2 × the socket", judge)
    yield Target("arrays of 400 KB, 1 to 3", "≥ iceoryx2", _arrays)
    yield Target("the study, 100 KB, 1 to 1", "≥ 2 × TCP and UNIX", functools.partial(_study, readers=1, tcp=2, unix=2))
    yield Target(
        "the study, 100 KB, 1 to 3", "≥ 5 × TCP, ≥ 3 × UNIX", functools.partial(_study, readers=3, tcp=5, unix=3)
    )
    yield Target("the study, 1 to 3, batches of 1,000 B", "within 2 × of 100,000", _small_batches)


def _rate(found: RowIndex, question: str, least: float, ours: str) -> tuple[str, bool]:
    cases = [topic_batches.case(kind, 3) for kind in KINDS]
    lowest = min(found.value(question, case, ours) for case in cases)
    ratio = min(found.value(question, case, ours) / found.best_rival(question, case) for case in cases)
    return f"{lowest:,.0f}/s at least, {ratio:.2f} × the best rival", lowest >= least and ratio > 1


def _flat(found: RowIndex, how: str, ours: str) -> tuple[str, bool]:
    one, many = (found.value(topic_readers.NAME, topic_readers.case(how, readers), ours) for readers in (_LEAST, _MOST))
    return f"{many:.2f} µs against {one:.2f}, {many / one:.2f} ×", many <= 1.2 * one


def _awake(found: RowIndex, ours: str) -> tuple[str, bool]:
    own = found.value(topic_hand_over.NAME, topic_hand_over.AWAKE, ours)
    best = found.best_rival(topic_hand_over.NAME, topic_hand_over.AWAKE)
    return f"{own:.2f} µs, the best rival {best:.1f}", own <= 3


def _asleep(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(topic_hand_over.NAME, topic_hand_over.ASLEEP, name) for name in (ours, _SOCKET))
    return f"{own:.1f} µs against {peer:.1f}, {own / peer:.2f} ×", own <= 1.2 * peer


def _arrays(found: RowIndex) -> tuple[str, bool]:
    own, rival = (
        found.value(topic_arrays.NAME, topic_arrays.CASE, name) for name in (TOPICS[0].name, "iceoryx2, to all")
    )
    return f"{own:.1f} GB/s, {own / rival:.2f} ×", own >= rival


def _ours(found: RowIndex, size: int, readers: int) -> float:
    return max(found.value(topic_study.NAME, topic_study.case(size, readers), each.name) for each in STUDIED)


def _study(found: RowIndex, readers: int, tcp: float, unix: float) -> tuple[str, bool]:
    size = topic_study.SIZES[-1]
    own, case = _ours(found, size, readers), topic_study.case(size, readers)
    by_tcp = own / max(found.value(topic_study.NAME, case, name) for name in ("TCP", "TCP, epoll"))
    by_unix = own / found.value(topic_study.NAME, case, "UNIX socket")
    return f"{own:,.0f}/s, {by_tcp:.1f} × TCP, {by_unix:.1f} × UNIX", by_tcp >= tcp and by_unix >= unix


def _small_batches(found: RowIndex) -> tuple[str, bool]:
    small, large = (_ours(found, size, 3) for size in (topic_study.SIZES[0], topic_study.SIZES[-1]))
    return f"{small:,.0f}/s against {large:,.0f}, {large / small:.1f} ×", large <= 2 * small
