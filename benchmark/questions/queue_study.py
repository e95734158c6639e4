"""Blocks of 8 bytes to 64 KB through our queue of raw bytes: by size, batch, and how many write and read.

``handles``: two writing and two reading threads, which share a handle or have one each. It is asked only by name.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import QUEUES

NAME: Final = "queue-study"
TITLE: Final = "A study of queues"

SIZES: Final = (8, 64, 512, 4_096, 65_536)
BATCHES: Final = (1, 16, 100, 1_000)
MOST: Final = 4
#: Bytes of a batch; larger ones would measure memory and nothing else.
_LARGEST: Final = 8 << 20
#: Of a turn's length.
_SHARE: Final = 0.25

ONE_HANDLE, HANDLES = "one handle", "a handle for each"
_THREADS: Final = 2


def ask(run: Run) -> list[Row]:
    """Ask ours, in threads."""
    rows: list[Row] = []
    seconds = run.form.seconds * _SHARE
    with run.pairs(QUEUES[:1]) as pairs:
        for size in SIZES:
            for writers in range(1, MOST + 1):
                for readers in range(1, MOST + 1):
                    given = {"writers": writers, "readers": readers, "size": size, "raw": True}
                    turns = [
                        Trial(pair, "benchmark.queue_loads:rate", {**given, "batch": batch}, batches(batch))
                        for pair in pairs
                        for batch in BATCHES
                        if batch * size <= _LARGEST
                    ]
                    rows += run.turns(_line(case(size, writers, readers)), turns, seconds)
        for batch in BATCHES[::2]:
            turns = [
                Trial(
                    pair,
                    "benchmark.queue_loads:rate_of_threads",
                    {"threads": _THREADS, "one_handle": name == ONE_HANDLE, "batch": batch, "size": 64},
                    name,
                )
                for pair in pairs
                for name in (ONE_HANDLE, HANDLES)
            ]
            rows += run.turns(_line(f"handles, batches of {batch}"), turns)
    return rows


def case(size: int, writers: int, readers: int) -> str:
    """Return the case of so many bytes and processes."""
    return f"{size:,} B, {writers} to {readers}"


def batches(count: int) -> str:
    """Return the name of batches of this size in a line."""
    return f"batches of {count:,}"


def _line(case: str) -> Line:
    return Line(NAME, case, "rate", "/s", higher_is_better=True)
