"""Processes that die as they are told: each is forked from one that has imported everything already.

``python -m tests.reliability.deaths.victims`` is that one. It reads an :class:`Order` from its input, forks a process
that follows it, writes what that has to say, and how it ended.
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

#: Seconds for anything that a victim is to say or do.
PATIENCE: Final = 60
_OBITUARY: Final = struct.Struct("=Q")

Side = Literal["server", "client", "client in threads"]


@dataclass
class Order:
    """What a victim is to do, and where it dies."""

    side: Side
    #: one of those in talking.py
    conversation: str
    #: where services meet
    runtime: str
    #: "record", "lines", "points", or "" for nothing
    how: str = "record"
    place: CrashPoint | None = None
    #: how often the conversation is held
    rounds: int = 1
    uvloop: bool = False

    def __post_init__(self) -> None:
        if self.place is not None:  # JSON knows no tuples.
            self.place = self.place[0], self.place[1]


@dataclass
class Ending:
    """What became of a victim."""

    status: int
    #: when it died as ordered, in seconds of CLOCK_MONOTONIC; None if it lived to its end
    died: float | None
    #: the lines that it reached, and the points that it passed and how often, if it was to record them
    lines: list[CrashPoint] = field(default_factory=list)
    points: list[CrashPoint] = field(default_factory=list)


class Victims:
    """The one that forks them, as the test sees it. One victim at a time."""

    def __init__(self) -> None:
        self._obituary, theirs = os.pipe()
        os.set_blocking(self._obituary, False)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.deaths.victims", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs],
            pipesize=1 << 20,  # A victim writes its list of lines while the test still waits for its end.
        )
        os.close(theirs)
        self._rest = b""
        assert self.line() == ["ready"]

    def start(self, order: Order) -> None:
        """A victim begins with this."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()

    def line(self) -> list[Any]:
        """What the victim says next: a word, and what belongs to it. The last is ``died`` and its status."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
            assert ready, "the victim says nothing"
            read = os.read(self._process.stdout.fileno(), 1 << 20)
            assert read, "the process that forks victims is gone"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        said: list[Any] = json.loads(line)
        return said

    def end(self, first: list[Any] | None = None) -> Ending:
        """Waits for its end. ``first``: what it has said already."""
        ending = Ending(0, None)
        said = first or self.line()
        while said[0] != "died":
            match said:
                case ["lines", reached]:
                    ending.lines = [(file, line) for file, line in reached]
                case ["points", passed]:
                    ending.points = [(name, times) for name, times in passed]
                case ["failed", text]:
                    raise AssertionError(text)
            said = self.line()
        ending.status, ending.died = said[1], self._time_of_death()
        assert ending.status == (0 if ending.died is None else -signal.SIGKILL), f"it ended with {ending.status}"
        return ending

    def _time_of_death(self) -> float | None:
        try:
            written = os.read(self._obituary, 4096)
        except BlockingIOError:
            return None
        return float(_OBITUARY.unpack(written[-_OBITUARY.size :])[0]) / 1e9

    def close(self) -> None:
        """No more of them."""
        self._process.communicate(timeout=PATIENCE)
        os.close(self._obituary)


@contextmanager
def victims() -> Iterator[Victims]:
    """Victims, for as long as they are wanted."""
    crash_points.require_core()
    forking = Victims()
    try:
        yield forking
    finally:
        forking.close()


def main(obituary: int) -> None:
    """The process that forks them."""
    crash_points.use_core()
    import asyncio  # noqa: F401 - so that no victim has to import it
    import gc

    from tests.reliability.deaths import victim_roles

    gc.freeze()
    say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)  # Whatever happens, it does not stay.
            victim_roles.follow(Order(**json.loads(line)), obituary)
        _, status = os.waitpid(pid, 0)
        say("died", os.waitstatus_to_exitcode(status))


def say(*words: Any) -> None:
    """Tells the test."""
    line = json.dumps(words).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
