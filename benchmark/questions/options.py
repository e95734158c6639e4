"""The cost of a deadline for a small call of ours, and the savings of many calls in a frame and of one-way calls."""

from __future__ import annotations

from typing import Final

from benchmark.questions.chosen import our_uvloop
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial

NAME: Final = "options"
TITLE: Final = "Options of a call"

ONE, MANY = "a call", "many calls"
PLAIN: Final = "plain"
MAPPED: Final = "map, 256 in a frame"
_ONE: Final = {
    PLAIN: "loads:one_after_another",
    "under a deadline": "our_loads:under_a_deadline",
    "under a deadline, said each time": "our_loads:under_a_deadline_each",
}
_MANY: Final = {MAPPED: "our_loads:mapped", "one way": "our_loads:one_way"}


def ask(run: Run) -> list[Row]:
    """Ask ours alone, on uvloop."""
    one, many = Line(NAME, ONE), Line(NAME, MANY, "rate", "/s", higher_is_better=True)
    rows = []
    with run.pairs(our_uvloop(run)) as pairs:
        for line, forms in ((one, _ONE), (many, _MANY)):
            turns = [Trial(pair, f"benchmark.{load}", {}, name) for pair in pairs for name, load in forms.items()]
            rows += run.turns(line, turns)
    return rows
