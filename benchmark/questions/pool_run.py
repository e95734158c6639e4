"""One task at a time that does nothing, for a pool of two workers, beside a call of a server."""

from __future__ import annotations

from typing import Any, Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import OURS, POOLS

NAME: Final = "pool-run"
TITLE: Final = "A task of a pool"

WORKERS: Final = 2
#: The subject beside the pools.
CALL: Final = "a call, uvloop"


def ask(run: Run) -> list[Row]:
    """Ask every pool."""
    beside = []
    if (pair := run.pair(OURS[0])) is not None:
        beside = [Trial(pair, "benchmark.loads:one_after_another", {}, CALL, role="context")]
    given: dict[str, Any] = {"workers": WORKERS}
    return run.line(Line(NAME), [*POOLS, *run.able("pool")], "run", module="pool_loads", beside=beside, **given)
