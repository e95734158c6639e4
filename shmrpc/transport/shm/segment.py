"""The shared memory segment of one connection, and its two semaphores if a side sleeps on one.

The names exist during the handshake only. The client unlinks them once it has opened them, if it may, and the server
does so in any case. Until then the server holds a flock on the segment, which shows a clean-up that the segment is in
use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from pathlib import Path
from typing import Final

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError, SharedMemoryError
from shmrpc.host import fork, resource_limits
from shmrpc.host.cleanup import SHM_DIRECTORY, is_segment, segment_name, semaphore_names
from shmrpc.host.exit_cleanup import release_at_forced_exit

if sys.version_info < (3, 14):
    import posix_ipc
else:  # posix_ipc has no wheels for these versions, and enables the GIL of a free-threaded interpreter.
    posix_ipc = None

#: Bytes of one ring at its full size. A connection with two of them must stay below 256 KiB.
RING_CAPACITY: Final = 64 << 10
#: Attempts to create a segment, in case a clean-up removes one before it is locked.
_TRIES: Final = 10


class NewSegment:
    """A segment that this process has created, with names.

    The creator calls :meth:`unlink` once the client has mapped it. ``for_uid``: user that gets access, besides its own
    user and root. ``semaphores``: True if it has semaphores. Raises SharedMemoryError if it cannot be created.
    """

    def __init__(self, service: str, for_uid: int = 0, *, semaphores: bool = True) -> None:
        self.capacity = RING_CAPACITY
        self._linked = False
        fork.abandon_in_child(self)
        release_at_forced_exit(self)
        try:
            self.file = self._create(service, semaphores)
            for name in self.semaphores or ():
                _core.create_semaphore(name)
            if for_uid not in (0, os.geteuid()):
                for path in (SHM_DIRECTORY / self.name, *map(_semaphore_path, self.semaphores or ())):
                    _grant_access(path, for_uid)
        except (OSError, MemoryError) as error:
            self.unlink()
            raise resource_limits.segment_error(error, _core.segment_memory(self.capacity)) from None
        except BaseException:
            self.unlink()
            raise

    def _create(self, service: str, semaphores: bool) -> _core.Descriptor:
        """Create the segment with its initial memory, hold a flock on it, and return its file.

        Raises SharedMemoryError if other processes lock or remove each segment of several attempts, OSError or
        MemoryError if a resource is missing.
        """
        for _ in range(_TRIES):
            # Marked as linked first, so that the names are unlinked whatever happens next.
            self.name = segment_name(service, os.urandom(16).hex())
            self.semaphores = semaphore_names(self.name) if semaphores else None
            self._linked = True
            file = _core.create_segment(self.name, self.capacity)
            if file is not None:
                return file
            self.unlink()  # A clean-up that has locked the file first may not remove it.
        raise SharedMemoryError(
            errno.EBUSY,
            f"no segment for a connection: each of {_TRIES} was locked or removed by another process: stop the "
            f"process that cleans {SHM_DIRECTORY}",
        )

    def unlink(self) -> None:
        """Unlink the names, the segment last, and close the file. Mappings stay. Idempotent."""
        if not self._linked:
            return
        unlink(self.name, self.semaphores)
        self._close()

    def __del__(self) -> None:
        """Unlink a segment that an exception, such as a signal handler's, has left linked."""
        if getattr(self, "_linked", False):
            self.unlink()

    def _close(self) -> None:
        """Close the file, if there is one, and leave the names alone from now on."""
        if hasattr(self, "file"):  # Otherwise it could not be created.
            self.file.close()
        self._linked = False

    def release(self) -> None:
        """Unlink the segment at exit; see :mod:`shmrpc.host.exit_cleanup`."""
        self.unlink()

    def abandon(self) -> None:
        """Close the file and keep the names, which belong to the parent of a forked child."""
        if self._linked:
            self._close()


