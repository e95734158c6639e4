"""The same as topic-batches, with messages that are published and got one at a time."""

from __future__ import annotations

from typing import Final

from benchmark.questions.topic_batches import asked
from benchmark.rows import Row
from benchmark.run import Run

NAME: Final = "topic-single"
TITLE: Final = "A topic, one message at a time"


def ask(run: Run) -> list[Row]:
    """Ask every topic."""
    return asked(run, NAME, 1)
