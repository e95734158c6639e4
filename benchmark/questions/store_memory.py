"""Memory of a million small ints: as a list and as the values of a dict with int keys, in a store and in Python.

Python's own is what it says of the container, and of the keys, which it makes one by one; small ints it has once. Ours
is what ``stats()`` says that the store uses more than before. It is measured once.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import STORES

NAME: Final = "store-memory"
TITLE: Final = "Memory of a million ints"

LIST, DICT = "list", "dict"
PLAIN: Final = "plain Python"


def ask(run: Run) -> list[Row]:
    """Ask ours, beside Python's own."""
    rows: list[Row] = []
    with run.pairs(STORES[:1]) as pairs:
        for pair in pairs:
            for kind in (LIST, DICT):
                turns = [
                    Trial(pair, "benchmark.store_memory:shared", {"kind": kind}, "shmrpc store"),
                    Trial(pair, "benchmark.store_memory:plain", {"kind": kind}, PLAIN, role="floor"),
                ]
                rows += run.turns(Line(NAME, kind, "MB", "MB"), turns)
    return rows
