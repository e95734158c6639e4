"""Many tasks that do nothing, handed to two workers one by one: how long a task takes until all results are there."""

from __future__ import annotations

from typing import Any, Final

from benchmark.pool_loads import TASK
from benchmark.questions.pool_run import WORKERS
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import POOLS

NAME: Final = "pool-submit"
TITLE: Final = "Many tasks of a pool, one by one"

#: Tasks for each second of a turn.
_COUNT: Final = 20_000


def ask(run: Run) -> list[Row]:
    """Ask every pool that takes tasks one by one."""
    given: dict[str, Any] = {"workers": WORKERS, "count": int(_COUNT * run.form.seconds), "how": "submit"}
    subjects = [*POOLS, *run.able("pool, submit")]
    return run.line(Line(NAME, "", TASK, "µs"), subjects, "many", module="pool_loads", **given)
