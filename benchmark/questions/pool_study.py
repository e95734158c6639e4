"""The tables of a published study, in which one process has others work for it, beside what the same takes here.

"Published" are its own figures, of another machine. A connection; a lock there and back; a datagram and its reply; the
bytes of a raw memory; ints to bytes, and to those of a serializer; and commands that give nothing, bytes, or ints: by
TCP with pickles, by TCP with the result in shared memory, and by a pool of ours. Every result is checked once.

Table 11 is a window of its fractal explorer, in as many arrays; the motivation is the first of these windows by one
process, by one drone and by eight, which are here as many as there are CPUs. Points are painted in Python, with as many
steps as we chose. Where the study's text says something else than its tables (104 µs for their 8,000 to 12,500; 5.45 %
for 4.6), the tables are right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmark import published
from benchmark.command_loads import ARRAYS, BYTES, SECONDS
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial
from benchmark.subjects import MEMORY, NAMES, OURS, POOLS, Subject
from shmrpc.pools.processes.cpus import usable_cpus

NAME: Final = "pool-study"
TITLE: Final = "A study of pools"

PUBLISHED: Final = "published"
_COMMAND: Final = "benchmark.command_loads:command"
_WINDOW: Final = "benchmark.command_loads:window"
_BY_POOL: Final = "benchmark.command_loads:window_by_pool"
#: The greatest size that a quick run asks for.
_MOST_QUICK: Final = 10_000
_SYNC: Final = OURS[-1]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do what a table measures: who does which load."""

    subject: Subject
    load: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: The name in the table.
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A line of a table."""

    #: The table's name.
    table: str
    text: str
    published: float
    ways: tuple[Way, ...]
    size: int = 0
    #: The leading figure, and its unit.
    lead: str = "p50"
    unit: str = "µs"
    extra: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def line(self) -> Line:
        """Where its rows stand."""
        return Line(NAME, f"{self.table}: {self.text}", self.lead, self.unit)


def ask(run: Run) -> list[Row]:
    """Ask every way of every case."""
    rows: list[Row] = []
    for case in cases(run):
        if case.size > _MOST_QUICK and run.form.rounds == 1:
            continue
        with run.pairs(list({way.subject.name: way.subject for way in case.ways}.values())) as pairs:
            there = {pair.subject.name: pair for pair in pairs}
            turns = [
                Trial(there[way.subject.name], way.load, dict(way.parameters), way.name)
                for way in case.ways
                if way.subject.name in there
            ]
            p50 = case.published if case.lead == "p50" else None
            rows.append(Row(case.line, PUBLISHED, "context", [case.published], p50=p50, extra=dict(case.extra)))
            rows += run.turns(case.line, turns) + run.notes(case.line, [way.subject for way in case.ways])
    return rows


def cases(run: Run) -> Iterator[Case]:
    """Yield all cases, table by table."""
    yield from _messages(run)
    yield from _bytes()
    yield from _commands(run)
    yield from _windows(run)


def _messages(run: Run) -> Iterator[Case]:
    lock = next(each for each in NAMES if each.name == "shmrpc.sync.Lock")
    datagrams = [each for each in run.able("signals") if each.family == "datagrams"]
    trips = tuple(Way(each, "benchmark.sync_loads:one_after_another") for each in (_SYNC, *datagrams))
    yield Case("table 1", "connect", published.CONNECT, (Way(_SYNC, "benchmark.sync_loads:one_more_connecting"),))
    yield Case("table 1", "mutex", published.MUTEX, (Way(lock, "benchmark.sync_loads:acquire_and_release"),))
    yield Case("table 2", "message and reply", published.DATAGRAMS, trips)


def _bytes() -> Iterator[Case]:
    for way, figures in published.MEMORY.items():
        for size, figure in figures.items():
            how = {"size": size, "write": way != "read", "read": way != "write", "shared": True}
            yield Case(
                "table 3", f"{way}, {size:,} B", figure, (Way(MEMORY, "benchmark.sync_loads:copies", how),), size
            )
    for way, figures in published.INTS.items():
        for size, figure in figures.items():
            alone = Way(MEMORY, "benchmark.command_loads:ints", {"size": size, "way": way}, "array of Python")
            yield Case("table 4", f"{size:,} ints {way}", figure, (alone,), size)
    for way, figures in published.SERIALIZER.items():
        for size, figure in figures.items():
            ways = tuple(
                Way(MEMORY, "benchmark.command_loads:serializer", {"size": size, "way": way, "ours": ours}, name)
                for ours, name in ((True, "shmrpc, its codec"), (False, "pickle"))
            )
            yield Case("table 5", f"{way} {size:,} ints", figure, ways, size)


def _commands(run: Run) -> Iterator[Case]:
    yield Case("table 6", "empty task", published.EMPTY, _doing(run, "nothing", 0))
    for kind, figures in published.BY_SOCKETS.items():
        task = "ints" if kind == "array" else kind
        for size, figure in figures.items():
            yield Case("table 7", f"{size:,} {task}", figure, _doing(run, task, size), size)
    for table, by, kinds in ((8, "protected", published.PROTECTED), (9, "unprotected", published.UNPROTECTED)):
        for task, figures in kinds.items():
            for size, figure in figures.items():
                yield Case(f"table {table}", f"{task} of {size:,}", figure, _doing(run, task, size, by=by), size)
    for size, figure in published.BY_MEMORY.items():
        yield Case("table 10", f"array of {size:,}", figure, _doing(run, "array", size), size)


def _doing(run: Run, task: str, size: int, **how: Any) -> tuple[Way, ...]:
    """Return a command by TCP, and by pools of one worker, in a loop and in threads."""
    by_tcp = [Way(each, _COMMAND, {"task": task, "size": size, **how}) for each in run.able("command")]
    given = {"task": task, "size": size, "workers": 1}
    return (*by_tcp, *(Way(each, "benchmark.pool_loads:run", given) for each in (POOLS[0], POOLS[-1])))


def _windows(run: Run) -> Iterator[Case]:
    by_tcp, many = run.able("command"), usable_cpus()
    for number, each in enumerate(published.WINDOWS):
        how = {"width": each.width, "height": each.height, "count": each.arrays}
        ways = [
            *(Way(subject, _WINDOW, how) for subject in by_tcp),
            Way(POOLS[-1], _BY_POOL, {**how, "workers": many}, _by(many)),
        ]
        extra = {ARRAYS: float(each.arrays), BYTES: float(each.bytes)}
        size = each.width * each.height if number else 0
        yield Case("table 11", f"{each.width} x {each.height}", each.seconds, tuple(ways), size, SECONDS, "s", extra)
    first = published.WINDOWS[0]
    how = {"width": first.width, "height": first.height, "count": first.arrays}
    alone = Way(MEMORY, _WINDOW, {**how, "alone": True}, "one process")
    for text, figure, workers in zip(
        ("one image", "1 drone", "8 drones"), published.MANDELBROT, (0, 1, many), strict=True
    ):
        way = Way(POOLS[-1], _BY_POOL, {**how, "workers": workers}, _by(workers)) if workers else alone
        yield Case("motivation", text, figure, (way,), 0, SECONDS, "s")


def _by(workers: int) -> str:
    return f"shmrpc.sync.pool, {workers} workers" if workers > 1 else "shmrpc.sync.pool, 1 worker"
