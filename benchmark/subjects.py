"""Who is measured, and how: processes that stay alive, and rounds in which each has its turn."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from benchmark.loads import Result
from benchmark.processes import Child, Kind, Loop, client, server
from benchmark.rows import Row, row
from shmrpc.options import DEFAULT_SPIN

#: Called with the name of each step as it begins.
Progress = Callable[[str], None]

ROUNDS: Final = 5
QUICK_ROUNDS: Final = 1

_NAMES: Final[Mapping[Kind, str]] = {
    "direct": "direct",
    "thread": "thread to thread",
    "shmrpc": "process",
    "large": "process",
    "socket": "UNIX socket",
    "large socket": "UNIX socket",
}


@dataclasses.dataclass
class Run:
    """How much is to be done, and whom to tell."""

    #: 1 is a full run; smaller is quicker and rougher.
    scale: float
    progress: Progress

    @property
    def rounds(self) -> int:
        """How often each subject has its turn."""
        return ROUNDS if self.scale >= 1 else QUICK_ROUNDS

    def calls(self, full: int) -> int:
        """This many calls in a full run."""
        return max(50, int(full * self.scale))


class Subject:
    """A way to call: a client process, and the server process where there is one."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        kind: Kind,
        loop: Loop,
        server_loop: Loop = "uvloop",
        spin: float = DEFAULT_SPIN,
    ) -> None:
        self.name = f"{_NAMES[kind]}, {loop}"
        self.kind = kind
        self.loop = loop
        self.place = stack.enter_context(tempfile.TemporaryDirectory())
        self.server: Child | None = None
        if kind not in ("direct", "thread"):
            self.server = stack.enter_context(server(kind, server_loop, self.place))
        self.client = stack.enter_context(client(kind, loop, self.place, spin=spin))

    def do(self, load: str, **parameters: Any) -> Result:
        """Does a load; the CPU time of the server is counted in."""
        before = self.server.cpu() if self.server else 0.0
        result = self.client.do(load, **parameters)
        if self.server:
            result["cpu"] += self.server.cpu() - before
        return result


def interleave(run: Run, question: str, subjects: list[Subject], load: Callable[[Subject], Result]) -> list[Row]:
    """Every subject in turn, round after round."""
    results: dict[str, list[Result]] = {subject.name: [] for subject in subjects}
    for number in range(run.rounds):
        for subject in subjects:
            run.progress(f"{question}: round {number + 1} of {run.rounds}, {subject.name}")
            results[subject.name].append(load(subject))
    return [row(question, name, rounds) for name, rounds in results.items()]


@contextlib.contextmanager
def subjects_of(*kinds: tuple[Kind, Loop, Loop]) -> Iterator[list[Subject]]:
    """Subjects of these kinds, for a block: kind, the client's loop, the server's."""
    with contextlib.ExitStack() as stack:
        yield [Subject(stack, kind, loop, server_loop) for kind, loop, server_loop in kinds]
