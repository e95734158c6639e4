"""A runtime directory of the tests' own: they meet no other services, and nobody else meets theirs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "XDG_RUNTIME_DIR"
#: It would come before that one.
_SHARED = "SHMRPC_DIRECTORY"


class PrivateRuntime:
    """Sets ``$XDG_RUNTIME_DIR`` to a directory of this process's own while it has users.

    ``$SHMRPC_DIRECTORY`` is unset meanwhile.

    It is set for the whole process, so that code under test meets the tests' services where it looks anyway.
    All users share one directory, and may leave in any order. It is the same until the process ends: what
    a test has started may outlive the test, and looks where it did at its start, as multiprocessing's forkserver.
    """

    def __init__(self) -> None:
        self._users = 0
        self._before: dict[str, str] = {}
        self._directory: Path | None = None

    def enter(self) -> Path:
        """The directory, made at the first call."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="shmrpc-"))  # Short: a socket's path has 107 bytes.
            atexit.register(_remove, self._directory, os.getpid())
        if self._users == 0:
            self._before = {name: os.environ.pop(name) for name in (_VARIABLE, _SHARED) if name in os.environ}
            os.environ[_VARIABLE] = str(self._directory)
        self._users += 1
        return self._directory

    def leave(self) -> None:
        """Puts the environment back when the last user leaves."""
        self._users -= 1
        if self._users == 0:
            os.environ.pop(_VARIABLE, None)
            os.environ.update(self._before)


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # A forked child leaves it to its parent.
        shutil.rmtree(directory, ignore_errors=True)


private_runtime = PrivateRuntime()
