"""A published experiment: objects of 50 bytes from one process to one and to three, by the bytes of a batch.

Each object is numbered, and each reader checks the number of each. Ours, a message for each batch, beside sockets and
the variants of the study, which are ``benchmark/study.c``: packets of 8 KB in a ring under a mutex, an adaptive and a
robust one, and one packet without a lock. It is asked only by name, or by ``python -m benchmark study``.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.queue_batches import SHARE
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import STUDIED

NAME: Final = "topic-study"
TITLE: Final = "A study of topics"

#: Bytes of a batch.
SIZES: Final = (1_000, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000)
READERS: Final = (1, 3)


def ask(run: Run) -> list[Row]:
    """Ask ours and every variant."""
    rows: list[Row] = []
    subjects = [*STUDIED, *run.able("study")]
    for readers in READERS:
        for size in SIZES:
            line = Line(NAME, case(size, readers), "rate", "/s", higher_is_better=True)
            seconds = run.form.seconds * SHARE
            rows += run.line(line, subjects, "rate", module="study_work", seconds=seconds, readers=readers, size=size)
    return rows


def case(size: int, readers: int) -> str:
    """Return the case of batches of so many bytes to so many readers."""
    return f"{size:,} B, 1 to {readers}"
