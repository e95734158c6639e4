"""One field of a player, which two and eight processes increment, and one reads, alone and beside one that increments.

No increment may be lost: the field is checked after each turn. Our subjects differ by the type of the player; the rate
of reads is that of the reader alone.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.store_players import case
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import STORES, Ability

NAME: Final = "store-field"
TITLE: Final = "One field of a shared object"

WRITERS: Final = (2, 8)
ALONE, BESIDE = "reads, alone", "reads, beside a writer"


def ask(run: Run) -> list[Row]:
    """Ask ours and every rival."""
    rows: list[Row] = []
    subjects = [*STORES, *run.able("store")]
    for writers in WRITERS:
        rows += run.line(_line(added(writers)), subjects, "additions", module="store_work", writers=writers)
    cases: tuple[tuple[str, Ability], ...] = ((ALONE, "store, read"), (BESIDE, "store, read beside"))
    for name, ability in cases:
        readers = [*STORES, *run.able(ability)]
        rows += run.line(_line(name), readers, "reads", module="store_work", contended=name == BESIDE)
    return rows


def added(writers: int) -> str:
    """Return the case of so many processes that add."""
    return f"added, {case(writers)}"


def _line(case: str) -> Line:
    return Line(NAME, case, "rate", "/s", higher_is_better=True)
