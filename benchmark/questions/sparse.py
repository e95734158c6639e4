"""``add(1, 2)`` every 2 ms: both sides sleep in between, caches are cold, and a call is above all two wake-ups."""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "sparse"
TITLE: Final = "A call now and then"

_MILLISECONDS: Final = 2
CASE: Final = f"every {_MILLISECONDS} ms"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call."""
    return run.line(Line(NAME, CASE), run.able("call"), "sparse", interval=_MILLISECONDS / 1e3)
