"""Who has a name open, seen from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

from shmrpc._core import Name
from shmrpc.equals import places
from shmrpc.errors import ShmrpcError


@dataclasses.dataclass(frozen=True)
class Member:
    """A process that has a name open."""

    #: Its id; 0 for a process of another container.
    pid: int
    #: When it opened the name.
    since: datetime
    #: How many permits it has, of a semaphore, a lock or a memory's lock; or items of a queue that it has claimed.
    holds: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What can be seen of a name."""

    #: "memory", "semaphore", "lock", "event" or "queue"
    kind: str
    name: str
    #: Bytes of shared memory, with what it takes to keep order in it; of a queue, those that it has now.
    size: int
    #: Items that wait; None if it is no queue.
    depth: int | None
    #: How many threads and loops of all processes wait for it.
    waiters: int
    members: list[Member]


def members(name: str) -> list[Member]:
    """Lists the processes that have a memory, a semaphore, a lock, an event or a queue of this name open.

    Raises LocalProtocolError if the directory where names are met is not safe.
    """
    for path in places.lock_files(name):
        if (report := _look(name, path)) is not None:
            return report.members
    return []


def reports(silent: Callable[[str], None]) -> list[Report]:
    """Collects what can be seen of all names that have members; ``silent`` is called for each of which nothing can."""
    found = []
    for name, path in places.names():
        try:
            report = _look(name, path)
        except ShmrpcError as error:
            silent(str(error))
            continue
        if report is not None:
            found.append(report)
    return found


def _look(name: str, path: str) -> Report | None:
    found = Name.look(name, path)
    if found is None:
        return None
    there = [Member(pid, datetime.fromtimestamp(since / 1e9, UTC), holds) for pid, since, holds in found["members"]]
    return Report(found["kind"], name, found["size"], found["depth"], found["waiters"], there)
