"""Lateness of a 1 ms ticker beside a task of the same loop that calls without a pause, and may starve the loop.

The times are how late it is. A loop itself may be a millisecond late, by how it rounds the time of its timers.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.chosen import SOCKETS
from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "ticker"
TITLE: Final = "A ticker beside a task that calls"

#: Times the length of a turn: it ticks a thousand times a second at most.
_SHARE: Final = 2.5


def ask(run: Run) -> list[Row]:
    """Ask ours and the socket."""
    able = run.able("concurrent")
    subjects = [subject for subject in able if subject.role == "ours" or subject.family == SOCKETS]
    rows = run.line(Line(NAME, "", "p99"), subjects, "beside_a_ticker", seconds=run.form.seconds * _SHARE)
    for row in rows:
        # The calls are not what is timed here.
        row.calls_per_second = row.cpu = None
    return rows
