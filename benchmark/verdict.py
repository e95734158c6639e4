"""A verdict on a target, and the figures that it stands on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmark.rows import Row


@dataclasses.dataclass
class Verdict:
    """One line of the table of targets."""

    what: str
    target: str
    measured: str
    #: None if it was not measured.
    met: bool | None


class Found:
    """The rows by question and subject."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.question, row.subject): row for row in rows}

    def p50(self, question: str, subject: str) -> float:
        """The median time, in microseconds."""
        return self._rows[question, subject].p50 or 0.0

    def p99(self, question: str, subject: str) -> float:
        """The time that 99 of 100 calls stay below, in microseconds."""
        return self._rows[question, subject].p99 or 0.0

    def rate(self, question: str, subject: str) -> float:
        """Calls a second."""
        return self._rows[question, subject].calls_per_second or 0.0

    def extra(self, question: str, subject: str, name: str) -> float:
        """What did not fit into the columns."""
        return self._rows[question, subject].extra[name]

    def note(self, question: str, subject: str) -> str:
        """Why there are no figures; empty if there are."""
        return self._rows[question, subject].note
