"""CPU time and wake-ups of 100 processes that wait for a queue, all together.

All subjects are watched at the same time, for 10 s in the full form, 5 s in the usual and 1 s, with 20 processes, in
the quick one. A wake-up is a thread that went to sleep again.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from benchmark.processes import Failed
from benchmark.questions.idle import SETTLE, Used
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES

NAME: Final = "queue-idle"
TITLE: Final = "A queue that many wait for"

WAKE_UPS, CPU = "wake-ups", "CPU ms"


def ask(run: Run) -> list[Row]:
    """Ask ours, and the rivals that wait without looking again and again."""
    members = run.form.connections
    line = Line(NAME, f"{members} processes", "CPU ms/s", "ms/s")
    subjects = [*QUEUES, *(each for each in run.able("queue, one") if not each.restless)]
    rows: list[Row] = []
    with run.pairs(subjects) as pairs, contextlib.ExitStack() as stack:
        waiting = []
        for pair in pairs:
            try:
                pair.do("benchmark.queue_loads:wait", members=members)
            except Failed as error:
                rows.append(Row(line, pair.subject.name, pair.subject.role, note=f"failed: {error}"))
                run.part(pair.subject.name)
            else:
                waiting.append(pair)
                stack.callback(pair.do, "benchmark.queue_loads:let_go")
        time.sleep(SETTLE)
        run.progress(f"{line}: watching for {run.form.idle:g} s")
        before = [Used.by(pair.client.pid) for pair in waiting]
        start = time.monotonic()
        time.sleep(run.form.idle)
        for pair, first in zip(waiting, before, strict=True):
            used, seconds = Used.by(pair.client.pid), time.monotonic() - start
            cpu = max(0.0, used.cpu_ms - first.cpu_ms)
            extra = {"seconds": seconds, CPU: cpu, WAKE_UPS: float(max(0, used.wake_ups - first.wake_ups))}
            rows.append(Row(line, pair.subject.name, pair.subject.role, [cpu / seconds], extra=extra))
    return rows + run.notes(line, subjects)
