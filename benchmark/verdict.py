"""A verdict on a target, and the figures that it stands on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from benchmark.rows import Row


@dataclasses.dataclass
class Verdict:
    """One line of the table of targets."""

    what: str
    target: str
    measured: str
    #: None if it was not measured.
    met: bool | None


class NotAsked(Exception):
    """There is no such row: its question, or this case of it, was not asked, or not of this subject."""


class NotMeasured(Exception):
    """There is a row, but it has no figures; says why."""


class RowIndex:
    """The rows by question, case and subject."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.line.question, row.line.case, row.subject): row for row in rows}

    def row(self, question: str, case: str, subject: str) -> Row:
        """Return a row that has figures."""
        row = self._rows.get((question, case, subject))
        if row is None:
            raise NotAsked(question, case, subject)
        if row.value is None:
            raise NotMeasured(f"{subject}: {row.note}")
        return row

    def value(self, question: str, case: str, subject: str) -> float:
        """Return the figure that leads its line."""
        value = self.row(question, case, subject).value
        assert value is not None
        return value

    def best_rival(self, question: str, case: str) -> float:
        """Return the figure of the best rival in a line. Raises as :meth:`row` does if no rival has one."""
        rivals = [row for key, row in self._rows.items() if key[:2] == (question, case) and row.role == "rival"]
        if not rivals:
            raise NotAsked(question, case)
        measured = [row for row in rivals if row.value is not None]
        if not measured:
            raise NotMeasured("; ".join(f"{row.subject}: {row.note}" for row in rivals))
        best = functools.reduce(lambda one, other: other if other.beats(one) else one, measured)
        assert best.value is not None
        return best.value

    def extra(self, question: str, case: str, subject: str, name: str) -> float:
        """Return a figure that stands among the extras."""
        return self.row(question, case, subject).extra[name]

    def case(self, question: str) -> str:
        """Return the case of a question that has only one, whose name tells how much was done."""
        for asked, case, _ in self._rows:
            if asked == question:
                return case
        raise NotAsked(question)


@dataclasses.dataclass(frozen=True)
class Target:
    """A target; ``judge`` returns the measured value, and whether that is enough."""

    what: str
    target: str
    judge: Callable[[RowIndex], tuple[str, bool]]

    def verdict(self, found: RowIndex) -> Verdict | None:
        """Return the verdict; None if it was not asked."""
        try:
            measured, met = self.judge(found)
        except NotAsked:
            return None
        except NotMeasured as reason:
            return Verdict(self.what, self.target, str(reason), None)
        return Verdict(self.what, self.target, measured, met)
