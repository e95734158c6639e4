"""Four writing and four reading processes at one queue, in batches of 100 and one item at a time, beside one and one.

``least`` is what the worst served process got of a fair share, in the worst round.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.questions.queue_batches import BATCH, SHARE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES

NAME: Final = "queue-crowd"
TITLE: Final = "A queue of eight processes"

BATCHES, SINGLE = "batches", "one at a time"
SHAPES: Final = {"4 to 4": 4, "1 to 1": 1}


def ask(run: Run) -> list[Row]:
    """Ask every queue."""
    rows: list[Row] = []
    for case, batch in ((BATCHES, BATCH), (SINGLE, 1)):
        subjects = [*QUEUES, *run.able("queue" if batch > 1 else "queue, one")]
        for shape, side in SHAPES.items():
            line = Line(NAME, f"{case}, {shape}", "rate", "/s", higher_is_better=True)
            given: dict[str, Any] = {"writers": side, "readers": side, "batch": batch, "size": 0}
            rows += run.line(line, subjects, "rate", module="queue_loads", seconds=run.form.seconds * SHARE, **given)
    return rows
