"""A picture of the Mandelbrot set, whose tiles a pool of as many workers as there are CPUs paints, as the example does.

The leading figure is the share of all CPUs that painted. A ticker of 1 ms runs in the loop of the pool meanwhile.
"""

from __future__ import annotations

from typing import Final

from benchmark.fractal_loads import CPUS
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import POOLS

NAME: Final = "pool-fractals"
TITLE: Final = "A pool that paints"


def ask(run: Run) -> list[Row]:
    """Ask ours, in both loops."""
    line = Line(NAME, "", CPUS, "of the CPUs", higher_is_better=True)
    subjects = [each for each in POOLS if "fractals" in each.abilities]
    with run.pairs(subjects) as pairs:
        given = {"tiles": max(4, int(200 * run.form.seconds))}
        turns = [Trial(pair, "benchmark.fractal_loads:paint", given) for pair in pairs]
        return run.turns(line, turns) + run.notes(line, subjects)
