"""Paths of lock files, by which the processes of a host find the same shared object."""

from __future__ import annotations

import os
from pathlib import Path

from shmrpc._core import SharedObject
from shmrpc.host import runtime_dir
from shmrpc.host.cleanup import SHARED, names_of, spell

#: The longest suffix, in bytes, that the path of a doorbell has after the name.
_DOORBELL_SUFFIX = 8


def choose_lock_file(name: str) -> str:
    """Return the path of the lock file with which to open an object.

    The file is in the directory where the object has members. If the object has none, the file is in the directory
    where this process makes objects.

    Raises LocalProtocolError if the directory is not safe, TypeError or ValueError if the name cannot be one, and the
    errors of inspecting an object.
    """
    runtime_dir.check_name(name, "name")
    own = _lock_file(runtime_dir.directory(), name)
    for path in list_lock_files(name):
        if path != own and SharedObject.inspect(name, path):
            return path
    return own


def list_lock_files(name: str) -> list[str]:
    """Return the paths at which the lock file of an object may be, one in each directory; the files need not exist.

    Raises the errors of :func:`choose_lock_file`.
    """
    runtime_dir.check_name(name, "name")
    return [_lock_file(directory, name) for directory in runtime_dir.directories()]


def list_watched_directories() -> list[str]:
    """Return the directories in which the lock file of an object may appear, after making the missing ones.

    Raises LocalProtocolError if the directory of this user's objects is not safe.
    """
    return [str(directory) for directory in runtime_dir.create_directories()]


def list_names() -> list[tuple[str, str]]:
    """Return the names that have a lock file, each with the path of the file. Their objects may have no members.

    Raises LocalProtocolError if the directory of this user's objects is not safe.
    """
    found = []
    for directory in runtime_dir.directories():
        found += [(name, _lock_file(directory, name)) for name in sorted(names_of(SHARED, os.listdir(directory)))]
    return found


def _lock_file(directory: Path, name: str) -> str:
    """Return the path of the lock file of an object in a directory. Raises ValueError if the path is too long."""
    stem = f"{directory}/{spell(name, SHARED)}"
    longest = runtime_dir.MAX_PATH - _DOORBELL_SUFFIX
    if len(os.fsencode(stem)) > longest:
        raise ValueError(f"path {stem!r} is over {longest} bytes; use a shorter name or directory")
    return f"{stem}.lock"
