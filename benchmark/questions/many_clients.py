"""Many client processes of one server, which call without pause: calls a second of all together.

``least`` is what the worst served client got of a fair share, in the worst round. The clients begin at once and only
the calls that are answered in the same time count. Above eight clients only those rivals are asked that were within
half of the best rival at eight: the others would take minutes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from benchmark import crowd
from benchmark.processes import Child, Failed, NotStarted, cpu_of
from benchmark.results import Result
from benchmark.rows import Line, Role, Row, row
from benchmark.run import Pair, Run

NAME: Final = "many-clients"
TITLE: Final = "Many clients of one server"

LEAST: Final = "least"
#: From more clients than that only the better rivals are asked.
_ALL_UP_TO: Final = 8
_WITHIN: Final = 0.5
#: Of a turn's length: each turn has clients to fork besides.
_SHARE: Final = 0.75
#: Seconds that a crowd may take longer than its clients have.
_PATIENCE: Final = 30.0


@dataclasses.dataclass
class _Crowd:
    """The clients of a pair's server."""

    pair: Pair
    child: Child

    @property
    def name(self) -> str:
        return self.pair.subject.name

    def do(self, clients: int, seconds: float) -> Result:
        """Let clients connect, call for some seconds, and leave. Raises Failed; then this object is useless."""
        self._told("gather", clients=clients)
        before = self._server_cpu()
        result: Result = self._told("call", seconds=seconds)
        result.cpu += self._server_cpu() - before
        self._told("leave")
        return result

    def _told(self, word: str, **parameters: float) -> Result:
        self.child.order(word, **parameters)
        result: Result = self.child.result(_PATIENCE)
        return result

    def _server_cpu(self) -> float:
        return cpu_of(self.pair.server.pid) if self.pair.server is not None else 0.0


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have many clients."""
    rows: list[Row] = []
    subjects = run.able("clients")
    with run.pairs(subjects) as pairs, contextlib.ExitStack() as stack:
        crowds = []
        for pair in pairs:
            try:
                child = stack.enter_context(crowd.start(pair.subject, pair.place))
            except NotStarted as error:
                rows.append(Row(_line(run.form.clients[0]), pair.subject.name, pair.subject.role, note=str(error)))
            else:
                crowds.append(_Crowd(pair, child))
        for clients in run.form.clients:
            if clients > _ALL_UP_TO:
                names = going_on(rows)
                crowds = [each for each in crowds if each.name in names]
            rows += _asked(run, clients, crowds) + run.notes(_line(clients), subjects)
    return rows


def _line(clients: int) -> Line:
    return Line(NAME, f"{clients}", "rate", "/s", higher_is_better=True)


def _asked(run: Run, clients: int, crowds: list[_Crowd]) -> list[Row]:
    """Measure each in turn, round after round. A subject that fails is taken out of the list."""
    line, seconds = _line(clients), run.form.seconds * _SHARE
    results: dict[str, list[Result]] = {each.name: [] for each in crowds}
    roles = {each.name: each.pair.subject.role for each in crowds}
    notes: dict[str, str] = {}
    for number in range(run.form.rounds + 1):
        for each in list(crowds):
            run.tell(line, number, each.name)
            try:
                result = each.do(clients, seconds if number else run.form.warm_up)
            except Failed as error:
                notes[each.name] = f"failed: {error}"
                each.child.stop()
                crowds.remove(each)
                continue
            if number:
                results[each.name].append(result)
    return [
        Row(line, name, roles[name], note=notes[name]) if name in notes else _row(line, name, roles[name], found)
        for name, found in results.items()
    ]


def _row(line: Line, name: str, role: Role, results: Sequence[Result]) -> Row:
    made = row(line, name, role, results)
    made.extra[LEAST] = min(result.extra[LEAST] for result in results)
    return made


def going_on(rows: Iterable[Row]) -> set[str]:
    """Ours, and the rivals that were not much worse than the best of them when all were asked."""
    asked = [row for row in rows if row.line == _line(_ALL_UP_TO) and row.value is not None]
    best = max((row.value or 0.0 for row in asked if row.role == "rival"), default=0.0)
    return {row.subject for row in asked if row.role == "ours" or (row.value or 0.0) >= _WITHIN * best}
