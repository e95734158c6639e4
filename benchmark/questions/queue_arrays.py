"""Arrays of 400 KB through a queue: one side fills each with a number, the other sums it up and compares.

``copied``: the reader has an array of its own; ``in place``: it is filled and read where it lies in shared memory. At
most 16 wait, where a queue counts items.
"""

from __future__ import annotations

from typing import Final

from benchmark.queue_work import COPIED, IN_PLACE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES, Ability

NAME: Final = "queue-arrays"
TITLE: Final = "Arrays through a queue"

_WAYS: Final[dict[str, Ability]] = {COPIED: "queue, copied", IN_PLACE: "queue, in place"}


def ask(run: Run) -> list[Row]:
    """Ask every queue that has arrays."""
    rows: list[Row] = []
    for how, ability in _WAYS.items():
        line = Line(NAME, how, "GB/s", "GB/s", higher_is_better=True)
        subjects = [*(each for each in QUEUES if ability in each.abilities), *run.able(ability)]
        rows += run.line(line, subjects, "arrays", module="queue_loads", how=how)
    return rows
