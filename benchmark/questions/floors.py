"""The time of the machine and of the codec alone, measured in the same rounds as everything else.

A word there and back between two threads that spin for it; a turn of the loop in which one future is completed; a
request and its result, each encoded by its sender and decoded by its receiver; a copy by memcpy. No call between two
Python processes that encodes what it carries can be faster than the parts of this of which it is made.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import FLOORS

NAME: Final = "floors"
TITLE: Final = "Floors: what the machine and the codec take"

#: Seconds of a turn at most: these figures are steady.
_SECONDS: Final = 0.1
_CODECS: Final = ("msgspec", "msgpack")
_COPIES: Final = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000, "64 MB": 64_000_000}


def ask(run: Run) -> list[Row]:
    """Measure what needs no peer."""
    lines: dict[str, list[Trial]] = {
        "ping-pong of a word": run.floor("ping_pong", "two threads"),
        "a turn of the loop": [turn for loop in FLOORS for turn in run.floor("turn", loop, loop=loop)],
    }
    for kind in ("small", "record"):
        lines[f"codec, {kind}"] = [turn for name in _CODECS for turn in run.floor("codec", name, codec=name, kind=kind)]
    for name, size in _COPIES.items():
        lines[f"memcpy, {name}"] = run.floor("copies", "memcpy", size=size)
    seconds = min(_SECONDS, run.form.seconds)
    return [row for case, turns in lines.items() for row in run.turns(Line(NAME, case), turns, seconds)]
