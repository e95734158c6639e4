"""Which subject is first in each line, how far ahead, and how far above what the machine itself takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from benchmark.rows import Line, Role, Row

#: ``alone``: there is nothing to compare it with.
Standing = Literal["won", "even", "lost", "alone"]

#: The question whose rows are the floors of the others.
FLOORS: Final = "floors"
#: The subject that is the floor of lines without a floor of their own. Other lines have none:
#: calls that overlap, or that follow a sleep, have little to do with a word there and back.
_FLOOR_OF: Final = {
    ("options", "a call"): "ping-pong of a word",
    ("threads", "small"): "ping-pong of a word",
    ("threads", "record"): "codec, record",
    ("arrays", ""): "ping-pong of a word",
}
#: One round has no interval: then it takes so much to be ahead.
_ONE_ROUND: Final = 0.1


class Floors:
    """The floors of a run."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[Line, list[Row]] = {}
        for row in rows:
            if row.role == "floor" and row.value and row.value > 0:
                self._rows.setdefault(row.line, []).append(row)

    def of(self, line: Line) -> Row | None:
        """Return the floor of a line. Of several the highest counts: nothing can be better than any of them."""
        if line.question == FLOORS:
            return None
        own = self._rows.get(line)
        if own:
            return functools.reduce(lambda one, other: one if other.beats(one) else other, own)
        case = _FLOOR_OF.get((line.question, line.case))
        # Only the same can be divided.
        shared = self._rows.get(dataclasses.replace(line, question=FLOORS, case=case)) if case else None
        return best(shared, "floor") if shared else None

    def times(self, row: Row) -> float | None:
        """Return the ratio of a row to its floor."""
        floor = self.of(row.line)
        return ratio_of(floor, row) if floor is not None and row.role in ("ours", "rival") else None


@dataclasses.dataclass(frozen=True)
class LineStanding:
    """Where our best stands in a line."""

    line: Line
    ours: Row | None
    rival: Row | None
    floor: Row | None
    standing: Standing
    #: Ratio to the best rival; below one: worse. None: unknown.
    ratio: float | None
    #: Ratio to the floor.
    floors: float | None


def best(rows: Iterable[Row], role: Role) -> Row | None:
    """Return the one of a role that has the best leading figure."""
    found: Row | None = None
    for row in rows:
        if row.role == role and row.value is not None and (found is None or row.beats(found)):
            found = row
    return found


def ratio_of(row: Row, other: Row) -> float | None:
    """Return the ratio of two rows; None if a figure is zero, or even negative, as memory can be."""
    return row.times_better(other) if min(row.value or 0.0, other.value or 0.0) > 0 else None


def by_line(rows: Iterable[Row]) -> dict[Line, list[Row]]:
    """Return the rows of each line, in the order in which they were asked."""
    made: dict[Line, list[Row]] = {}
    for row in rows:
        made.setdefault(row.line, []).append(row)
    return made


def standings(rows: Sequence[Row]) -> list[LineStanding]:
    """Return the standing of every line, without the floors themselves."""
    floors = Floors(rows)
    made = []
    for line, own in by_line(rows).items():
        if line.question == FLOORS:
            continue
        ours, rival = best(own, "ours"), best(own, "rival")
        standing: Standing = "alone"
        ratio = None
        if ours is not None and rival is not None:
            standing = _standing(ours, rival)
            ratio = ratio_of(ours, rival)
        above = floors.times(ours) if ours is not None else None
        made.append(LineStanding(line, ours, rival, floors.of(line), standing, ratio, above))
    return made


def _standing(ours: Row, rival: Row) -> Standing:
    (low, high), (rivals_low, rivals_high) = _spread(ours), _spread(rival)
    if low <= rivals_high and rivals_low <= high:
        return "even"
    return "won" if ours.beats(rival) else "lost"


def _spread(row: Row) -> tuple[float, float]:
    assert row.interval is not None
    low, high = row.interval
    if len(row.rounds) == 1:
        # Two of them overlap if they are no further from each other than that share.
        margin = abs(low) * _ONE_ROUND / 2
        return low - margin, high + margin
    return low, high
