"""A nested record there and back, as an order book or a page of search results would be: 31 KB as JSON.

No side knows its types beforehand. The floor is the codec alone: the record is encoded and decoded on the way there and
on the way back. MB/s count the record as MessagePack, 21 KB, both ways together.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.payload import trip
from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "record"
TITLE: Final = "A nested record there and back"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call."""
    return trip(run, Line(NAME), "record", 0, run.form.seconds)
