"""``bytes`` there and back, one of them to a million: what size costs.

MB/s count both ways together. The floor is the codec alone, which copies the bytes four times: the request and the
result are each encoded and decoded.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.payload import trips
from benchmark.rows import Row
from benchmark.run import Run

NAME: Final = "payload-bytes"
TITLE: Final = "Bytes there and back, by size"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call."""
    return trips(run, NAME, "bytes", run.form.sizes)
