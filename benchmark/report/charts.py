"""The charts of a run, as data."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmark.questions import queue_study, topic_study
from benchmark.report.figures import heading, number
from benchmark.report.standings import by_line
from benchmark.report.tables import title
from benchmark.rows import Role, Row

#: The most rivals of a picture with lines; the others are in the table.
_RIVALS: Final = 5
#: Where the axis of shares has its ticks: how many calls there are for each that takes longer.
_SHARES: Final = ((2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %"), (1e5, "99.999 %"))

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Series:
    """The points of one subject."""

    name: str
    role: Role
    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over two logarithmic axes."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    #: The ticks of the x axis with their texts; empty for round figures.
    ticks: tuple[tuple[float, str], ...]
    #: True for measured points, which get marks; False for points of a curve.
    marks: bool = True
    #: Number of rivals, and forms of them, without room.
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Bars:
    """A figure of each subject, the best first, over a logarithmic axis."""

    title: str
    label: str
    bars: tuple[tuple[str, Role, float], ...]


def latency(rows: Iterable[Row]) -> list[Chart]:
    """For each line of small calls the share of them that took no longer than a time."""
    made = []
    for line, own in by_line(rows).items():
        series = [Series(row.subject, row.role, _shares(row.steps)) for row in own if len(row.steps) > 1]
        if line.question in ("small", "sparse", "open-loop") and series:
            kept = _kept(series, _median)
            widest = max(x for each in kept for x, _ in each.points)
            ticks = tuple(tick for tick in _SHARES if tick[0] <= widest)
            text = title(line.question) + (f": {line.case}" if line.case else "")
            left_out = _left_out(series, kept)
            made.append(Chart(text, "share of the calls", "took no longer than, µs", kept, ticks, False, left_out))
    return made


def _shares(steps: Sequence[Point]) -> tuple[Point, ...]:
    points = [(1 / (1 - share), time) for time, share in steps if share < 1]
    # The longest has nothing behind it: it stands above the one before.
    return (*points, (points[-1][0] if points else 1.0, steps[-1][0]))


def sizes(rows: Iterable[Row]) -> list[Chart]:
    """Return the leading figure over the size of what is sent."""
    return _over(rows, {"payload-bytes": "bytes there and back", "payload-ints": "ints there and back"})


def scaling(rows: Iterable[Row]) -> list[Chart]:
    """Return the leading figure over how many call at once."""
    return _over(rows, {"in-flight": "tasks that call at once", "many-clients": "client processes"})


def study(rows: Iterable[Row]) -> list[Chart]:
    """Of the study of queues: items a second over their size, and over how many read."""
    known = {(row.line.case, row.subject): row for row in rows if row.line.question == queue_study.NAME and row.value}

    def curve(name: str, points: Iterable[tuple[int, str, str]]) -> Series:
        found = ((x, known[case, subject].value or 0.0) for x, case, subject in points if (case, subject) in known)
        return Series(name, "ours", tuple((float(x), y) for x, y in found))

    batches = [queue_study.batches(count) for count in queue_study.BATCHES]
    sides = range(1, queue_study.MOST + 1)
    by_size = [
        curve(name, ((size, queue_study.case(size, 1, 1), name) for size in queue_study.SIZES)) for name in batches
    ]
    size, name = queue_study.SIZES[1], queue_study.batches(100)
    by_readers = [
        curve(f"{writers} writing", ((readers, queue_study.case(size, writers, readers), name) for readers in sides))
        for writers in sides
    ]
    made = []
    for text, label, series in (
        ("1 to 1", "bytes of an item", by_size),
        (f"{size} bytes, {name}", "reading processes", by_readers),
    ):
        kept = tuple(each for each in series if len(each.points) > 1)
        if kept:
            ticks = tuple((x, f"{x:,.0f}") for x in sorted({x for each in kept for x, _ in each.points}))
            made.append(Chart(f"{title(queue_study.NAME)}: {text}", label, "items/s", kept, ticks))
    return made


def experiment(rows: Iterable[Row]) -> list[Chart]:
    """Of the study of topics: objects a second over the bytes of a batch, of all that take part."""
    known = [row for row in rows if row.line.question == topic_study.NAME and row.value]
    made = []
    for readers in topic_study.READERS:
        sizes = {topic_study.case(size, readers): float(size) for size in topic_study.SIZES}
        found: dict[tuple[str, Role], list[Point]] = {}
        for row in known:
            if row.line.case in sizes:
                found.setdefault((row.subject, row.role), []).append((sizes[row.line.case], row.value or 0.0))
        series = tuple(Series(name, role, tuple(points)) for (name, role), points in found.items() if len(points) > 1)
        if series:
            text = f"{title(topic_study.NAME)}: 1 to {readers}"
            made.append(Chart(text, "bytes of a batch", "objects/s", series, ()))
    return made


def _over(rows: Iterable[Row], questions: dict[str, str]) -> list[Chart]:
    known = list(rows)
    made = []
    for question, label in questions.items():
        found: dict[tuple[str, Role], list[Point]] = {}
        own = [row for row in known if row.line.question == question and row.value and row.value > 0]
        for row in own:
            place = number(row.line.case)
            if place:
                found.setdefault((row.subject, row.role), []).append((place, row.value or 0.0))
        if len({x for points in found.values() for x, _ in points}) < 2:
            continue  # Over one place there is no line.
        series = [Series(name, role, tuple(sorted(points))) for (name, role), points in found.items()]
        line = own[0].line
        kept = _kept(series, _distance(series, line.higher_is_better))
        ticks = tuple((x, f"{x:,.0f}") for x in sorted({x for each in kept for x, _ in each.points}))
        left_out = _left_out(series, kept)
        made.append(Chart(title(question), label, heading(line), kept, ticks, left_out=left_out))
    return made


def small_calls(rows: Iterable[Row]) -> list[Bars]:
    """Return the cost of a small call for every subject."""
    made = []
    for line, own in by_line(rows).items():
        measured = [(row.subject, row.role, row.value) for row in own if row.value and row.value > 0]
        if line.question == "small" and measured:
            measured.sort(key=lambda each: each[2], reverse=line.higher_is_better)
            text = title(line.question) + (f": {line.case}" if line.case else "")
            made.append(Bars(text, heading(line), tuple(measured)))
    return made


def _kept(series: Sequence[Series], rank: Callable[[Series], float]) -> tuple[Series, ...]:
    """Ours, the floors, and the best of the rivals: those of the lowest ranks, of each the best form."""
    forms: dict[str, Series] = {}
    for each in sorted((each for each in series if each.role == "rival"), key=rank):
        forms.setdefault(each.name.partition(",")[0], each)
    rivals = list(forms.values())[:_RIVALS]
    return tuple(each for each in series if each.role in ("ours", "floor") or each in rivals)


def _median(series: Series) -> float:
    """Return the time that half of the calls do not exceed."""
    return next((y for x, y in series.points if x >= 2), series.points[-1][1])


def _distance(series: Sequence[Series], higher_is_better: bool) -> Callable[[Series], float]:
    """Return a function for the mean distance of a subject from the best one over all its points, as a ratio."""
    best: dict[float, float] = {}
    for each in series:
        for x, y in each.points:
            best[x] = (max if higher_is_better else min)(best.get(x, y), y)

    def distance(each: Series) -> float:
        return statistics.geometric_mean(best[x] / y if higher_is_better else y / best[x] for x, y in each.points)

    return distance


def _left_out(series: Sequence[Series], kept: Sequence[Series]) -> int:
    return sum(each.role == "rival" for each in series) - sum(each.role == "rival" for each in kept)
