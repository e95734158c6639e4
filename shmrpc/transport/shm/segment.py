"""The segment of one connection and its two semaphores: made, opened, unlinked.

The names exist for the time of the handshake alone. Until they are unlinked the server holds a flock on
the segment, so that a clean-up can tell whether its maker lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from typing import Final

import posix_ipc

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError, SharedMemoryError
from shmrpc.transport.shm import fork, wants
from shmrpc.transport.shm.cleanup import segment_name, semaphore_names

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
        size = _core.segment_size(self.capacity)
        try:
            # Set aside now, so that a full /dev/shm is an error here and not a SIGBUS later.
            os.posix_fallocate(self.descriptor, 0, size)
            for name in self.semaphores:
                posix_ipc.Semaphore(f"/{name}", posix_ipc.O_CREX, mode=0o600).close()
        except OSError as error:
            self.unlink()
            raise wants.explained(error, size) from None
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
        except posix_ipc.ExistentialError:
            continue
        except OSError as error:
            known = wants.explained(error, _core.segment_size(RING_CAPACITY))
            if known is error:
                known = SharedMemoryError(error.errno, f"cannot create a segment: {error}")
            raise known from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A clean-up that came between creation and lock took it for dead: then it has no name.
            if os.fstat(descriptor).st_nlink:
                return descriptor, name
        except BlockingIOError:
            pass
        os.close(descriptor)


def open_segment(name: str) -> int:
    """Opens the segment that a server has named; a descriptor."""
    try:
        descriptor: int = posix_ipc.SharedMemory(f"/{name}").fd
    except (posix_ipc.Error, OSError, ValueError) as error:
        if (number := wants.descriptor_error(error)) is not None:
            raise wants.descriptors(number) from None
        raise RemoteProtocolError(f"the server named a segment {name!r} that cannot be opened: {error}") from None
    return descriptor
