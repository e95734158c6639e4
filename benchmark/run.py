"""A run: its form, the pairs of processes that stay alive, and rounds in which each has its turn."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from benchmark.processes import Child, Failed, NotStarted, Rendezvous, client, cpu_of, function, server
from benchmark.results import Result
from benchmark.rows import Line, Role, Row, row
from benchmark.subjects import FLOORS, Ability, Loop, Subject

#: Called with the name of each step as it begins.
Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Form:
    """The amount of work of a run."""

    name: str
    rounds: int
    #: Seconds of a turn, and of one that warms up; 0: none does.
    seconds: float
    warm_up: float
    #: Numbers of tasks that call at once, of client processes, and sizes of payloads.
    in_flight: tuple[int, ...]
    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    #: Calls a second of an open loop.
    rates: tuple[int, ...]
    #: One-way messages before the receiver is asked for their number.
    messages: int
    #: Seconds for which idle connections are watched, and how many there are.
    idle: float
    connections: int
    #: The longest list of ints: a million of them take most ways to call a tenth of a second and more.
    most_ints: int = 1_000_000
    #: Bytes of an array for all workers of a pool.
    broadcast: int = 16 << 20
    #: True if every server is started once more for each round, to time its start; False for only some.
    all_starts: bool = True

    @property
    def numbers(self) -> range:
        """The numbers of the rounds; 0 is the one that warms up."""
        return range(0 if self.warm_up else 1, self.rounds + 1)


FULL: Final = Form(
    "full",
    rounds=5,
    seconds=0.4,
    warm_up=0.1,
    in_flight=(1, 8, 64, 512),
    clients=(1, 2, 4, 8, 16, 32, 64),
    sizes=(1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
    rates=(1_000, 10_000, 50_000),
    messages=1_000,
    idle=10.0,
    connections=100,
    broadcast=1 << 30,
)
USUAL: Final = Form(
    "usual",
    rounds=3,
    seconds=0.15,
    warm_up=0.05,
    in_flight=(8, 64),
    clients=(1, 8),
    sizes=(10, 1_000, 100_000, 1_000_000),
    rates=(1_000, 10_000),
    messages=200,
    idle=5.0,
    connections=100,
    most_ints=100_000,
    broadcast=128 << 20,
)
QUICK: Final = Form(
    "quick",
    rounds=1,
    seconds=0.05,
    warm_up=0.02,
    in_flight=(64,),
    clients=(8,),
    sizes=(1_000, 1_000_000),
    rates=(10_000,),
    messages=50,
    idle=1.0,
    connections=20,
    most_ints=1_000,
    all_starts=False,
)

#: Seconds beyond the length of its turn after which a subject is given up.
_PATIENCE: Final = 20.0


def module_of(subject: Subject) -> str:
    """Where the loads of its client stand."""
    return "sync_loads" if subject.loop == "none" else "loads"


class Pair:
    """The two processes of a subject, each with a CPU of its own if they are pinned."""

    def __init__(self, subject: Subject, pin: bool = False) -> None:
        self.subject = subject
        usable = sorted(os.sched_getaffinity(0))
        cpus = (usable[0], usable[1 % len(usable)]) if pin else (None, None)
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="shmrpc-benchmark-"))
            self.place = Rendezvous(directory, function(subject.shared)() if subject.shared else None)
            self.server: Child | None = None
            if subject.serve is not None:
                self.server = server(subject.serve, subject.server_loop, self.place, cpus[0])
                stack.callback(self.server.stop)
            self.client = client(subject.connect, subject.loop, self.place, cpus[1])
            stack.callback(self.client.stop)
            # They get ready side by side: a client connects when it is first told to do something.
            for child in self.sides().values():
                child.__enter__()
            self._stack = stack.pop_all()

    def do(self, load: str, *, seconds: float = 0.0, patience: float = _PATIENCE, **parameters: Any) -> Result:
        """Do a load for so long; the CPU time of all its processes is counted. Raises Failed.

        ``patience`` is how many seconds beyond its length it may take.
        """
        pids = [child.pid for child in (self.server, self.client) if child is not None]
        before = sum(map(cpu_of, pids))
        if seconds:
            parameters["seconds"] = seconds
        self.client.order(load, **parameters)
        result: Result = self.client.result(seconds + patience)
        # To what processes that have come and gone have said themselves.
        result.cpu += max(0.0, sum(map(cpu_of, pids)) - before)
        return result

    def sides(self) -> dict[str, Child]:
        """Return its processes, by what they are."""
        return {"server": self.server, "client": self.client} if self.server is not None else {"client": self.client}

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let the pair run for its turn. A restless pair is stopped except during its turns."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Stop a restless pair from now on, because others would have one CPU less."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self.subject.restless:
            for child in self.sides().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, number)

    def close(self) -> None:
        """End both."""
        self._signal(signal.SIGCONT)
        self._stack.close()


@dataclasses.dataclass
class Trial:
    """The turn of one subject: a load of its pair."""

    pair: Pair
    load: str
    parameters: dict[str, Any]
    #: The name in the table; a subject may have several turns of a line.
    name: str = ""
    #: Its role in this line; None: that of its subject.
    role: Role | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.pair.subject.name

    def row(self, line: Line, results: Sequence[Result], failed: str) -> Row:
        """Return the row of the rounds."""
        role = self.role or self.pair.subject.role
        return Row(line, self.name, role, note=failed) if failed else row(line, self.name, role, results)


@dataclasses.dataclass
class Run:
    """A run: its subjects, its amount of work, and the reports of its progress."""

    form: Form
    subjects: Sequence[Subject]
    progress: Progress = lambda step: None
    pin: bool = False
    #: Why subjects that were asked for do not take part, or no more.
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    #: The rows of every line that is done, for an interruption in the middle of a question.
    measured: list[Row] = dataclasses.field(default_factory=list)
    _pairs: dict[str, Pair] = dataclasses.field(default_factory=dict)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._pairs):
            self.part(name)

    def able(self, *abilities: Ability) -> list[Subject]:
        """Return those that can do all of this, whether they are there or not."""
        return [subject for subject in self.subjects if subject.abilities.issuperset(abilities)]

    def pair(self, subject: Subject) -> Pair | None:
        """Return its processes, started when they are first needed; None if they cannot be: the reason is noted."""
        if subject.name in self.absent:
            return None
        if subject.name not in self._pairs:
            self.progress(f"starting {subject.name}")
            missing = subject.missing()
            try:
                if missing:
                    raise NotStarted(missing)
                self._pairs[subject.name] = Pair(subject, self.pin)
            except (NotStarted, Failed, OSError, ImportError) as error:
                self.absent[subject.name] = str(error)
                return None
        return self._pairs[subject.name]

    def part(self, name: str) -> None:
        """End the processes of a subject; others are started when they are needed again."""
        pair = self._pairs.pop(name, None)
        if pair is not None:
            pair.close()

    @contextlib.contextmanager
    def pairs(self, subjects: Iterable[Subject]) -> Iterator[list[Pair]]:
        """Yield the pairs of those that are there, for one question."""
        found = [pair for subject in subjects if (pair := self.pair(subject)) is not None]
        yield found
        for pair in found:
            if pair.subject.restless:
                self.part(pair.subject.name)

    def line(
        self,
        line: Line,
        subjects: Sequence[Subject],
        load: str,
        *,
        seconds: float | None = None,
        patience: float = _PATIENCE,
        beside: Sequence[Trial] = (),
        module: str = "",
        **parameters: Any,
    ) -> list[Row]:
        """Every subject does the load in turn, round after round, after a turn that warms up.

        ``load`` is one of ``module``; without that of ``loads`` or, for blocking clients, of ``sync_loads``.
        ``beside`` are turns of another kind that have their place in the rounds, such as a floor's.
        """
        with self.pairs(subjects) as pairs:
            there = {pair.subject.name: pair for pair in pairs}
            turns = [
                Trial(there[each.name], f"benchmark.{module or module_of(each)}:{load}", parameters, role=each.role)
                for each in subjects
                if each.name in there
            ]
            return self.turns(line, [*beside, *turns], seconds, patience) + self.notes(line, subjects)

    def floor(self, load: str, name: str, *, loop: Loop = "uvloop", **parameters: Any) -> list[Trial]:
        """Return the turn of a floor, of ``floors``, or none if it cannot be measured."""
        pair = self.pair(FLOORS[loop])
        return [Trial(pair, f"benchmark.floors:{load}", parameters, name)] if pair is not None else []

    def turns(
        self, line: Line, turns: Sequence[Trial], seconds: float | None = None, patience: float = _PATIENCE
    ) -> list[Row]:
        """Return a row for each of these turns: A B C, A B C. One that fails has no further turn, and says why."""
        results: dict[str, list[Result]] = {turn.name: [] for turn in turns}
        failed: dict[str, str] = {}
        for turn in turns:
            turn.pair.rest()
        for number in self.form.numbers:
            for turn in turns:
                if turn.name in failed:
                    continue
                self.tell(line, number, turn.name)
                spent = (self.form.seconds if seconds is None else seconds) if number else self.form.warm_up
                try:
                    with turn.pair.turn():
                        result = turn.pair.do(turn.load, seconds=spent, patience=patience, **turn.parameters)
                except Failed as error:
                    failed[turn.name] = f"failed: {error}"
                    self.part(turn.pair.subject.name)
                    continue
                if number:
                    results[turn.name].append(result)
        rows = [turn.row(line, results[turn.name], failed.get(turn.name, "")) for turn in turns]
        self.measured += rows
        return rows

    def tell(self, line: Line, number: int, name: str) -> None:
        """Says whose turn it is, and in which round; the one before the first warms up."""
        step = f"round {number} of {self.form.rounds}" if number else "warming up"
        self.progress(f"{line}: {step}, {name}")

    def notes(self, line: Line, subjects: Iterable[Subject]) -> list[Row]:
        """Rows without figures for those that are not there."""
        return [
            Row(line, each.name, each.role, note=self.absent[each.name])
            for each in subjects
            if each.name in self.absent
        ]
