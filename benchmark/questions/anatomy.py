"""The parts of a small call of ours. Each part is measured alone, in turns with the whole.

``frames alone`` is the same call with ready bytes: the client writes no arguments and reads no result. Codec and a word
there and back are within it. What is left of it is two frames through the ring, the function itself, and letting the
GIL go and getting it back on both sides.
"""

from __future__ import annotations

from typing import Final

from benchmark.questions.chosen import our_uvloop
from benchmark.questions.small import FLOOR
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial

NAME: Final = "anatomy"
TITLE: Final = "What a small call is made of"

_PARTS: Final = {
    "the call": "loads:one_after_another",
    "frames alone": "anatomy_loads:frames_alone",
    "two looks at the clock": "anatomy_loads:clock",
}


def ask(run: Run) -> list[Row]:
    """Ask ours alone, on uvloop."""
    with run.pairs(our_uvloop(run)) as pairs:
        parts = [
            Trial(pair, f"benchmark.{load}", {}, name, "context") for pair in pairs for name, load in _PARTS.items()
        ]
        floors = [
            *run.floor("codec", "codec, both sides", codec="msgspec", kind="small"),
            *run.floor("ping_pong", FLOOR),
        ]
        return run.turns(Line(NAME), [*parts, *floors])
