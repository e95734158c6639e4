"""From before an item is put to when its reader has it, one item at a time.

``awake``: the next one is put 5 µs after the last was got, so that the reader waits but may not sleep yet, if it spins.
``asleep``: after 2 ms of sleep.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES

NAME: Final = "queue-hand-over"
TITLE: Final = "An item from hand to hand"

AWAKE, ASLEEP = "awake", "asleep"


def ask(run: Run) -> list[Row]:
    """Ask every queue."""
    subjects, rows = [*QUEUES, *run.able("queue, one")], list[Row]()
    for case in (AWAKE, ASLEEP):
        rows += run.line(Line(NAME, case), subjects, "hand_over", module="queue_loads", asleep=case == ASLEEP)
    return rows
