"""Shared objects and their members, as any process sees them without opening the objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

from shmrpc._core import SharedObject
from shmrpc.errors import ShmrpcError
from shmrpc.objects import lock_files
from shmrpc.topics.topic_base import Subscriber


@dataclasses.dataclass(frozen=True)
class Member:
    """A process that has a shared object open."""

    #: The id of the process; 0 for one of another container.
    pid: int
    #: The time, in UTC, at which it opened the object.
    since: datetime
    #: The number of permits it holds, of a semaphore, a lock or a memory's lock; of a queue, the items it has claimed.
    holds: int


@dataclasses.dataclass(frozen=True)
class PublisherReport:
    """A publisher of a topic."""

    #: The id of its process; 0 for one of another container.
    pid: int
    #: A number that no other publisher of this topic has, before or after.
    number: int
    #: The number of messages it has published; None if this process cannot see it, as in another container.
    messages: int | None
    #: The bytes of these messages; None as well.
    bytes: int | None


@dataclasses.dataclass(frozen=True)
class ObjectReport:
    """The state of a shared object."""

    #: "memory", "semaphore", "lock", "event", "signal", "queue", "topic" or "store".
    kind: str
    name: str
    #: Bytes of shared memory, including metadata; of a queue or a topic, the present size.
    size: int
    #: Items that wait in a queue; None for other kinds.
    depth: int | None
    #: The number of threads and loops of all processes that wait for it.
    waiters: int
    members: list[Member]
    #: True if its items or messages are bytes.
    raw: bool
    #: The publishers of a topic; None for other kinds.
    publishers: list[PublisherReport] | None
    #: The subscribers of a topic, with their lag behind all present publishers; None for other kinds.
    subscribers: list[Subscriber] | None


def members(name: str) -> list[Member]:
    """Return the processes that have a shared object of this name open; an empty list if there are none.

    Raises ValueError or TypeError for an invalid name, LocalProtocolError if the directory of shared objects is not
    safe, and another ShmrpcError if the state of the object cannot be read.
    """
    report = inspect_object(name)
    return [] if report is None else report.members


def inspect_object(name: str) -> ObjectReport | None:
    """Return the state of the object of this name without opening the object; None if it has no members.

    Raises the errors of :func:`members`.
    """
    for path in lock_files.list_lock_files(name):
        if (report := _inspect(name, path)) is not None:
            return report
    return None


def inspect_all_objects(on_error: Callable[[str], None]) -> list[ObjectReport]:
    """Return the states of all objects that have members, without opening them.

    Call ``on_error(text)`` for each object whose state cannot be read, and leave that object out. Raises
    LocalProtocolError if the directory of shared objects is not safe.
    """
    reports = []
    for name, path in lock_files.list_names():
        try:
            report = _inspect(name, path)
        except ShmrpcError as error:
            on_error(str(error))
            continue
        if report is not None:
            reports.append(report)
    return reports


def _inspect(name: str, path: str) -> ObjectReport | None:
    """Return the state of the object with this lock file; None if it has no members.

    Raises a ShmrpcError if the state cannot be read, for example RemoteProtocolError for one of another version.
    """
    state = SharedObject.inspect(name, path)
    if state is None:
        return None
    members = [Member(pid, datetime.fromtimestamp(since / 1e9, UTC), holds) for pid, since, holds in state["members"]]
    publishers = subscribers = None
    if state["topic"] is not None:
        publishing, subscribing = state["topic"]
        publishers = [PublisherReport(pid, number, *(counts or (None, None))) for pid, number, counts in publishing]
        subscribers = [Subscriber(**each) for each in subscribing]
    return ObjectReport(
        kind=state["kind"],
        name=name,
        size=state["size"],
        depth=state["depth"],
        waiters=state["waiters"],
        members=members,
        raw=state["raw"],
        publishers=publishers,
        subscribers=subscribers,
    )
