"""The questions of large data that one call at a time can answer: arrays, a megabyte of bytes, a frame."""

from __future__ import annotations

import contextlib
import statistics
from typing import Final

from benchmark.loads import Result
from benchmark.processes import Kind, Loop
from benchmark.rows import Row, row
from benchmark.subjects import Run, Subject, interleave, subjects_of

ARRAYS: Final = "array, there and back"
MEGABYTE: Final = "1 MB of bytes"
FRAME: Final = "mean of a frame"

SMALL_PEER: Final = "UNIX socket, written for small frames"
ALONE, CALLED, SPINNING = "alone, in the server", "by a call", "by a call, spin=10000"

#: What large data is measured with: ourselves on both loops, and the peer that is written for it.
PROCESSES: Final[tuple[tuple[Kind, Loop, Loop], ...]] = (
    ("large", "uvloop", "uvloop"),
    ("large", "asyncio", "asyncio"),
    ("large socket", "uvloop", "uvloop"),
)
_SIZES: Final = {"64 KB": 64_000, "1 MB": 1_000_000, "64 MB": 64_000_000}


def arrays(run: Run) -> list[Row]:
    """An array that was built in place, there and back, of three sizes."""
    results: dict[str, list[Result]] = {name: [] for name in _SIZES}
    with contextlib.ExitStack() as stack:
        subject = Subject(stack, "large", "uvloop")
        for number in range(-1, run.rounds):  # The first warms up.
            for name, size in _SIZES.items():
                run.progress(f"arrays: round {number + 1} of {run.rounds}, {name}")
                result = subject.do("array_trip", size=size, calls=run.calls(5_000))
                if number >= 0:
                    results[name].append(result)
    return [row(ARRAYS, name, rounds) for name, rounds in results.items()]


def megabyte(run: Run) -> list[Row]:
    """A megabyte of ``bytes`` there and back."""
    with subjects_of(*PROCESSES, ("socket", "uvloop", "uvloop")) as subjects:
        subjects[-1].name = SMALL_PEER

        def echo(subject: Subject) -> Result:
            return subject.do("bytes_trip", size=1_000_000, calls=run.calls(100 if subject.kind == "socket" else 1_000))

        for subject in subjects:
            echo(subject)
        return interleave(run, MEGABYTE, subjects, echo)


def frame(run: Run) -> list[Row]:
    """A frame into an endpoint and its mean back, and the mean by itself, call by call in turn.

    The server takes milliseconds for it, so that a client sleeps meanwhile as it does by default. One that
    spins for so long stands beside it, to tell the wake-up from the rest.
    """
    with contextlib.ExitStack() as stack:
        subjects = {CALLED: Subject(stack, "large", "uvloop"), SPINNING: Subject(stack, "large", "uvloop", spin=10_000)}
        results: dict[str, list[Result]] = {name: [] for name in subjects}
        for number in range(-1, run.rounds):  # The first warms up.
            for name, subject in subjects.items():
                run.progress(f"frame: round {number + 1} of {run.rounds}, {name}")
                result = subject.do("frame_mean", calls=run.calls(200))
                if number >= 0:
                    results[name].append(result)
    made = [row(FRAME, ALONE, [{**result, "latencies": result["alone"]} for result in results[CALLED]])]
    for name, rounds in results.items():
        called = row(FRAME, name, rounds)
        called.extra["µs more than alone"] = statistics.median(_added(result) for result in rounds)
        made.append(called)
    return made


def _added(result: Result) -> float:
    """Microseconds by which the median call of a round is longer than the mean alone."""
    called, alone = (statistics.median(result[name]) for name in ("latencies", "alone"))
    return float(called - alone) / 1e3
