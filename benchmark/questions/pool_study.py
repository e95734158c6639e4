"""The tables of a published study, in which one process has others work for it, beside what the same takes here.

"Published" are its own figures, of another machine. A connection; a lock there and back; a datagram and its reply; the
bytes of a raw memory; ints to bytes, and to those of a serializer; and commands that give nothing, bytes, or ints: by
TCP with pickles, by TCP with the result in shared memory, and by a pool of ours. Every result is checked once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmark import published
from benchmark.rows import Line, Row
from benchmark.run import Run, Turn
from benchmark.subjects import COMMANDS, MEMORY, NAMES, OURS, Subject

NAME: Final = "pool-study"
TITLE: Final = "A study of pools"

PUBLISHED: Final = "published"
#: The greatest size that a quick run asks for.
_MOST_QUICK: Final = 10_000
_SYNC: Final = OURS[-1]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do what a table measures: who does which load."""

    subject: Subject
    load: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: As what it stands in the table.
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A line of a table."""

    table: int
    text: str
    published: float
    ways: tuple[Way, ...]
    size: int = 0

    @property
    def line(self) -> Line:
        """Where its rows stand."""
        return Line(NAME, f"table {self.table}: {self.text}")


def ask(run: Run) -> list[Row]:
    """Ask every way of every case."""
    rows: list[Row] = []
    for case in cases(run):
        if case.size > _MOST_QUICK and run.form.rounds == 1:
            continue
        with run.pairs(list({way.subject.name: way.subject for way in case.ways}.values())) as pairs:
            there = {pair.subject.name: pair for pair in pairs}
            turns = [
                Turn(there[way.subject.name], way.load, dict(way.parameters), way.name)
                for way in case.ways
                if way.subject.name in there
            ]
            rows.append(Row(case.line, PUBLISHED, "context", [case.published], p50=case.published))
            rows += run.turns(case.line, turns) + run.notes(case.line, [way.subject for way in case.ways])
    return rows


def cases(run: Run) -> Iterator[Case]:
    """All cases, table by table."""
    yield from _messages(run)
    yield from _bytes()
    yield from _commands(run)


def _messages(run: Run) -> Iterator[Case]:
    lock = next(each for each in NAMES if each.name == "shmrpc.sync.Lock")
    datagrams = [each for each in run.able("signals") if each.family == "datagrams"]
    trips = tuple(Way(each, "benchmark.sync_loads:one_after_another") for each in (_SYNC, *datagrams))
    yield Case(1, "connect", published.CONNECT, (Way(_SYNC, "benchmark.sync_loads:one_more_connecting"),))
    yield Case(1, "mutex", published.MUTEX, (Way(lock, "benchmark.sync_loads:acquire_and_release"),))
    yield Case(2, "message and reply", published.DATAGRAMS, trips)


def _bytes() -> Iterator[Case]:
    for way, figures in published.MEMORY.items():
        for size, figure in figures.items():
            how = {"size": size, "write": way != "read", "read": way != "write", "shared": True}
            yield Case(3, f"{way}, {size:,} B", figure, (Way(MEMORY, "benchmark.sync_loads:copies", how),), size)
    for way, figures in published.INTS.items():
        for size, figure in figures.items():
            alone = Way(MEMORY, "benchmark.command_loads:ints", {"size": size, "way": way}, "array of Python")
            yield Case(4, f"{size:,} ints {way}", figure, (alone,), size)
    for way, figures in published.SERIALIZER.items():
        for size, figure in figures.items():
            ways = tuple(
                Way(MEMORY, "benchmark.command_loads:serializer", {"size": size, "way": way, "ours": ours}, name)
                for ours, name in ((True, "shmrpc, its codec"), (False, "pickle"))
            )
            yield Case(5, f"{way} {size:,} ints", figure, ways, size)


def _commands(run: Run) -> Iterator[Case]:
    by_tcp = run.able("command")
    yield Case(6, "empty task", published.EMPTY, _doing("nothing", 0, *by_tcp, COMMANDS))
    for kind, figures in published.BY_SOCKETS.items():
        task = "ints" if kind == "array" else kind
        for size, figure in figures.items():
            yield Case(7, f"{size:,} {task}", figure, _doing(task, size, *by_tcp, COMMANDS), size)
    for table, by, kinds in ((8, "protected", published.PROTECTED), (9, "unprotected", published.UNPROTECTED)):
        for task, figures in kinds.items():
            for size, figure in figures.items():
                ways = (*_doing(task, size, *by_tcp, by=by), *_doing(task, size, COMMANDS))
                yield Case(table, f"{task} of {size:,}", figure, ways, size)
    for size, figure in published.BY_MEMORY.items():
        yield Case(10, f"array of {size:,}", figure, _doing("array", size, *by_tcp, COMMANDS), size)


def _doing(task: str, size: int, *subjects: Subject, **how: Any) -> tuple[Way, ...]:
    load = "benchmark.command_loads:command"
    return tuple(Way(subject, load, {"task": task, "size": size, **how}) for subject in subjects)
