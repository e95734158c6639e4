"""Files that what is in a store is saved to.

::

     0  magic     16 bytes
    16  version   u32
    20  classes   u32   bytes of the classes
    24  values    u64   bytes of the values
    32  checksum  32 bytes: SHA-256 of all the others
    64  classes   JSON: a list of names with the names of their fields
        values    see core/src/store/encoding.rs

All numbers are in little-endian order.
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
_HEAD: Final = struct.Struct("<16sIIQ32s")
#: The end of the names of files that are not whole.
_SAVING: Final = ".saving"
#: How much of it the checksum has, besides what follows it.
_BEFORE: Final = 32

#: The fields of classes, by their names, in the order of their numbers.
Classes = dict[str, tuple[str, ...]]


def write(path: Path, classes: Classes, values: bytearray) -> None:
    """Writes a file, as a whole or not at all, also if the machine stops meanwhile. Raises OSError."""
    known = json.dumps([[name, list(fields)] for name, fields in classes.items()]).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(known), len(values), b"")
    head = head[:_BEFORE] + _checksum(head, known, values)
    target = _target_of(path)
    _remove_stale(target)
    try:
        _write_beside(target, (head, known, values))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _target_of(path: Path) -> Path:
    """Returns the file that a path leads to by its links. Raises OSError if something else than a file is there."""
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


def _write_beside(target: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Writes a file beside another one, of our user alone, and gives it the name of that once it is on the disk."""
    descriptor, written = _open_beside(target)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            if written is None:
                written = _name_beside(target)
                # With a folder, which an absolute path does not need: without one Python links the link itself.
                os.link(f"/proc/self/fd/{file.fileno()}", written, src_dir_fd=file.fileno(), follow_symlinks=True)
            os.replace(written, target)
    except BaseException:
        if written is not None:
            with contextlib.suppress(OSError):
                written.unlink()
        raise


def _open_beside(target: Path) -> tuple[int, Path | None]:
    """Opens a file without a name, of which nothing is left if this process is killed; with one where there are none.

    It is locked as long as it is written: see :func:`_remove_stale`.
    """
    try:
        descriptor = os.open(target.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # The file system has none, or there is something else, which opening by a name says.
        pass
    else:
        if os.path.exists("/proc/self/fd"):
            _lock(descriptor)
            return descriptor, None
        os.close(descriptor)
    while True:
        written = _name_beside(target)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor, written
        os.close(descriptor)  # Another process has taken it for a stale one before it was locked.


def _name_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{_SAVING}")


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # A file system without locks: others have none of it either.
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove_stale(target: Path) -> None:
    """Removes what processes that were killed while they saved to the same file have left beside it."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}{re.escape(_SAVING)}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[Classes, bytes]:
    """Reads such a file: the classes and the values. Raises OSError, and DecodeError if it is not one, or not whole."""
    data = path.read_bytes()
    if data[: len(_MAGIC)] != _MAGIC:
        raise DecodeError(f"{path} is no file that a store was saved to: it begins with {data[:16]!r}")
    if len(data) < _HEAD.size:
        raise DecodeError(f"{path} is cut off: it has {len(data)} bytes of the {_HEAD.size} that it begins with")
    _, version, of_classes, of_values, checksum = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise DecodeError(
            f"{path} is of version {version} of such files, and this version of shmrpc reads version {_VERSION}"
        )
    size = _HEAD.size + of_classes + of_values
    if len(data) != size:
        raise DecodeError(f"{path} is damaged: it has {len(data)} bytes, and says that it has {size}")
    known, values = data[_HEAD.size : _HEAD.size + of_classes], data[_HEAD.size + of_classes :]
    if _checksum(data, known, values) != checksum:
        raise DecodeError(f"{path} is damaged: its checksum is another one")
    try:
        classes = {str(name): tuple(map(str, fields)) for name, fields in json.loads(known)}
    except (ValueError, TypeError) as error:
        raise DecodeError(f"{path} is damaged: its classes cannot be read ({error})") from None
    return classes, values


def _checksum(head: bytes, known: bytes, values: bytes | bytearray) -> bytes:
    made = hashlib.sha256(head[:_BEFORE])
    made.update(known)
    made.update(values)
    return made.digest()
