"""Values that processes share, of whatever make: nine fields that are incremented, and the check that none is lost.

What is measured are the statements that a user would write, one behind the other in one function; no subject pays for
calls of ours.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, cast

from benchmark.processes import Caller, Rendezvous
from benchmark.queue_crew import Crew, Duty
from benchmark.queue_work import Part, Way
from benchmark.results import Result
from benchmark.subjects import Loop


class Field(enum.IntEnum):
    """The fields of a player, by their numbers."""

    health = 0
    points = 1
    moves = 2
    wins = 3
    losses = 4
    kills = 5
    deaths = 6
    level = 7
    gold = 8


@dataclasses.dataclass
class Player:
    """The same as a dataclass."""

    health: int = 0
    points: int = 0
    moves: int = 0
    wins: int = 0
    losses: int = 0
    kills: int = 0
    deaths: int = 0
    level: int = 0
    gold: int = 0


FIELDS: Final = tuple(field.name for field in Field)
#: Keys of a dict that is read and written.
KEYS: Final = tuple(f"key {number}" for number in range(100))
#: Nanoseconds between two looks at the clock, about, and the most that is done between them.
_LOOK: Final = 1_000_000
_MOST: Final = 1 << 16

_now = time.perf_counter_ns

#: Does what it is for so many times.
Repeated = Callable[[int], None]


def _missing(*_: Any) -> Any:
    raise NotImplementedError("it was not said to be able to do that")


@dataclasses.dataclass
class Kept:
    """The handles of one process for the shared values."""

    #: Sets all fields to 0, and the values of all keys to 1.
    reset: Callable[[], Any]
    #: Returns all fields.
    totals: Callable[[], Sequence[int]]
    #: Increments each field once: as one writer does, or so that none is lost if there are more.
    increment: Repeated
    #: The same for the first field alone.
    add: Repeated
    #: Reads the first field.
    read: Repeated = _missing
    #: Increments ten times, the first field twice: all of it or nothing.
    transaction: Repeated = _missing
    #: Gets the value of each of :data:`KEYS`, sets it to 7, increments it.
    get: Repeated = _missing
    set: Repeated = _missing
    bump: Repeated = _missing
    #: The sum of all values.
    sum: Callable[[], int] = _missing


class ValueStore(Protocol):
    """The client of a subject: it is there before the processes that use the values, which it forks."""

    place: Rendezvous
    #: None of them has a loop.
    loop: Loop

    def open(self, part: Part) -> AbstractContextManager[Kept]:
        """Open the shared values for the process that calls this method."""


def repeated(*statements: str, **names: Any) -> Repeated:
    """Make a function that executes statements so many times, in which these names are local variables."""
    body = "".join(f"        {statement}\n" for statement in statements)
    source = f"def run(times, {''.join(f'{name}={name}, ' for name in names)}):\n    for _ in range(times):\n{body}"
    space = dict(names)
    exec(source, space)
    made: Repeated = space["run"]
    return made


def nine(statement: str, **names: Any) -> Repeated:
    """Return the same of a statement for each field, in which ``{name}`` and ``{number}`` are those of the field."""
    return repeated(*of_fields(statement), **names)


def one(statement: str, **names: Any) -> Repeated:
    """Return the same for the first field."""
    return repeated(*of_fields(statement, (0,)), **names)


def ten(statement: str, around: str, **names: Any) -> Repeated:
    """Return the same for all fields and the first one again, within a block."""
    statements = of_fields(statement, (*range(len(FIELDS)), 0))
    return repeated(around, *(f"    {each}" for each in statements), **names)


def keys(statement: str, **names: Any) -> Repeated:
    """Return the same for each of the keys, which is ``key`` in it."""
    return repeated("for key in KEYS:", f"    {statement}", KEYS=KEYS, **names)


def all_of(field: str, **names: Any) -> Callable[[], list[int]]:
    """Make a function that returns what all fields are."""
    source = compile(f"[{', '.join(of_fields(field))}]", field, "eval")
    return lambda: eval(source, names)


def of_fields(statement: str, numbers: Sequence[int] = range(len(FIELDS))) -> list[str]:
    """Return the statement for each of these fields."""
    return [statement.format(name=FIELDS[number], number=number) for number in numbers]


class _Done(NamedTuple):
    """The work of a process, in nanoseconds and seconds of CPU."""

    start: int
    end: int
    cpu: float
    times: int


def _kept(duty: Duty) -> Kept:
    return cast(Kept, duty.end)


def _work(duty: Duty, *, what: str, seconds: float) -> list[int]:
    """Repeats it for so long; the first process sets all to 0 before, and looks at the totals after."""
    kept = _kept(duty)
    if duty.part.number == 0:
        kept.reset()
    duty.begin()
    duty.tell(_for_a_while(getattr(kept, what), seconds))
    return list(kept.totals()) if duty.part.number == 0 else []


def _for_a_while(do: Repeated, seconds: float) -> _Done:
    cpu, start = time.process_time(), _now()
    until, before, count, done = start + int(seconds * 1e9), start, 1, 0
    while before < until:
        do(count)
        done += count
        after = _now()
        took = max(1, after - before)
        count = max(1, min(_MOST, count * _LOOK // took, (until - after) * count // took))
        before = after
    return _Done(start, before, time.process_time() - cpu, done)


def _together(crew: Crew, workers: Any, seconds: float, each: int) -> tuple[Result, list[int], list[int]]:
    """Return the work of all writers, and the totals after their end."""
    done: list[_Done] = crew.hear(workers, seconds)
    totals: list[list[int]] = []
    for worker in reversed(workers):
        worker.say("end")
        totals += crew.hear([worker], 0.0)
    took = max(one.end for one in done) - min(one.start for one in done)
    times = [one.times for one in done]
    result = Result(sum(times) * each, took / 1e9, cpu=sum(one.cpu for one in done))
    return result, times, totals[-1]


def _parts(writers: int) -> list[Part]:
    return [Part("put", number, writers, 0) for number in range(writers)]


def _change(caller: Caller, seconds: float, writers: int, what: str, expected: Callable[[int], list[int]]) -> Result:
    with Crew() as crew:
        workers = crew.add(cast(Way, caller.client), _parts(writers), _work, what=what, seconds=seconds)
        crew.begin()
        result, times, totals = _together(crew, workers, seconds, sum(expected(1)))
        crew.part()
    if totals != expected(sum(times)):
        raise ValueError(f"{sum(times)} times each was changed, and the fields are {totals}")
    return result


def increments(caller: Caller, *, seconds: float, writers: int) -> Result:
    """Nine fields, each incremented in turn, by so many processes; no increment is lost."""
    return _change(caller, seconds, writers, "increment", lambda times: [times] * len(FIELDS))


def additions(caller: Caller, *, seconds: float, writers: int) -> Result:
    """Return one field."""
    return _change(caller, seconds, writers, "add", lambda times: [times] + [0] * (len(FIELDS) - 1))


def transactions(caller: Caller, *, seconds: float) -> Result:
    """Ten changes at a time, all or none: how many microseconds that takes."""
    # The first field is among them twice.
    result = _change(caller, seconds, 1, "transaction", lambda times: [2 * times] + [times] * (len(FIELDS) - 1))
    result.calls //= len(FIELDS) + 1
    result.extra["µs"] = result.seconds / result.calls * 1e6
    return result


def reads(caller: Caller, *, seconds: float, contended: bool) -> Result:
    """Read of a field, alone or beside a process that does nothing but increment it."""
    with Crew() as crew:
        make = functools.partial(crew.add, cast(Way, caller.client), seconds=seconds)
        writing = make(_parts(1), _work, what="add") if contended else []
        reading = make([Part("get", int(contended), 1, 1)], _work, what="read")
        crew.begin()
        (read,) = crew.hear(reading, seconds)
        reading[0].say("end")
        crew.hear(reading, 0.0)
        if contended:
            _, times, totals = _together(crew, writing, seconds, 1)
            if totals[0] != times[0]:
                raise ValueError(f"{times[0]} increments were done beside reads, and the field is {totals[0]}")
        crew.part()
    return Result(read.times, (read.end - read.start) / 1e9, cpu=read.cpu)


def entries(caller: Caller, *, seconds: float, what: str) -> Result:
    """Return the values of a dict: one is got, set or incremented after the other, by one process."""
    with Crew() as crew:
        workers = crew.add(cast(Way, caller.client), _parts(1), _work_on_keys, what=what, seconds=seconds)
        crew.begin()
        result, (times,), (total,) = _together(crew, workers, seconds, len(KEYS))
        crew.part()
    expected = {"get": len(KEYS), "set": 7 * len(KEYS), "bump": (1 + times) * len(KEYS)}[what]
    if total != expected:
        raise ValueError(f"after {times} times of {what} the values are {total} together, and not {expected}")
    return result


def _work_on_keys(duty: Duty, *, what: str, seconds: float) -> list[int]:
    """Work on the keys of a dict, and return the sum of all values as well."""
    kept = _kept(duty)
    kept.reset()
    duty.begin()
    duty.tell(_for_a_while(getattr(kept, what), seconds))
    return [kept.sum()]
