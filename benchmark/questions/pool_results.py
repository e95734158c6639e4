"""A task of a pool that gives ints: in an array, and in a list."""

from __future__ import annotations

from typing import Any, Final

from benchmark.questions.pool_run import WORKERS
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import POOLS

NAME: Final = "pool-results"
TITLE: Final = "A task of a pool, by what it gives"

#: The kinds of results, by the names of tasks and of lines.
KINDS: Final = {"array": "an array of", "ints": "a list of"}


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    rows: list[Row] = []
    for task in KINDS:
        for size in run.form.sizes:
            if task == "array" or size <= run.form.most_ints:
                given: dict[str, Any] = {"workers": WORKERS, "task": task, "size": size}
                subjects = [*POOLS, *run.able("pool")]
                rows += run.line(Line(NAME, case(task, size)), subjects, "run", module="pool_loads", **given)
    return rows


def case(task: str, size: int) -> str:
    """Return its line."""
    return f"{KINDS[task]} {size:,}"
