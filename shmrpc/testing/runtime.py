"""A runtime directory of the tests' own: they meet nobody else's services, and nobody meets theirs."""

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
    """``$XDG_RUNTIME_DIR`` is a directory of this process's own while anybody has entered, ``$SHMRPC_DIRECTORY`` unset.

    It is set for the whole process, so that code under test meets the tests' services where it looks anyway.
    Those who have entered share one directory, and may leave in any order. It is the same until the process ends: what
    a test has started may outlive the test, and looks where it did at its start, as multiprocessing's forkserver.
    """

    def __init__(self) -> None:
        self._users = 0
        self._before: dict[str, str] = {}
        self._directory: Path | None = None

    def enter(self) -> Path:
        """The directory, made by the first who comes."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="shmrpc-"))  # Short: a socket's path has 107 bytes.
            atexit.register(_remove, self._directory, os.getpid())
        if self._users == 0:
            self._before = {name: os.environ.pop(name) for name in (_VARIABLE, _SHARED) if name in os.environ}
            os.environ[_VARIABLE] = str(self._directory)
        self._users += 1
        return self._directory

    def leave(self) -> None:
        """The last one puts the environment back."""
        self._users -= 1
        if self._users == 0:
            os.environ.pop(_VARIABLE, None)
            os.environ.update(self._before)


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # It is not a forked child's.
        shutil.rmtree(directory, ignore_errors=True)


private_runtime = PrivateRuntime()
