"""Files to which the values of a store are saved.

::

     0  magic     16 bytes
    16  version   u32
    20  classes   u32   length of the classes in bytes
    24  values    u64   length of the values in bytes
    32  checksum  32 bytes: SHA-256 of all other parts
    64  classes   JSON: a list of names with the names of their fields
        values    see core/src/store/encoding.rs

All numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shmrpc.errors import DecodeError

_MAGIC: Final = b"\x89shmrpc-store\r\n\x1a"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<16sIIQ32s")
#: The suffix of files that are not complete.
_TEMPORARY_SUFFIX: Final = ".saving"
#: The offset of the checksum, in bytes. The checksum covers the bytes before and after itself.
_CHECKSUM_OFFSET: Final = 32

#: The fields of classes by the names of the classes, in the order of their numbers.
Classes = dict[str, tuple[str, ...]]


def write(path: Path, classes: Classes, values: bytearray) -> None:
    """Write the classes and the values of a store to a file: completely or not at all, even if the machine stops.

    Removes the temporary files that killed processes have left. Raises OSError.
    """
    known = json.dumps([[name, list(fields)] for name, fields in classes.items()]).encode()
    head = _HEADER.pack(_MAGIC, _VERSION, len(known), len(values), b"")
    head = head[:_CHECKSUM_OFFSET] + _checksum(head, known, values)
    target = _resolve_target(path)
    _remove_stale(target)
    try:
        _write_and_rename(target, (head, known, values))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _resolve_target(path: Path) -> Path:
    """Return the path to which a path leads by its links. Raises OSError if something but a regular file is there."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        what = "a link that leads to itself" if stat.S_ISLNK(mode) else "no regular file, and would be replaced by one"
        raise OSError(errno.EINVAL, f"a store cannot be saved there: it is {what}", str(path))
    return target


def _write_and_rename(target: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Write a temporary file beside the target, readable by this user alone, flush it, and rename it to the target.

    Raises OSError, after removing the temporary file.
    """
    descriptor, written = _open_temporary(target)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            if written is None:
                written = _temporary_path(target)
                # An absolute path needs no folder; but without one Python would link the link itself.
                os.link(f"/proc/self/fd/{file.fileno()}", written, src_dir_fd=file.fileno(), follow_symlinks=True)
            os.replace(written, target)
    except BaseException:
        if written is not None:
            with contextlib.suppress(OSError):
                written.unlink()
        raise


def _open_temporary(target: Path) -> tuple[int, Path | None]:
    """Open a temporary file beside the target; return its descriptor and its path, None for a file without a name.

    A file without a name leaves nothing behind if this process is killed. Where the file system has no such files, the
    file has a name, and is locked during the writing: see :func:`_remove_stale`. The caller closes the descriptor, and
    renames or removes the file. Raises OSError.
    """
    try:
        descriptor = os.open(target.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # The file system has no such files, or opening by a name raises the real error.
        pass
    else:
        if os.path.exists("/proc/self/fd"):
            _lock(descriptor)
            return descriptor, None
        os.close(descriptor)
    while True:
        written = _temporary_path(target)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor, written
        os.close(descriptor)  # Another process took the file for a stale one, and removed it before it was locked.


def _temporary_path(target: Path) -> Path:
    """Return a random path beside the target, which :func:`_remove_stale` recognizes."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")


def _lock(descriptor: int) -> None:
    """Lock a temporary file, so that other processes do not remove it as stale. Closing the descriptor unlocks it.

    Ignores an error.
    """
    with contextlib.suppress(OSError):  # A file system without locks: no other process can lock it either.
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove_stale(target: Path) -> None:
    """Remove the temporary files of processes that were killed while they saved to the same file. Ignores errors."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}{re.escape(_TEMPORARY_SUFFIX)}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Remove a file. Raises OSError if another process has locked the file, or it cannot be opened or removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[Classes, bytes]:
    """Return the classes and the values of a saved file.

    Raises OSError, and DecodeError for any other file, a damaged one, and one of another version.
    """
    data = path.read_bytes()
    if data[: len(_MAGIC)] != _MAGIC:
        raise DecodeError(f"{path} is not a saved store: the file begins with {data[:16]!r}")
    if len(data) < _HEADER.size:
        raise DecodeError(f"{path} is cut off: it has {len(data)} bytes, and its header alone has {_HEADER.size}")
    _, version, of_classes, of_values, checksum = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise DecodeError(
            f"{path} has format version {version}, and this version of shmrpc reads format version {_VERSION}"
        )
    size = _HEADER.size + of_classes + of_values
    if len(data) != size:
        raise DecodeError(f"{path} is damaged: it has {len(data)} bytes instead of the {size} in its header")
    known, values = data[_HEADER.size : _HEADER.size + of_classes], data[_HEADER.size + of_classes :]
    if _checksum(data, known, values) != checksum:
        raise DecodeError(f"{path} is damaged: its checksum is wrong")
    try:
        classes = {str(name): tuple(map(str, fields)) for name, fields in json.loads(known)}
    except (ValueError, TypeError) as error:
        raise DecodeError(f"{path} is damaged: its classes cannot be read ({error})") from None
    return classes, values


def _checksum(head: bytes, known: bytes, values: bytes | bytearray) -> bytes:
    """Return the SHA-256 of a file. ``head``: at least the bytes before the checksum."""
    made = hashlib.sha256(head[:_CHECKSUM_OFFSET])
    made.update(known)
    made.update(values)
    return made.digest()
