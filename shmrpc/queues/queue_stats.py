"""Counts and claims of a queue, as any process sees them."""

from __future__ import annotations

import dataclasses
from typing import Any

from shmrpc.errors import DecodeError
from shmrpc.host.processes import describe_member, describe_stopped


@dataclasses.dataclass(frozen=True)
class HeldItem:
    """An item of a queue that a process has claimed."""

    #: The id of the process; 0 for one of another container.
    pid: int
    #: Seconds since it was claimed.
    held_for: float
    #: The number of deliveries of the item, including this one.
    deliveries: int


@dataclasses.dataclass(frozen=True)
class WaitingItem:
    """An item of a queue that waits."""

    #: The item's position in the order in which all items were put, from 0 on.
    number: int
    #: The number of deliveries after which the item came back.
    deliveries: int
    #: The bytes of the item in the queue.
    size: int
    #: True if the item has over 16 KiB: then it was not copied, and ``value`` is None.
    is_large: bool
    #: The item; None if it is large or cannot be read.
    value: Any
    #: The error if it cannot be read; None if it can.
    error: DecodeError | None


@dataclasses.dataclass(frozen=True)
class QueueStats:
    """Counts of a queue, and its claims."""

    #: Items that wait.
    depth: int
    #: Items that were ever put.
    put: int
    #: Items that were put and are not done.
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
    #: Items of ended claims to whose arrays the program still refers, so that their memory stays in use.
    viewed: int
    #: Threads and loops of all processes that wait for an item.
    getters: int
    #: Threads and loops of all processes that wait for room.
    putters: int


def describe_claim_holders(stats: QueueStats) -> str:
    """Return the text that names the processes with claims and counts the ended claims whose memory is in use.

    The text continues a sentence, after "; ". It is empty if there are neither.
    """
    by_process: dict[int, int] = {}
    for each in stats.held:
        by_process[each.pid] = by_process.get(each.pid, 0) + 1
    named = [f"{describe_member(pid)} holds {count}{describe_stopped(pid)}" for pid, count in by_process.items()]
    if stats.viewed:
        named.append(f"arrays of {stats.viewed} claims that have ended are still referred to")
    return f"; {', '.join(named)}" if named else ""
