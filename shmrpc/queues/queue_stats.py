"""What can be seen of a queue."""

from __future__ import annotations

import dataclasses
from typing import Any

from shmrpc.errors import DecodeError
from shmrpc.host.processes import describe_member, describe_stopped


@dataclasses.dataclass(frozen=True)
class HeldItem:
    """An item of a queue that a process has claimed."""

    #: The process; 0 for one of another container.
    pid: int
    #: For how long, in seconds.
    held_for: float
    #: How often the item was delivered, this time among them.
    deliveries: int


@dataclasses.dataclass(frozen=True)
class WaitingItem:
    """An item of a queue that waits."""

    #: Its place in the order in which all items were put, from 0 on.
    number: int
    #: How often it was delivered, and came back.
    deliveries: int
    #: The bytes that it has in the queue.
    size: int
    #: Whether it has over 16 KiB: then it was not copied, and ``value`` is None.
    is_large: bool
    #: The item; None if it is large or cannot be read.
    value: Any
    #: Why it cannot be read; None if it can.
    error: DecodeError | None


@dataclasses.dataclass(frozen=True)
class QueueStats:
    """What can be seen of a queue."""

    #: Items that wait.
    depth: int
    #: Items that were ever put.
    put: int
    #: Items that were put, and of which nobody has said that they are done.
    unfinished: int
    #: Dead letters.
    dead: int
    is_shut_down: bool
    #: Bytes of memory with items in them.
    used: int
    #: Bytes of memory that the queue has, of ``max_memory``.
    memory: int
    max_memory: int
    maxsize: int
    #: The claims that have not ended.
    held: list[HeldItem]
    #: Items of claims that have ended, whose arrays are still referred to: their memory is in use as long as that.
    viewed: int
    #: Threads and loops of all processes that wait for an item.
    getters: int
    #: The same of those that wait for room.
    putters: int


def holders(stats: QueueStats) -> str:
    """Who holds claims, or memory of such that have ended."""
    by_process: dict[int, int] = {}
    for each in stats.held:
        by_process[each.pid] = by_process.get(each.pid, 0) + 1
    named = [f"{describe_member(pid)} holds {count}{describe_stopped(pid)}" for pid, count in by_process.items()]
    if stats.viewed:
        named.append(f"arrays of {stats.viewed} claims that have ended are still referred to")
    return f"; {', '.join(named)}" if named else ""
