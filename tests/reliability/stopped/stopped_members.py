"""Members that are stopped at a native point, and the operations of others meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import tempfile
from collections.abc import Callable
from typing import Any, Final

import shmrpc
import shmrpc.sync
from tests.helpers import crash_points
from tests.reliability.object_users import HANGS, ForkedProcess, Outcomes

#: Seconds of the other members' deadlines.
_SOON: Final = 0.2

Work = Callable[[Outcomes, Callable[[], None]], None]


def _in(directory: str, work: Callable[[Outcomes], None]) -> Work:
    """Return work for a forked process with a rendezvous directory of its own."""

    def in_directory(outcomes: Outcomes, step: Callable[[], None]) -> None:
        os.environ["XDG_RUNTIME_DIR"] = directory
        work(outcomes)

    return in_directory


def _open() -> tuple[Any, ...]:
    return (
        shmrpc.sync.Semaphore("gpu", 2),
        shmrpc.sync.Lock("config"),
        shmrpc.sync.Event("go"),
        shmrpc.sync.Signal("ready"),
    )


def _use() -> None:
    """Carry out the operations at whose points a member is stopped."""
    gate, lock, go, ready = names = _open()
    for each in (gate, gate, lock):
        each.acquire(HANGS)
    gate.release()
    ready.signal(2)
    ready.wait(HANGS)
    go.set()
    go.clear()
    for name in names:
        name.close()


def _die(outcomes: Outcomes) -> None:
    for name in _open()[:2]:
        name.acquire(HANGS)
    os.kill(os.getpid(), signal.SIGKILL)


def _stops(point: str) -> Callable[[Outcomes], None]:
    def work(outcomes: Outcomes) -> None:
        crash_points.stop_at_point(point, 1)
        _use()

    return work


def _others(outcomes: Outcomes) -> None:
    """Carry out all operations that another process tries meanwhile, each with a deadline."""
    outcomes.kept_class = shmrpc.ShmrpcError
    opened = [
        outcomes.note(opener)
        for opener in (
            lambda: shmrpc.sync.Semaphore("gpu", 2),
            lambda: shmrpc.sync.Lock("config"),
            lambda: shmrpc.sync.Event("go"),
            lambda: shmrpc.sync.Signal("ready"),
        )
    ]
    gate, lock, go, ready = opened
    for each in (gate, gate, lock):
        if each is not None:
            outcomes.note(lambda each=each: each.acquire(_SOON))  # type: ignore[misc]
    if gate is not None:
        outcomes.note(gate.release)
        in_loop = shmrpc.Semaphore("gpu", 2)
        asyncio.run(outcomes.note_in_loop(in_loop.acquire(_SOON)))
        in_loop.close()
    if ready is not None:
        ready.signal()
        outcomes.note(lambda: ready.wait(_SOON))
    if go is not None:
        go.set()
        outcomes.note(lambda: go.wait(_SOON))
    for name in opened:
        if name is not None:
            name.close()


def _check_all(outcomes: Outcomes) -> None:
    """Check that no permit is lost or doubled after the stopped member has gone on."""
    gate, lock, go, _ = names = _open()
    for each in (gate, gate, lock):
        each.acquire(HANGS)
    assert {each.pid: each.holds for each in shmrpc.members("gpu")} == {os.getpid(): 2}
    go.set()
    go.wait(HANGS)
    for name in names:
        name.close()


class Stopped:
    """A member that is stopped at a point, in a rendezvous directory of its own."""

    def __init__(self, point: str, before: str, directory: str) -> None:
        self.point, self.before = point, before
        self._directory = directory
        if before == "a dead member":
            self._fork(_die).wait_until_killed()
        self._living = self._fork_living() if before == "a living member" else None
        self._victim = self._fork(_stops(point))
        self.pid = self._victim.pid
        ended = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        #: True if the member has reached the point.
        self.is_stopped = ended is not None and ended.si_code == os.CLD_STOPPED
        self._others: ForkedProcess | None = None

    def _fork(self, work: Callable[[Outcomes], None]) -> ForkedProcess:
        return ForkedProcess(_in(self._directory, work))

    def _fork_living(self) -> ForkedProcess:
        def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
            os.environ["XDG_RUNTIME_DIR"] = self._directory
            names = _open()
            step()
            for name in names:
                name.close()

        living = ForkedProcess(work)
        living.step()
        return living

    def begin_others(self) -> None:
        """Start the operations of another process."""
        self._others = self._fork(_others)

    def errors_of_others(self) -> list[str]:
        """Wait for the end of the other process; return its error texts."""
        assert self._others is not None
        return sorted(self._others.end()[1])

    def go_on(self) -> None:
        """Continue the stopped member, which ends as usual; check the objects."""
        os.kill(self.pid, signal.SIGCONT)
        self._victim.end()
        if self._living is not None:
            self._living.go_on()
            self._living.end()
        self._fork(_check_all).end()


def stop_at_each(points: list[str], base: str) -> tuple[list[str], list[tuple[str, str, int, str]]]:
    """Stop members at points, all at the same time; return the reached points, and the errors of others.

    An error comes with the point, the earlier member, and the id of the stopped process. Raises AssertionError if a
    member did not go on as expected.
    """
    befores = ("no member", "a dead member", "a living member")
    stopped = [
        Stopped(point, before, tempfile.mkdtemp(dir=base)) for point, before in itertools.product(points, befores)
    ]
    for each in stopped:
        each.begin_others()
    errors = [(each.point, each.before, each.pid, text) for each in stopped for text in each.errors_of_others()]
    for each in stopped:
        each.go_on()
    return sorted({each.point for each in stopped if each.is_stopped}), errors
