"""Eight processes that do nothing but acquire and release one lock: pairs a second of all together.

``least`` is the share of the worst served process, relative to a fair share, in the worst round. The holder of the lock
adds one to a number in shared memory by a read and a write: if two processes ever had the lock at once, the sum would
show it, and the subject has failed.
"""

from __future__ import annotations

from typing import Final

from benchmark.processes import Failed
from benchmark.questions.crowds import Crowd, asked, crowds
from benchmark.results import Result
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.sharing import COUNT, words
from benchmark.subjects import NAMES

NAME: Final = "contention"
TITLE: Final = "One lock for eight processes"

_PROCESSES: Final = 8
#: Calls of each process that do not count as served: one when it connects, and one whose end is after the time.
_UNCOUNTED: Final = 2


class _Contenders(Crowd):
    def do(self, clients: int, seconds: float) -> Result:
        """Run a crowd. Raises Failed also if the lock has let in two processes at once."""
        with words(self.pair.place) as shared:
            before = shared[COUNT]
            result = super().do(clients, seconds)
            lost = result.calls + _UNCOUNTED * clients - (shared[COUNT] - before)
        if lost:
            raise Failed(f"two had the lock at once: {lost} calls were lost")
        return result


def ask(run: Run) -> list[Row]:
    """Ask every lock."""
    line = Line(NAME, f"{_PROCESSES} processes", "rate", "/s", higher_is_better=True)
    subjects = [*(each for each in NAMES if "lock" in each.abilities), *run.able("lock")]
    with crowds(run, line, subjects, _Contenders) as (found, rows):
        return rows + asked(run, line, _PROCESSES, found) + run.notes(line, subjects)
