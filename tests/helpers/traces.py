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
    """Return the number of open descriptors."""
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
    """Return the bytes of this process's resident memory."""
    with open("/proc/self/statm") as memory:
        return int(memory.read().split()[1]) * _PAGE


def traces() -> tuple[int, int]:
    """Return the numbers of descriptors, and of mappings of shmrpc."""
    return descriptors(), mappings()[0]


def settled_descriptors() -> int:
    """Return the number of open descriptors after collecting those that earlier tests left in reference cycles."""
    gc.collect()
    return descriptors()


async def settled() -> tuple[int, int]:
    """Return descriptors and mappings as a base line, once those of earlier tests are gone.

    The sweeper's thread may still refer to a closed channel, whose descriptors close when it is done.
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
        gc.collect()  # The traceback of an error may hold, in a cycle, the arrays of its call.
        await asyncio.sleep(0.002)
    return True
