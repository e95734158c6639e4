"""Crowds of clients that take turns: what they do, how long they have, and what becomes of one that fails."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmark import crowd
from benchmark.processes import Child, Failed, NotStarted, cpu_of
from benchmark.results import Result
from benchmark.rows import Line, Role, Row, row
from benchmark.run import Pair, Run
from benchmark.subjects import Subject

#: The share of the worst served client, relative to a fair share, in the worst round.
LEAST: Final = "least"
#: Of a turn's length: each turn has clients to fork besides.
_SHARE: Final = 0.75
#: Seconds that a crowd may take longer than its clients have.
_PATIENCE: Final = 30.0


@dataclasses.dataclass
class Crowd:
    """The clients of a pair's server."""

    pair: Pair
    child: Child

    @property
    def name(self) -> str:
        """Its subject's."""
        return self.pair.subject.name

    def do(self, clients: int, seconds: float) -> Result:
        """Let clients connect, call for some seconds, and leave. Raises Failed; then this object is useless."""
        self._order("gather", clients=clients)
        before = self._server_cpu()
        result: Result = self._order("call", seconds=seconds)
        result.cpu += self._server_cpu() - before
        self._order("leave")
        return result

    def _order(self, word: str, **parameters: float) -> Result:
        self.child.order(word, **parameters)
        result: Result = self.child.result(_PATIENCE)
        return result

    def _server_cpu(self) -> float:
        return cpu_of(self.pair.server.pid) if self.pair.server is not None else 0.0


@contextlib.contextmanager
def crowds(
    run: Run, line: Line, subjects: Sequence[Subject], make: Callable[[Pair, Child], Crowd] = Crowd
) -> Iterator[tuple[list[Crowd], list[Row]]]:
    """Yield the crowds of those that are there, and rows of ``line`` for those that do not start."""
    found: list[Crowd] = []
    rows: list[Row] = []
    with run.pairs(subjects) as pairs, contextlib.ExitStack() as stack:
        for pair in pairs:
            try:
                child = stack.enter_context(crowd.start(pair.subject, pair.place))
            except NotStarted as error:
                rows.append(Row(line, pair.subject.name, pair.subject.role, note=str(error)))
            else:
                found.append(make(pair, child))
        yield found, rows


def asked(run: Run, line: Line, clients: int, crowds: list[Crowd]) -> list[Row]:
    """Measure each in turn, round after round. A subject that fails is taken out of the list."""
    seconds = run.form.seconds * _SHARE
    results: dict[str, list[Result]] = {each.name: [] for each in crowds}
    roles = {each.name: each.pair.subject.role for each in crowds}
    notes: dict[str, str] = {}
    for number in run.form.numbers:
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
