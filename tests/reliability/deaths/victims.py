"""Processes that die on request: each is forked from a process that has imported everything.

``python -m tests.reliability.deaths.victims`` is that process. It reads an :class:`Order` from its input, forks a
process that follows the order, and writes its reports, and how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from tests.helpers import crash_points
from tests.helpers.crash_points import CrashPoint

#: Seconds for each report or action of a victim.
PATIENCE: Final = 60
_OBITUARY: Final = struct.Struct("=Q")

Side = Literal["server", "client", "client in threads"]


@dataclass
class Order:
    """The role of a victim, and the place of its death."""

    side: Side
    #: One of those in conversations.py.
    conversation: str
    #: The rendezvous directory.
    runtime: str
    #: "record", "lines", "points", or "" for nothing.
    how: str = "record"
    place: CrashPoint | None = None
    #: The number of repetitions of the conversation.
    rounds: int = 1
    uvloop: bool = False

    def __post_init__(self) -> None:
        if self.place is not None:  # JSON has no tuples.
            self.place = self.place[0], self.place[1]


@dataclass
class Ending:
    """The end of a victim."""

    status: int
    #: Seconds of CLOCK_MONOTONIC at an ordered death; None if the victim lived to its end.
    died: float | None
    #: Reached lines, and passed points with their counts, if the victim recorded them.
    lines: list[CrashPoint] = field(default_factory=list)
    points: list[CrashPoint] = field(default_factory=list)


class Victims:
    """The process that forks victims, as seen by the test. One victim at a time."""

    def __init__(self) -> None:
        self._obituary, theirs = os.pipe()
        os.set_blocking(self._obituary, False)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.deaths.victims", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs],
            pipesize=1 << 20,  # A victim writes its list of lines while the test waits for its end.
        )
        os.close(theirs)
        self._rest = b""
        assert self.line() == ["ready"]

    def start(self, order: Order) -> None:
        """Start a victim with this order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()

    def line(self) -> list[Any]:
        """Return the victim's next report: a word, and its data. The last is ``died`` and the status."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
            assert ready, "the victim is silent"
            read = os.read(self._process.stdout.fileno(), 1 << 20)
            assert read, "the process that forks victims is gone"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        report: list[Any] = json.loads(line)
        return report

    def end(self, first: list[Any] | None = None) -> Ending:
        """Wait for the end of the victim. ``first``: a report that was read before."""
        ending = Ending(0, None)
        report = first or self.line()
        while report[0] != "died":
            match report:
                case ["lines", reached]:
                    ending.lines = [(file, line) for file, line in reached]
                case ["points", passed]:
                    ending.points = [(name, times) for name, times in passed]
                case ["failed", text]:
                    raise AssertionError(text)
            report = self.line()
        ending.status, ending.died = report[1], self._time_of_death()
        assert ending.status == (0 if ending.died is None else -signal.SIGKILL), f"exit status {ending.status}"
        return ending

    def _time_of_death(self) -> float | None:
        try:
            written = os.read(self._obituary, 4096)
        except BlockingIOError:
            return None
        return float(_OBITUARY.unpack(written[-_OBITUARY.size :])[0]) / 1e9

    def close(self) -> None:
        """End the process that forks victims."""
        self._process.communicate(timeout=PATIENCE)
        os.close(self._obituary)


@contextmanager
def victims() -> Iterator[Victims]:
    """Start the process that forks victims, and end it after the block."""
    crash_points.require_core()
    forking = Victims()
    try:
        yield forking
    finally:
        forking.close()


def main(obituary: int) -> None:
    """Fork a victim for each order."""
    crash_points.use_core()
    import asyncio  # noqa: F401 - so that victims need not import it
    import gc

    from tests.reliability.deaths import victim_roles

    gc.freeze()
    report("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)  # A victim that hangs does not stay.
            victim_roles.follow(Order(**json.loads(line)), obituary)
        _, status = os.waitpid(pid, 0)
        report("died", os.waitstatus_to_exitcode(status))


def report(*words: Any) -> None:
    """Report to the test."""
    line = json.dumps(words).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
