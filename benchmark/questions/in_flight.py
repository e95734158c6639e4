"""``add(i, 2)`` from many tasks of one client at once: what a connection carries."""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "in-flight"
TITLE: Final = "Many calls in flight"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have several calls under way."""
    rows = []
    for tasks in run.form.in_flight:
        line = Line(NAME, f"{tasks}", "rate", "/s", higher_is_better=True)
        rows += run.line(line, run.able("concurrent"), "in_flight", tasks=tasks)
    return rows
