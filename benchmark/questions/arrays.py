"""An array that was built in place in shared memory, there and back: it goes by reference, and size does not matter.

It is not read; a check makes sure that the same memory comes back. No rival can do this.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import LARGE

NAME: Final = "arrays"
TITLE: Final = "An array there and back, by reference"

_SIZES: Final = {"64 KB": 64_000, "1 MB": 1_000_000, "64 MB": 64_000_000}


def ask(run: Run) -> list[Row]:
    """Ask ours, with NumPy."""
    line = Line(NAME)
    with run.pairs([LARGE]) as pairs:
        turns = [
            Trial(pair, "benchmark.large_loads:array_trip", {"size": size}, name)
            for pair in pairs
            for name, size in _SIZES.items()
        ]
        return run.turns(line, turns) + run.notes(line, [LARGE])
