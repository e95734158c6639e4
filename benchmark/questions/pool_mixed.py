"""Tasks from 1 µs to 10 ms, the quick ones first, mapped over two workers: how many times the ideal all of them take.

Each takes its time of a CPU. The ideal is their sum, divided by the workers. The floor is the time of processes that
have their shares from the beginning, without a pool: other work on the machine shows there.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.pool_loads import IDEAL
from benchmark.questions.pool_run import WORKERS
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import POOLS

NAME: Final = "pool-mixed"
TITLE: Final = "Tasks of a pool that take from 1 µs to 10 ms"

#: The same number of processes that do nothing else, each with its share from the beginning.
FLOOR: Final = "processes alone"
#: Seconds that the ideal takes, for each second of a turn.
_SECONDS: Final = 2.0


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    given: dict[str, Any] = {"workers": WORKERS, "total": _SECONDS * run.form.seconds}
    subjects = [*POOLS, *run.able("pool")]
    alone = (
        [Trial(pair, "benchmark.pool_loads:alone", given, FLOOR, role="floor")] if (pair := run.pair(POOLS[2])) else []
    )
    return run.line(Line(NAME, "", IDEAL, "×"), subjects, "mixed", module="pool_loads", beside=alone, **given)
