"""A picture of 1080 x 1920 x 3 bytes into an endpoint and its mean back, and the mean by itself.

After each call the server takes the mean of the same picture, in the same memory, by itself; what a call adds is the
difference of the two medians of a round. The server computes for milliseconds, so that a client sleeps meanwhile as it
does by default; beside it stands one that spins, to tell the wake-up from the rest.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import LARGE, LARGE_SPINNING

NAME: Final = "frame"
TITLE: Final = "The mean of a frame"

ALONE, CALLED, SPINNING = "alone, in the server", "by a call", "by a call, spin=10000"
ADDED: Final = "more than alone"


def ask(run: Run) -> list[Row]:
    """Ask ours, with NumPy."""
    line, subjects = Line(NAME), {LARGE: CALLED, LARGE_SPINNING: SPINNING}
    with run.pairs(subjects) as pairs:
        turns = [Trial(pair, "benchmark.large_loads:frame_mean", {}, subjects[pair.subject]) for pair in pairs]
        rows = run.turns(line, turns)
        return [*map(_alone, rows[:1]), *rows, *run.notes(line, subjects)]


def _alone(called: Row) -> Row:
    """Return the row of the mean by itself, which the calls of another have found beside their own times."""
    alone = called.extra.get("alone")
    rounds = [alone] if alone is not None else []
    return Row(called.line, ALONE, "floor", rounds, p50=alone, note=called.note)
