"""Where names are met."""

from __future__ import annotations

import os
from pathlib import Path

from shmrpc._core import Name
from shmrpc.host import runtime_dir
from shmrpc.host.cleanup import SHARED, names_of, spell

#: Bytes of the longest end that the path of a doorbell has behind the name.
_DOORBELL = 8


def path_to_open(name: str) -> str:
    """The path of the lock file of a name that is to be opened: where it has members, or else where it is made.

    Raises LocalProtocolError if the directory is not safe, and ValueError if the name cannot be one.
    """
    runtime_dir.check_name(name, "name")
    first = _in(runtime_dir.directory(), name)
    for path in candidate_paths(name):
        if path != first and Name.look(name, path):
            return path
    return first


def candidate_paths(name: str) -> list[str]:
    """The paths where the lock file of a name may be."""
    runtime_dir.check_name(name, "name")
    return [_in(place, name) for place in runtime_dir.directories()]


def directories_to_watch() -> list[str]:
    """The directories where any name may appear. They exist then.

    Raises LocalProtocolError if that of our own names is not safe.
    """
    return [str(place) for place in runtime_dir.made_directories()]


def names_and_paths() -> list[tuple[str, str]]:
    """The names that have a lock file, each with its path; they may have no members."""
    found = []
    for place in runtime_dir.directories():
        found += [(name, _in(place, name)) for name in sorted(names_of(SHARED, os.listdir(place)))]
    return found


def _in(place: Path, name: str) -> str:
    stem = f"{place}/{spell(name, SHARED)}"
    if len(os.fsencode(stem)) + _DOORBELL > runtime_dir.MAX_PATH:
        raise ValueError(
            f"path {stem!r} is over {runtime_dir.MAX_PATH - _DOORBELL} bytes; use a shorter name or directory"
        )
    return f"{stem}.lock"
