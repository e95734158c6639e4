"""Errors for a process or a host that runs out of descriptors, shared memory, memory or files."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path
from typing import Final

from shmrpc.errors import LocalProtocolError, SharedMemoryError
from shmrpc.host.cleanup import SHM_DIRECTORY

#: Error numbers for a lack of descriptors in this process, or on the whole host.
NO_DESCRIPTOR_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)

#: Maximum number of files of a handshake at a time: the segment, and a semaphore has two while it is created.
_HANDSHAKE_FILES: Final = 4


def no_descriptor_error(number: int, purpose: str = "for a connection") -> SharedMemoryError:
    """Return the error for a lack of descriptors. ``number``: EMFILE or ENFILE; ``purpose``: words for the message."""
    if number == errno.ENFILE:
        why = "this host has as many files open as it allows (sysctl fs.file-max)"
    else:
        limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
        why = (
            f"process {os.getpid()} has as many files open as it may: {limit:,} (RLIMIT_NOFILE, up to {maximum:,}). "
            "Raise it: ulimit -n (for a service of systemd: LimitNOFILE=)"
        )
    return SharedMemoryError(number, f"no descriptor left {purpose}: {why}")


def rendezvous_error(error: OSError, directory: Path, purpose: str) -> Exception | None:
    """Return the error for a runtime directory that is full or read-only, or for a lack of descriptors.

    Returns a SharedMemoryError, a LocalProtocolError if it is read-only, and None for any other cause. ``directory``:
    the existing directory that ``error`` is about. ``purpose``: words for the message.
    """
    number = descriptor_errno(error)
    if number is not None:
        return no_descriptor_error(number, purpose)
    elsewhere = "or set $XDG_RUNTIME_DIR (for several users: $SHMRPC_DIRECTORY) to another directory on both sides"
    if error.errno == errno.EROFS:
        return LocalProtocolError(
            f"{directory} is on a read-only file system, so nothing can be created there {purpose}; mount it "
            f"read-write, {elsewhere}"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        there = os.statvfs(directory)
        files = f", and {there.f_favail:,} of its {there.f_files:,} files" if there.f_files else ""
        quota = " (or the quota of this user)" if error.errno == errno.EDQUOT else ""
        return SharedMemoryError(
            error.errno,
            f"the file system of {directory}{quota} is full: two files and {there.f_frsize:,} bytes are needed "
            f"{purpose}; {there.f_bavail * there.f_frsize:,} of its {there.f_blocks * there.f_frsize:,} bytes are "
            f"free{files}. Make room, {elsewhere}",
        )
    return None


def shm_full_error(number: int, size: int) -> SharedMemoryError:
    """Return the error for a connection without room for a segment of ``size`` bytes, or for its semaphores.

    ``number``: the errno. Examines the file system of shared memory to tell a lack of files from a lack of bytes.
    """
    there = os.statvfs(SHM_DIRECTORY)
    if there.f_files and there.f_favail < _HANDSHAKE_FILES:
        return SharedMemoryError(
            number,
            f"{SHM_DIRECTORY} is full: a connection needs {_HANDSHAKE_FILES} files, and {there.f_favail:,} of "
            f"{there.f_files:,} are free. Raise it: mount -o remount,nr_inodes=1M {SHM_DIRECTORY}",
        )
    return SharedMemoryError(
        number,
        f"{SHM_DIRECTORY} is full: a connection needs {size:,} bytes and two pages; "
        f"{there.f_bavail * there.f_frsize:,} of {there.f_blocks * there.f_frsize:,} are free. Raise it: "
        f"mount -o remount,size=1G {SHM_DIRECTORY} (in a container: docker run --shm-size=1g)",
    )


def descriptor_errno(error: Exception) -> int | None:
    """Return the errno of an error that is a lack of descriptors; return None for any other error."""
    return error.errno if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR_ERRNOS else None


def no_memory_error() -> SharedMemoryError:
    """Return the error for a connection whose memory this process cannot map."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit_text = "" if limit == resource.RLIM_INFINITY else f" (it may have {limit:,} bytes of addresses: RLIMIT_AS)"
    return SharedMemoryError(
        errno.ENOMEM,
        f"no memory left for a connection: process {os.getpid()} cannot map more{limit_text}. Raise its limit: "
        "ulimit -v, sysctl vm.max_map_count, or that of its container's memory",
    )


def explain_os_error(error: OSError) -> OSError:
    """Return an error that names a remedy if the cause is a lack of descriptors or memory, else the same error."""
    number = descriptor_errno(error)
    if number is not None:
        return no_descriptor_error(number)
    if error.errno == errno.ENOMEM and not isinstance(error, SharedMemoryError):
        return no_memory_error()
    return error


def segment_error(error: Exception, size: int) -> SharedMemoryError:
    """Return the error for a connection whose segment or semaphores could not be created or opened.

    Examines the directory of shared memory, because the error number does not tell whose fault the error is.
    """
    if isinstance(error, MemoryError):  # Python raises it for ENOMEM.
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC or (error.errno == errno.ENOMEM and _is_full(size)):
            return shm_full_error(error.errno or errno.ENOSPC, size)
        known = explain_os_error(error)
        if isinstance(known, SharedMemoryError):
            return known
    number, why = _find_directory_fault() or (getattr(error, "errno", None) or errno.EIO, str(error))
    return SharedMemoryError(number, f"no segment for a connection: {why}")


def _is_full(size: int) -> bool:
    """Return True if the directory of shared memory lacks room for a segment of this size and two pages, or files."""
    there = os.statvfs(SHM_DIRECTORY)
    full = there.f_blocks > 0 and there.f_bavail * there.f_frsize < size + 2 * there.f_frsize
    return full or (there.f_files > 0 and there.f_favail < _HANDSHAKE_FILES)


def _find_directory_fault() -> tuple[int, str] | None:
    """Return the errno and the reason why no file can be created in shared memory; return None if none is found."""
    try:
        status = os.stat(SHM_DIRECTORY)
    except OSError as error:
        return error.errno or errno.ENOENT, (
            f"{SHM_DIRECTORY} cannot be used ({error.strerror}). Give this host, chroot or container one: "
            f"mount -t tmpfs -o mode=1777 tmpfs {SHM_DIRECTORY}"
        )
    if not stat.S_ISDIR(status.st_mode):
        return errno.ENOTDIR, f"{SHM_DIRECTORY} is not a directory; create one, and mount a tmpfs there"
    if os.statvfs(SHM_DIRECTORY).f_flag & os.ST_RDONLY:
        return errno.EROFS, f"{SHM_DIRECTORY} is mounted read-only; run: mount -o remount,rw {SHM_DIRECTORY}"
    if not os.access(SHM_DIRECTORY, os.W_OK | os.X_OK, effective_ids=True):
        return errno.EACCES, (
            f"uid {os.geteuid()} cannot make files in {SHM_DIRECTORY} (it belongs to uid {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}); run: chmod 1777 {SHM_DIRECTORY}"
        )
    return None
