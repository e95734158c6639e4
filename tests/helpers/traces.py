"""Descriptors and mappings of connections in this process, which must be gone when the connections are."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGESIZE")


def descriptors() -> int:
    """Descriptors that are open."""
    return len(os.listdir("/proc/self/fd"))


def open_files() -> list[str]:
    """Return the open files of this process, ordered by descriptor."""
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(FileNotFoundError):  # The descriptor of the directory itself.
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def mappings() -> tuple[int, int]:
    """Return the number of mapped segments, semaphores and extents, and of all mappings."""
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    return sum("/dev/shm/" in line or "/memfd:shmrpc" in line for line in lines), len(lines)


def resident() -> int:
    """Bytes of memory that this process takes."""
    with open("/proc/self/statm") as memory:
        return int(memory.read().split()[1]) * _PAGE


def traces() -> tuple[int, int]:
    """Descriptors, and mappings of ours."""
    return descriptors(), mappings()[0]


def settled_descriptors() -> int:
    """Descriptors that are open, but for those that an earlier test left in a cycle, to be closed at any time."""
    gc.collect()
    return descriptors()


async def settled() -> tuple[int, int]:
    """Descriptors, and mappings of ours: a base line, once nothing of earlier tests is about to go.

    The sweeper's thread may have a channel in its hands that was just closed, which ends when it lets go of it.
    """
    gc.collect()
    before = None
    while (now := traces()) != before:
        before = now
        await asyncio.sleep(0.02)
    return now


async def gone(base: tuple[int, int], seconds: float = 20.0) -> bool:
    """Return True if descriptors and mappings return to their base line within a generous time."""
    end = time.monotonic() + seconds
    while traces() != base:
        if time.monotonic() > end:
            return False
        gc.collect()  # An error may hold, in a cycle, what its call had in its hands.
        await asyncio.sleep(0.002)
    return True
