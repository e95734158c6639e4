"""CPU time of client and server together for a small call, of calls one after another and with 64 in flight.

A subject that spins for an answer pays for it here: it keeps two CPUs busy for as long as a call takes.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "cpu"
TITLE: Final = "CPU time of a call"

_TASKS: Final = 64
#: Of a turn's length: the calls are those of two other questions.
_SHARE: Final = 0.5


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call, and every one that can have several calls under way."""
    seconds = run.form.seconds * _SHARE
    rows = run.line(Line(NAME, "one after another", "cpu"), run.able("call"), "one_after_another", seconds=seconds)
    line = Line(NAME, f"{_TASKS} in flight", "cpu")
    return rows + run.line(line, run.able("concurrent"), "in_flight", seconds=seconds, tasks=_TASKS)
