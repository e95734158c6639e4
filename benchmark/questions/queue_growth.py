"""A queue of 50-byte items that grows while it is used: puts one at a time until 262,144 of them wait.

It begins empty, and a reader takes some all the time; afterwards it takes the others, and all of them are checked. The
times are those of the puts.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES

NAME: Final = "queue-growth"
TITLE: Final = "A queue that grows under load"

_ITEMS: Final = 262_144


def ask(run: Run) -> list[Row]:
    """Ask ours, in threads."""
    return run.line(Line(NAME, lead="p999"), QUEUES[:1], "growth", module="queue_loads", most=_ITEMS, size=50)
