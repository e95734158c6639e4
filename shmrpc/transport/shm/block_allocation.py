"""Allocation of blocks of shared memory that a program fills itself."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from shmrpc import _core
from shmrpc.basics.green_threads import new_poll
from shmrpc.errors import ConnectionLost, SharedMemoryError
from shmrpc.host import resource_limits

#: Milliseconds within which the kernel closes all descriptors of a process, once it has closed the first.
_DYING: Final = 100
#: Limits to raise, by errno.
_LIMITS: Final = {
    errno.ENOMEM: "this process's address space (ulimit -v), its mappings (sysctl vm.max_map_count) or the memory of "
    "its container",
    errno.ETOOMANYREFS: "its limit of open files (ulimit -n), under which those fall that the peer has not taken yet",
}


def allocate(channel: _core.Channel, size: int, server: socket.socket | None = None) -> _core.Buffer:
    """Allocate a block of at least ``size`` bytes, and of at least one. Raises SharedMemoryError if that fails.

    ``server``: control socket, in a client. Raises ConnectionLost if the server has died, even if no other call has
    noticed, for which this call may block for 0.1 s, and ChannelError if the channel is closed.
    """
    try:
        return channel.allocate(max(size, 1))
    except (_core.NoMemory, OverflowError) as error:
        if server is not None and isinstance(error, _core.Unheard) and has_hung_up(server):
            raise ConnectionLost("the server is gone: it died, or was killed") from None
        raise _explain(error) from None


def _explain(error: Exception) -> SharedMemoryError:
    """Return the error for an allocation that failed, with the limit to raise."""
    number = getattr(error, "errno", None)
    if number in resource_limits.NO_DESCRIPTOR_ERRNOS:
        return resource_limits.no_descriptor_error(number, "for a buffer in shared memory")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return SharedMemoryError(
        number or errno.ENOMEM,
        f"no shared memory for a buffer: {error}; {free:,} bytes of this host's memory are free: release arrays that "
        f"were sent or received, or raise {_LIMITS.get(number or 0, 'max_memory= on both sides')} "
        "(buffers have no files: the size of /dev/shm does not limit them)",
    )


def has_hung_up(control: socket.socket) -> bool:
    """Block at most 0.1 s until the other end is closed; return True if it is, or if this end is."""
    descriptor = control.fileno()
    if descriptor < 0:  # This side has closed its own end.
        return True
    poll = new_poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(_DYING))
