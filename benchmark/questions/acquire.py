"""A lock without contention, acquired and released: the cost of every use.

In threads by its two functions, in an event loop by ``async with``. multiprocessing's lock knows no loop: there a
thread of an executor waits for it, as in packages that bring multiprocessing to asyncio. Times are means of 100.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import NAMES

NAME: Final = "acquire"
TITLE: Final = "Acquiring and releasing what is free"

THREADS, LOOPS = "threads", "asyncio"


def ask(run: Run) -> list[Row]:
    """Ask every lock."""
    locks = [*(each for each in NAMES if "lock" in each.abilities), *run.able("lock")]
    cases = {
        THREADS: [each for each in locks if each.loop == "none"],
        LOOPS: [each for each in locks if each.loop != "none"],
    }
    return [row for case, each in cases.items() for row in run.line(Line(NAME, case), each, "acquire_and_release")]
