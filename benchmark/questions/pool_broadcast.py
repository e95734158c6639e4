"""A large array for four workers that are there, until each has read all of it, and keeps it.

``copies`` is how much more memory all processes have than before, by their shares of it (Pss), in arrays of that size.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import POOLS

NAME: Final = "pool-broadcast"
TITLE: Final = "An array for all workers of a pool"

WORKERS: Final = 4
_PATIENCE: Final = 60.0


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    line = Line(NAME, f"{run.form.broadcast >> 20:,} MiB", "ms", "ms")
    given: dict[str, Any] = {"workers": WORKERS, "size": run.form.broadcast}
    subjects = [*POOLS, *run.able("pool")]
    return run.line(line, subjects, "broadcast", module="pool_loads", patience=_PATIENCE, **given)