def unlink(segment: str, semaphores: tuple[str, str] | None) -> None:
    """Unlink the names of a segment as far as permitted, the segment last. Ignores missing names and errors."""
    # Errors are ignored: a name that cannot be removed stays.
    for name in semaphores or ():
        _unlink_semaphore(name)
    with contextlib.suppress(OSError):
        os.unlink(f"{SHM_DIRECTORY}/{segment}")


def _unlink_semaphore(name: str) -> None:
    """Unlink a named semaphore as far as permitted. Ignores errors."""
    if posix_ipc is None:
        with contextlib.suppress(OSError):
            os.unlink(_semaphore_path(name))  # On Linux, sem_unlink() does the same.
        return
    with contextlib.suppress(posix_ipc.Error, OSError):
        posix_ipc.unlink_semaphore(f"/{name}")


def _semaphore_path(name: str) -> Path:
    """Return the path of the file of a semaphore."""
    return SHM_DIRECTORY / f"sem.{name}"


# A POSIX ACL in the kernel's format: a version, then entries of kind, permissions and user.
_ACL_VERSION: Final = struct.pack("=I", 2)
_ACL_ENTRY: Final = struct.Struct("=HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID: Final = 0xFFFF_FFFF
_READ_WRITE: Final = 6


def _grant_access(path: Path, uid: int) -> None:
    """Give exactly one more user access to a file of this user. Raises SharedMemoryError if the tmpfs has no ACLs."""
    entries = (
        (_OWNER, _READ_WRITE, _NO_ID),
        (_USER, _READ_WRITE, uid),
        (_GROUP, 0, _NO_ID),
        (_MASK, _READ_WRITE, _NO_ID),
        (_OTHERS, 0, _NO_ID),
    )
    acl = _ACL_VERSION + b"".join(_ACL_ENTRY.pack(*entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl, follow_symlinks=False)
    except OSError as error:
        raise SharedMemoryError(
            error.errno,
            f"uid {uid} cannot get access to a segment of uid {os.geteuid()}: {SHM_DIRECTORY} takes no access list "
            f"({error.strerror}); mount a tmpfs with CONFIG_TMPFS_POSIX_ACL there, or serve as one user",
        ) from None


def open_segment(name: str, owner: int) -> _core.Descriptor:
    """Open the segment that a server of user ``owner`` has named, and return its file, which the caller closes.

    Raises RemoteProtocolError if the name is invalid, or leads to no segment of that user; SharedMemoryError if this
    process lacks a resource.
    """
    if not is_segment(name):
        raise RemoteProtocolError(
            f"the server named a segment {name[:300]!r} that cannot be opened: no segment has such a name"
        )
    try:
        file, found = _core.open_segment(name)
    except OSError as error:
        explained = resource_limits.explain_os_error(error)
        if isinstance(explained, SharedMemoryError):
            raise explained from None
        if not os.path.isdir(SHM_DIRECTORY):  # Not the server's fault.
            raise resource_limits.segment_error(error, 0) from None
        raise RemoteProtocolError(
            f"the server named a segment {name!r} that cannot be opened: {error}. Both sides need the same "
            f"{SHM_DIRECTORY} (for containers: docker run --ipc=host, or --ipc=container:NAME)"
        ) from None
    if found != owner:
        file.close()
        raise RemoteProtocolError(f"the server (uid {owner}) named a segment {name!r} that belongs to uid {found}")
    return file


def check_semaphores(names: tuple[str, str] | None, segment: str, *, wanted: bool) -> None:
    """Raise RemoteProtocolError unless these are the semaphores of the segment, or none if none are ``wanted``.

    The channel opens the semaphores and checks who owns their files. Otherwise a server of another user could make this
    process post semaphores that the server has no access to.
    """
    if names != (semaphore_names(segment) if wanted else None):
        raise RemoteProtocolError(f"the server named semaphores {names!r} that are not those of {segment!r}")
