"""Small calls, many in flight and an array, by ways that leave a host: one NATS for all who need one, on this machine.

Last, the small call of a client that has shared memory and NATS to choose from, beside one that has but the former.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import HOSTS, NEAR_ALONE, NEAR_EITHER

NAME: Final = "hosts"
TITLE: Final = "Between hosts"

SMALL: Final = "a small call"
IN_FLIGHT: Final = "64 in flight"
ARRAY: Final = "1 MB of float64, there and back"
NEAR: Final = "a small call, the server near"
_TASKS: Final = 64
_SIZE: Final = 1_000_000


def ask(run: Run) -> list[Row]:
    """Ask every subject that can leave a host."""
    subjects = [*HOSTS, *run.able("hosts")]
    rows = run.line(Line(NAME, SMALL), subjects, "one_after_another")
    rate = Line(NAME, IN_FLIGHT, "rate", "/s", higher_is_better=True)
    rows += run.line(rate, subjects, "in_flight", tasks=_TASKS)
    rows += run.line(Line(NAME, ARRAY), subjects, "array_copied", module="large_loads", size=_SIZE)
    rows += run.line(Line(NAME, NEAR), [NEAR_ALONE, NEAR_EITHER], "one_after_another")
    for subject in (*subjects, NEAR_ALONE, NEAR_EITHER):
        run.part(subject.name)  # Heartbeats must not disturb other subjects.
    return rows
