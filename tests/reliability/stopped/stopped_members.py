"""Members of names that stand still at a native point, and what others can do meanwhile and afterwards."""

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
from tests.reliability.name_users import HANGS, Outcomes, Told

#: Seconds of the deadlines of the others.
_SOON: Final = 0.2

Work = Callable[[Outcomes, Callable[[], None]], None]


def _in(directory: str, work: Callable[[Outcomes], None]) -> Work:
    """Work of a process that meets others in a directory of their own."""

    def there(outcomes: Outcomes, step: Callable[[], None]) -> None:
        os.environ["XDG_RUNTIME_DIR"] = directory
        work(outcomes)

    return there


def _open() -> tuple[Any, ...]:
    return (
        shmrpc.sync.Semaphore("gpu", 2),
        shmrpc.sync.Lock("config"),
        shmrpc.sync.Event("go"),
        shmrpc.sync.Signal("ready"),
    )


def _use() -> None:
    """What a member does that is stopped somewhere."""
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
    """All that another process tries meanwhile, each with its deadline."""
    outcomes.kept = shmrpc.ShmrpcError
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


def _finds_all(outcomes: Outcomes) -> None:
    """Nothing is lost or doubled once it has gone on."""
    gate, lock, go, _ = names = _open()
    for each in (gate, gate, lock):
        each.acquire(HANGS)
    assert {each.pid: each.holds for each in shmrpc.members("gpu")} == {os.getpid(): 2}
    go.set()
    go.wait(HANGS)
    for name in names:
        name.close()


class Stopped:
    """A member that is stopped at a point, in a directory of its own; before it there was nobody, or a dead member."""

    def __init__(self, point: str, before: str, directory: str) -> None:
        self.point, self.before = point, before
        self._directory = directory
        if before == "a dead member":
            self._told(_die).killed()
        self._living = self._told_open() if before == "a living member" else None
        self._victim = self._told(_stops(point))
        self.pid = self._victim.pid
        ended = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        #: Whether it has come to the point.
        self.is_stopped = ended is not None and ended.si_code == os.CLD_STOPPED
        self._others: Told | None = None

    def _told(self, work: Callable[[Outcomes], None]) -> Told:
        return Told(_in(self._directory, work))

    def _told_open(self) -> Told:
        def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
            os.environ["XDG_RUNTIME_DIR"] = self._directory
            names = _open()
            step()
            for name in names:
                name.close()

        living = Told(work)
        living.step()
        return living

    def begin_others(self) -> None:
        """Others begin to use the names."""
        self._others = self._told(_others)

    def errors_of_others(self) -> list[str]:
        """What others were told, once they have ended."""
        assert self._others is not None
        return sorted(self._others.end()[1])

    def go_on(self) -> None:
        """It goes on, and ends as ever; others find all."""
        os.kill(self.pid, signal.SIGCONT)
        self._victim.end()
        if self._living is not None:
            self._living.go_on()
            self._living.end()
        self._told(_finds_all).end()


def stop_at_each(points: list[str], base: str) -> tuple[list[str], list[tuple[str, str, int, str]]]:
    """Lets members stop at points, all at the same time. Which points were passed, and what others were told.

    The latter with the point, who was there before, and the id of the process that is stopped. Raises AssertionError if
    anything went on otherwise than it should.
    """
    befores = ("nobody", "a dead member", "a living member")
    stopped = [
        Stopped(point, before, tempfile.mkdtemp(dir=base)) for point, before in itertools.product(points, befores)
    ]
    for each in stopped:
        each.begin_others()
    told = [(each.point, each.before, each.pid, text) for each in stopped for text in each.errors_of_others()]
    for each in stopped:
        each.go_on()
    return sorted({each.point for each in stopped if each.is_stopped}), told
