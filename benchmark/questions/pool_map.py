"""Many tasks that do nothing, mapped over two workers, without tuning unless a subject's name mentions it."""

from __future__ import annotations

from typing import Any, Final

from benchmark.pool_loads import TASK
from benchmark.questions.pool_run import WORKERS
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import POOLS

NAME: Final = "pool-map"
TITLE: Final = "Many tasks of a pool, mapped"

#: Tasks for each second of a turn.
_COUNT: Final = 250_000


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    given: dict[str, Any] = {"workers": WORKERS, "count": int(_COUNT * run.form.seconds), "how": "map"}
    subjects = [*POOLS, *run.able("pool")]
    return run.line(Line(NAME, "", TASK, "µs"), subjects, "many", module="pool_loads", **given)
