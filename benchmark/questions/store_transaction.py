"""Ten increments of a player's fields that happen together or not at all: how long that takes."""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import STORES

NAME: Final = "store-transaction"
TITLE: Final = "A transaction of ten changes"


def ask(run: Run) -> list[Row]:
    """Ask ours and every rival that has transactions."""
    subjects = [*STORES, *run.able("store, transaction")]
    return run.line(Line(NAME, "", "µs", "µs"), subjects, "transactions", module="store_work")
