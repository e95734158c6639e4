"""One of two workers is killed: until another one in its place has run a task.

A pool that is broken then is made anew, as its user would.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.pool_run import WORKERS
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import POOLS

NAME: Final = "pool-replacement"
TITLE: Final = "A worker of a pool that is killed"


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    subjects = [*POOLS, *run.able("pool")]
    return run.line(Line(NAME, "", "ms", "ms"), subjects, "replacement", module="pool_loads", workers=WORKERS)
