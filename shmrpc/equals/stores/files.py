"""Files that what is in a store is saved to.

::

     0  magic     16 bytes
    16  version   u32
    20  classes   u32   bytes of the classes
    24  values    u64   bytes of the values
    32  checksum  32 bytes: SHA-256 of all the others
    64  classes   JSON: a list of names with the names of their fields
        values    see core/src/store/saved.rs

All numbers are in little-endian order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import struct
from pathlib import Path
from typing import Final

from shmrpc.errors import DecodeError

_MAGIC: Final = b"\x89shmrpc-store\r\n\x1a"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<16sIIQ32s")
#: How much of it the checksum has, besides what follows it.
_BEFORE: Final = 32

#: The fields of classes, by their names, in the order of their numbers.
Classes = dict[str, tuple[str, ...]]


def write(path: Path, classes: Classes, values: bytearray) -> None:
    """Writes a file, as a whole or not at all, also if the machine stops meanwhile. Raises OSError."""
    known = json.dumps([[name, list(fields)] for name, fields in classes.items()]).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(known), len(values), b"")
    head = head[:_BEFORE] + _checksum(head, known, values)
    # Beside it, so that it can be renamed; of our user alone, as the store is.
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(descriptor, "wb") as file:
            for part in (head, known, values):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        with contextlib.suppress(OSError):
            written.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
