"""Arrays of 400 KB to three readers: each is filled with a number, and each reader sums it up and compares.

They are counted once. Ours, iceoryx2's and pyzmq's are read where they lie, those of sockets are received into an array
of the reader's.
"""

from __future__ import annotations

from typing import Final

from benchmark.queue_work import TO_ALL
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import TOPICS

NAME: Final = "topic-arrays"
TITLE: Final = "Arrays to all readers of a topic"

CASE: Final = "1 to 3"


def ask(run: Run) -> list[Row]:
    """Ask every topic that has arrays."""
    line = Line(NAME, CASE, "GB/s", "GB/s", higher_is_better=True)
    subjects = [*(each for each in TOPICS if "topic, arrays" in each.abilities), *run.able("topic, arrays")]
    return run.line(line, subjects, "arrays", module="queue_loads", how=TO_ALL, readers=3)
