"""Cost of messages of 50 bytes for their publisher with one to eight readers, in batches of 100.

``busy``: it publishes without pause, and the leading figure is its CPU time for a message: on two CPUs it waits for its
readers most of the time. ``asleep``: a batch each 2 ms, for which all readers sleep; it is the time to publish a batch.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.questions.queue_batches import BATCH, KINDS, SHARE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import TOPICS
from benchmark.topic_loads import COST

NAME: Final = "topic-readers"
TITLE: Final = "What readers of a topic cost its publisher"

BUSY, ASLEEP = "busy", "asleep"
READERS: Final = (1, 2, 4, 8)


def ask(run: Run) -> list[Row]:
    """Ask every topic."""
    rows: list[Row] = []
    for how in (BUSY, ASLEEP):
        for readers in READERS:
            line = Line(NAME, case(how, readers), COST if how == BUSY else "p50", "µs")
            given: dict[str, Any] = {
                "readers": readers,
                "batch": BATCH,
                "size": KINDS["50 bytes"],
                "slowly": how != BUSY,
            }
            subjects = [*TOPICS, *run.able("topic")]
            rows += run.line(line, subjects, "rate", module="topic_loads", seconds=run.form.seconds * SHARE, **given)
    return rows


def case(how: str, readers: int) -> str:
    """Return the case of so many readers."""
    return f"{how}, {readers} reading"
