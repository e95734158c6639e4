"""The same as queue-hand-over, from one publisher to one reader."""

from __future__ import annotations

from typing import Final

from benchmark.questions.queue_hand_over import ASLEEP as ASLEEP
from benchmark.questions.queue_hand_over import AWAKE as AWAKE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import TOPICS

NAME: Final = "topic-hand-over"
TITLE: Final = "A message from hand to hand"


def ask(run: Run) -> list[Row]:
    """Ask every topic."""
    subjects, rows = [*TOPICS, *run.able("topic")], list[Row]()
    for case in (AWAKE, ASLEEP):
        rows += run.line(Line(NAME, case), subjects, "hand_over", module="queue_loads", asleep=case == ASLEEP)
    return rows
