"""The bytes of a shared memory, read and written by copies from and to private memory, without any lock.

The floor is the same statement with private memory on both sides, which is memcpy.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import MEMORY

NAME: Final = "shared-bytes"
TITLE: Final = "Reading and writing shared memory"

FLOOR: Final = "memcpy"
SIZES: Final = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
WAYS: Final = {
    "read": {"write": False, "read": True},
    "write": {"write": True, "read": False},
    "both": {"write": True, "read": True},
}


def ask(run: Run) -> list[Row]:
    """Ask ours."""
    rows: list[Row] = []
    with run.pairs([MEMORY]) as pairs:
        for size, count in SIZES.items():
            for way, copied in WAYS.items():
                line, load = Line(NAME, f"{way}, {size}"), "benchmark.sync_loads:copies"
                turns: list[Trial] = []
                for pair in pairs:
                    parameters = {"size": count, **copied}
                    turns.append(Trial(pair, load, {**parameters, "shared": True}))
                    turns.append(Trial(pair, load, {**parameters, "shared": False}, FLOOR, "floor"))
                rows += run.turns(line, turns) + run.notes(line, [MEMORY])
    return rows
