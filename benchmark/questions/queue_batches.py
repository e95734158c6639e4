"""Items through a queue in batches of 100: a second, from the first put to when the last has been got and checked.

Small ints and bytes of 50, from one or three writing processes to one or three reading ones. ``least`` is what the
worst served process got of a fair share. Where a queue has no batches, as multiprocessing's, items go one by one;
``lists``: a list of them is an item. What has no queue for several readers, as sockets, deals batches out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import QUEUES, Ability

NAME: Final = "queue-batches"
TITLE: Final = "A queue, in batches"

BATCH: Final = 100
#: Bytes of an item by the name of its kind; 0: an int.
KINDS: Final = {"ints": 0, "50 bytes": 50}
#: Writers and readers.
SHAPES: Final = ((1, 1), (1, 3), (3, 1), (3, 3))
#: Of a turn's length: there are many lines, and each turn has processes to fork.
SHARE: Final = 0.4


def ask(run: Run) -> list[Row]:
    """Ask every queue."""
    return asked(run, NAME, BATCH, "queue")


def asked(run: Run, name: str, batch: int, ability: Ability) -> list[Row]:
    """Every shape and every kind of items."""
    subjects = [*(each for each in QUEUES if ability in each.abilities), *run.able(ability)]
    rows: list[Row] = []
    for case, kind, (writers, readers) in cases():
        line = Line(name, case, "rate", "/s", higher_is_better=True)
        given: dict[str, Any] = {"writers": writers, "readers": readers, "batch": batch, "size": KINDS[kind]}
        rows += run.line(line, subjects, "rate", module="queue_loads", seconds=run.form.seconds * SHARE, **given)
    return rows


def cases() -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the name of each case, and of what it consists."""
    for kind in KINDS:
        for shape in SHAPES:
            yield f"{kind}, {shape[0]} to {shape[1]}", kind, shape
