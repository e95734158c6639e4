"""The same as queue-batches, with items that are put and got one at a time."""

from __future__ import annotations

from typing import Final

from benchmark.questions.queue_batches import asked
from benchmark.rows import Row
from benchmark.run import Run

NAME: Final = "queue-single"
TITLE: Final = "A queue, one item at a time"


def ask(run: Run) -> list[Row]:
    """Ask every queue."""
    return asked(run, NAME, 1, "queue, one")
