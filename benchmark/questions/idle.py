"""CPU time and wake-ups of a server and of a client with 100 idle connections.

Each connection has been called over once. All subjects are watched at the same time, for 10 s in the full form, 5 s in
the usual and 1 s, with 20 connections, in the quick one. A wake-up is a thread that went to sleep again.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final

from benchmark.processes import cpu_of, descendants, switches_of
from benchmark.questions.connections import held
from benchmark.rows import Line, Role, Row
from benchmark.run import Pair, Run

NAME: Final = "idle"
TITLE: Final = "Idle connections"

#: Seconds after which what spins or tidies up after the last call has stopped.
SETTLE: Final = 0.5


@dataclasses.dataclass(frozen=True)
class Used:
    """The CPU time and the wake-ups of the threads of a process and of its descendants."""

    cpu_ms: float
    wake_ups: int

    @staticmethod
    def by(pid: int) -> Used:
        """Return the use of a process so far."""
        return Used(cpu_of(pid) * 1e3, sum(map(switches_of, (pid, *descendants(pid)))))


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have many connections."""
    line, subjects = Line(NAME, f"{run.form.connections} connections", "CPU ms/s", "ms/s"), run.able("connections")
    with run.pairs(subjects) as pairs, held(run, line, pairs, run.form.connections) as (holding, rows):
        time.sleep(SETTLE)
        run.progress(f"{line}: watching for {run.form.idle:g} s")
        before = {pair.subject.name: _used(pair) for pair in holding}
        start = time.monotonic()
        time.sleep(run.form.idle)
        for pair in holding:
            seconds = time.monotonic() - start
            rows.append(_row(line, pair, seconds, before[pair.subject.name], _used(pair)))
    return rows + run.notes(line, subjects)


def _used(pair: Pair) -> dict[str, Used]:
    return {name: Used.by(child.pid) for name, child in pair.sides().items()}


def _row(line: Line, pair: Pair, seconds: float, before: dict[str, Used], after: dict[str, Used]) -> Row:
    extra = {"seconds": seconds}
    for side, used in after.items():
        extra[f"{side} CPU ms"] = max(0.0, used.cpu_ms - before[side].cpu_ms)
        extra[f"{side} wake-ups"] = float(max(0, used.wake_ups - before[side].wake_ups))
    extra["CPU ms/s"] = sum(value for name, value in extra.items() if name.endswith("CPU ms")) / seconds
    role: Role = pair.subject.role
    return Row(line, pair.subject.name, role, [extra["CPU ms/s"]], extra=extra)
