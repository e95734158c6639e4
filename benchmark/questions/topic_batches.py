"""Messages of a topic in batches of 100: a second, from the first published to when each reader has checked the last.

Small ints and bytes of 50, from one publishing process to one and to three reading ones, of which each gets all. They
are counted once. What comes is compared with what was published, in order.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.questions.queue_batches import BATCH, KINDS, SHARE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import TOPICS

NAME: Final = "topic-batches"
TITLE: Final = "A topic, in batches"

#: Numbers of readers.
READERS: Final = (1, 3)


def ask(run: Run) -> list[Row]:
    """Ask every topic."""
    return asked(run, NAME, BATCH)


def asked(run: Run, name: str, batch: int) -> list[Row]:
    """Every kind of messages, to one and to three."""
    rows: list[Row] = []
    for kind, size in KINDS.items():
        for readers in READERS:
            line = Line(name, case(kind, readers), "rate", "/s", higher_is_better=True)
            given: dict[str, Any] = {"readers": readers, "batch": batch, "size": size}
            subjects = [*TOPICS, *run.able("topic")]
            rows += run.line(line, subjects, "rate", module="topic_loads", seconds=run.form.seconds * SHARE, **given)
    return rows


def case(kind: str, readers: int) -> str:
    """Return the case of messages of that kind to so many readers."""
    return f"{kind}, 1 to {readers}"
