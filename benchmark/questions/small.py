"""``add(i, 2)``, again as soon as it is answered: what a call costs between two processes that are both awake.

The floor is a word there and back between two CPUs. Beside it stand the same call without any process between, as a
plain await, and to a server that is another thread of the client's process.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import DIRECT, THREADS

NAME: Final = "small"
TITLE: Final = "A small call, one after another"

FLOOR: Final = "ping-pong of a word"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call."""
    floor = run.floor("ping_pong", FLOOR)
    return run.line(Line(NAME), [*run.able("call"), *DIRECT, *THREADS], "one_after_another", beside=floor)
