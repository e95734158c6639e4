"""Who has a name open, seen from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

from shmrpc._core import Name
from shmrpc.errors import ShmrpcError
from shmrpc.objects import lock_files
from shmrpc.topics.topic_base import Subscriber


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
class Publishing:
    """A publisher of a topic, seen from outside."""

    #: Its process; 0 for one of another container.
    pid: int
    #: One that no other publisher of this topic has, before or after.
    number: int
    #: How many messages it has published; None if that cannot be seen from here, as of one in another container.
    messages: int | None
    #: The bytes of these.
    bytes: int | None


@dataclasses.dataclass(frozen=True)
class Report:
    """What can be seen of a name."""

    #: "memory", "semaphore", "lock", "event", "queue", "topic" or "store"
    kind: str
    name: str
    #: Bytes of shared memory, with what it takes to keep order in it; of a queue or a topic, those that it has now.
    size: int
    #: Items that wait; None if it is no queue.
    depth: int | None
    #: How many threads and loops of all processes wait for it.
    waiters: int
    members: list[Member]
    #: Whether its items or messages are bytes.
    raw: bool
    #: Of a topic, those that publish; None if it is none.
    publishers: list[Publishing] | None
    #: Of a topic, those that subscribe: how many messages they are behind, and have missed, of all that publish now.
    subscribers: list[Subscriber] | None


def members(name: str) -> list[Member]:
    """Lists the processes that have a name open: a memory, semaphore, lock, event, queue, topic or store.

    Raises LocalProtocolError if the directory where names are met is not safe.
    """
    found = report_of(name)
    return [] if found is None else found.members


def report_of(name: str) -> Report | None:
    """Collects what can be seen of a name; None if it has no members. Raises as :func:`members` does."""
    for path in lock_files.candidate_paths(name):
        if (report := _look(name, path)) is not None:
            return report
    return None


def reports(silent: Callable[[str], None]) -> list[Report]:
    """Collects what can be seen of all names that have members; ``silent`` is called for each of which nothing can."""
    found = []
    for name, path in lock_files.names_and_paths():
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
    publishers = subscribers = None
    if found["topic"] is not None:
        publishing, subscribing = found["topic"]
        publishers = [Publishing(pid, number, *(counts or (None, None))) for pid, number, counts in publishing]
        subscribers = [Subscriber(**each) for each in subscribing]
    return Report(
        kind=found["kind"],
        name=name,
        size=found["size"],
        depth=found["depth"],
        waiters=found["waiters"],
        members=there,
        raw=found["raw"],
        publishers=publishers,
        subscribers=subscribers,
    )
