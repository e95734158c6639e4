"""A stream of small items, each sent as it is made and taken one by one: items a second."""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "streams"
TITLE: Final = "Items of a stream"


def ask(run: Run) -> list[Row]:
    """Ask every subject that has streams."""
    return run.line(Line(NAME, "", "rate", "/s", higher_is_better=True), run.able("stream"), "stream")
