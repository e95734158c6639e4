"""A signal to another process and one back.

``busy``: again at once. ``asleep``: after 2 ms of sleep, so that the other side sleeps as well, and the side that waits
for the answer may go to sleep for it. Each side writes into shared memory what the other one reads: that shows that no
signal comes too early.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import NAMES

NAME: Final = "signals"
TITLE: Final = "A signal there and back"

BUSY, ASLEEP = "busy", "asleep"
_INTERVAL: Final = 0.002


def ask(run: Run) -> list[Row]:
    """Ask all that signal."""
    subjects = [*(each for each in NAMES if "signals" in each.abilities), *run.able("signals")]
    rows = run.line(Line(NAME, BUSY), subjects, "one_after_another")
    return rows + run.line(Line(NAME, ASLEEP), subjects, "sparse", interval=_INTERVAL)
