"""``add(1, 2)`` at a fixed rate, whether the calls before are answered or not, as many users together would call.

A time counts from when the call was due and not from when it was sent: if a side stalls, every call that was due
meanwhile shows it, and none is left out because the one before it was late (coordinated omission). The client spins
until each moment. Subjects are compared by p50: p99 is shown too, but in turns as short as these it tells how often the
machine took the CPU away, which differs more from run to run than the subjects do. A subject that answers less than 95
per cent of the rate gets a note instead of a time: its calls would be later the longer one measured.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "open-loop"
TITLE: Final = "Calls at a fixed rate"

_KEPT_UP: Final = 0.95


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have several calls under way."""
    rows = []
    for rate in run.form.rates:
        line = Line(NAME, f"{rate:,} a second")
        rows += [_judged(row, rate) for row in run.line(line, run.able("concurrent"), "open_loop", rate=rate)]
    return rows


def _judged(row: Row, rate: int) -> Row:
    """Return the row, without figures if they mean nothing."""
    kept_up = row.extra.pop("kept up", 1.0)
    if kept_up >= _KEPT_UP:
        return row
    note = f"cannot keep up with {rate:,} calls a second: {kept_up * rate:,.0f}"
    return dataclasses.replace(Row(row.line, row.subject, row.role), note=note)
