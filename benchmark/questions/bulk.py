"""Messages of 400 KB one way: from before the first until the receiver has confirmed the last.

The receiver reads the length and the last byte of each. ``copied``: it gets objects of its own, as nearly all subjects
give them; ``in place``: it reads them in shared memory. The full form sends 1000 between
two such answers, the usual one 200, the quick one 50. The floors are memcpy within one process: into one place, which
stays in the cache, and into as much memory as our messages lay in at once: what memory it is decides what a copy costs.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.processes import Failed
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import Subject

NAME: Final = "bulk"
TITLE: Final = "Large messages one way"

COPIED, IN_PLACE = "copied", "in place"
FLOOR: Final = "memcpy, as many places as ours"
_SIZE: Final = 400_000
#: Seconds for the slowest.
_PATIENCE: Final = 60.0


def ask(run: Run) -> list[Row]:
    """Ask every subject that has messages one way."""
    able = run.able("bulk")
    ours = [subject for subject in able if subject.role == "ours"]
    messages: dict[str, Any] = {"size": _SIZE, "messages": run.form.messages}
    floors = _floors(run, ours, messages)

    def line(case: str) -> Line:
        return Line(NAME, case, "GB/s", "GB/s", higher_is_better=True)

    rows = run.line(line(COPIED), able, "bulk", patience=_PATIENCE, beside=floors, **messages)
    others = run.able("in place")
    with run.pairs(ours) as pairs:
        look = [Trial(pair, "benchmark.loads:bulk", {**messages, "endpoint": "look"}) for pair in pairs]
        rows += run.line(line(IN_PLACE), others, "bulk", patience=_PATIENCE, beside=[*floors, *look], **messages)
    for row in rows:
        if row.role == "floor":
            row.cpu = None  # In it is what the memory took that they copy to.
    return rows


def _floors(run: Run, ours: list[Subject], messages: dict[str, Any]) -> list[Trial]:
    floors = run.floor("copies", "memcpy, one place", size=_SIZE)
    pair = run.pair(ours[0]) if ours else None
    if pair is None:
        return floors
    try:
        found = pair.do("benchmark.our_loads:most_in_use", **messages)
    except Failed:
        return floors  # Its own row says why.
    in_use = int(found.extra["bytes in use"])
    return floors + run.floor("copies", FLOOR, size=_SIZE, footprint=in_use)
