"""Lists of ints there and back, one of them to a million: here most of the time is the codec's or pickle's.

The floor is the codec alone. MB/s are of the list as MessagePack, both ways together. Only the full form goes up to a
million, the usual one to 100,000 and the quick one to 1,000.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.payload import trips
from benchmark.rows import Row
from benchmark.run import Run

NAME: Final = "payload-ints"
TITLE: Final = "Lists of ints there and back, by length"


def ask(run: Run) -> list[Row]:
    """Ask every subject that can call."""
    return trips(run, NAME, "ints", [size for size in run.form.sizes if size <= run.form.most_ints])
