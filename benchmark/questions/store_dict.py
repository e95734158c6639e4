"""A dict of a hundred texts to ints, whose values one process gets, sets and increments, one after the other."""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import STORES

NAME: Final = "store-dict"
TITLE: Final = "A shared dict"

#: Operations, by the name of the case.
GET, SET, INCREMENT = "get", "set", "increment"
_DONE: Final = {GET: "get", SET: "set", INCREMENT: "bump"}


def ask(run: Run) -> list[Row]:
    """Ask ours and every rival that has dicts."""
    rows: list[Row] = []
    ours = [subject for subject in STORES if "store, dict" in subject.abilities]
    for case, what in _DONE.items():
        line = Line(NAME, case, "rate", "/s", higher_is_better=True)
        rows += run.line(line, [*ours, *run.able("store, dict")], "entries", module="store_work", what=what)
    return rows
