"""Blocks of shared memory that a program fills itself."""

from __future__ import annotations

import errno
import os

from shmrpc import _core
from shmrpc.errors import SharedMemoryError


def allocate(channel: _core.Channel, size: int) -> _core.Block:
    """A block of at least so many bytes; SharedMemoryError if there is none."""
    try:
        return channel.allocate(max(size, 1))
    except (_core.NoMemory, OverflowError) as error:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        raise SharedMemoryError(
            errno.ENOMEM,
            f"no shared memory for a buffer: {error}; {free:,} bytes of this host's memory are free. Let go of arrays "
            "that were sent or received, or raise max_memory= on both sides. (These buffers have no files: "
            "the size of /dev/shm does not limit them.)",
        ) from None
