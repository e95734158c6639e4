"""The segment of one connection and its two semaphores: made, opened, unlinked.

The names exist for the time of the handshake alone. Until they are unlinked the server holds a flock on
the segment, so that a clean-up can tell whether its maker lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from typing import Final

import posix_ipc

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError, SharedMemoryError
from shmrpc.transport.shm import fork
from shmrpc.transport.shm.cleanup import SHM_DIRECTORY, is_segment, segment_name, semaphore_names

#: Bytes of one ring. Two of them, and all else that a connection takes, are to stay below 256 KiB.
RING_CAPACITY: Final = 64 << 10


class NewSegment:
    """A segment that this process has made, with its names still there."""

    def __init__(self, service: str) -> None:
        self.capacity = RING_CAPACITY
        self.descriptor, self.name = _create_locked(service)
        self.semaphores = semaphore_names(self.name)
        self._linked = True
        fork.close_in_child(self)
        try:
            _allocate(self.descriptor, _core.segment_size(self.capacity))
            for name in self.semaphores:
                posix_ipc.Semaphore(f"/{name}", posix_ipc.O_CREX, mode=0o600).close()
        except BaseException:
            self.unlink()
            raise

    def unlink(self) -> None:
        """Removes the names and gives the descriptor back; mappings stay. The segment goes last."""
        if not self._linked:
            return
        self._linked = False
        for name in self.semaphores:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_semaphore(f"/{name}")
        with contextlib.suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(f"/{self.name}")
        os.close(self.descriptor)

    def abandon(self) -> None:
        """Closes the descriptor and leaves the names: in a forked child they are the parent's."""
        if self._linked:
            self._linked = False
            os.close(self.descriptor)


def _create_locked(service: str) -> tuple[int, str]:
    """A new segment with our flock on it, and its name."""
    while True:
        name = segment_name(service, secrets.token_hex(16))
        try:
            descriptor = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=0o600).fd
        except OSError as error:
            raise SharedMemoryError(error.errno, f"cannot create a segment: {error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A clean-up that came between creation and lock took it for dead: then it has no name.
            if os.fstat(descriptor).st_nlink:
                return descriptor, name
        except BlockingIOError:
            pass
        os.close(descriptor)


def _allocate(descriptor: int, size: int) -> None:
    """Sets the memory aside now, so that a full /dev/shm is an error here and not a SIGBUS later."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        space = os.statvfs(SHM_DIRECTORY)
        raise SharedMemoryError(
            error.errno,
            f"{SHM_DIRECTORY} is full: a connection needs {size:,} bytes, {space.f_bavail * space.f_frsize:,} of "
            f"{space.f_blocks * space.f_frsize:,} are free. Raise it: mount -o remount,size=1G {SHM_DIRECTORY} "
            "(in a container: docker run --shm-size=1g)",
        ) from None


def open_segment(name: str) -> int:
    """Opens the segment that a server has named; a descriptor."""
    if not is_segment(name):  # Some names are more than the library that opens them can take: it crashes.
        raise RemoteProtocolError(
            f"the server named a segment {name[:300]!r} that cannot be opened: none has such a name"
        )
    try:
        descriptor: int = posix_ipc.SharedMemory(f"/{name}").fd
    except (posix_ipc.Error, OSError, ValueError) as error:
        raise RemoteProtocolError(f"the server named a segment {name!r} that cannot be opened: {error}") from None
    return descriptor
