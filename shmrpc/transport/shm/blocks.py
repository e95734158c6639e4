"""Blocks of shared memory that a program fills itself."""

from __future__ import annotations

import errno
import os
import select
import socket

from shmrpc import _core
from shmrpc.errors import ConnectionLost, SharedMemoryError


def allocate(channel: _core.Channel, size: int, control: socket.socket) -> _core.Block:
    """A block of at least so many bytes; SharedMemoryError if there is none, ConnectionLost if nobody is there for it.

    ``control``: what the peer holds the other end of as long as it lives.
    """
    try:
        return channel.allocate(max(size, 1))
    except (_core.NoMemory, OverflowError) as error:
        if _has_hung_up(control):  # Perhaps only a moment ago, and nobody has read it yet.
            raise ConnectionLost("the peer is gone: it died, or was killed") from None
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        raise SharedMemoryError(
            errno.ENOMEM,
            f"no shared memory for a buffer: {error}; {free:,} bytes of this host's memory are free. Let go of arrays "
            "that were sent or received, or raise max_memory= of connect() or serve(). (These buffers have no files: "
            "the size of /dev/shm does not limit them.)",
        ) from None


def _has_hung_up(control: socket.socket) -> bool:
    """Whether nobody has the other end."""
    descriptor = control.fileno()
    if descriptor < 0:  # This side has closed its own.
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
