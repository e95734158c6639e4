"""Many client processes of one server, which call without pause: calls a second of all together.

``least`` is what the worst served client got of a fair share, in the worst round. The clients begin at once and only
the calls that are answered in the same time count. Above eight clients only those rivals are asked that were within
half of the best rival at eight: the others would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmark.questions.crowds import asked, crowds
from benchmark.rows import Line, Row
from benchmark.run import Run

NAME: Final = "many-clients"
TITLE: Final = "Many clients of one server"

#: From more clients than that only the better rivals are asked.
_ALL_UP_TO: Final = 8
_WITHIN: Final = 0.5


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have many clients."""
    subjects = run.able("clients")
    with crowds(run, _line(run.form.clients[0]), subjects) as (found, rows):
        for clients in run.form.clients:
            if clients > _ALL_UP_TO:
                names = going_on(rows)
                found = [each for each in found if each.name in names]
            rows += asked(run, _line(clients), clients, found) + run.notes(_line(clients), subjects)
    return rows


def _line(clients: int) -> Line:
    return Line(NAME, f"{clients}", "rate", "/s", higher_is_better=True)


def going_on(rows: Iterable[Row]) -> set[str]:
    """Ours, and the rivals that were not much worse than the best of them when all were asked."""
    asked = [row for row in rows if row.line == _line(_ALL_UP_TO) and row.value is not None]
    best = max((row.value or 0.0 for row in asked if row.role == "rival"), default=0.0)
    return {row.subject for row in asked if row.role == "ours" or (row.value or 0.0) >= _WITHIN * best}
