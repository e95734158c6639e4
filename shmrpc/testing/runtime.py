"""A private runtime directory for tests, which other services and clients do not use."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "XDG_RUNTIME_DIR"
#: Variable that would take precedence.
_SHARED_VARIABLE = "SHMRPC_DIRECTORY"


class PrivateRuntime:
    """A runtime directory of this process, to which ``$XDG_RUNTIME_DIR`` is set while the directory has users.

    ``$SHMRPC_DIRECTORY`` is unset during that time.

    The variables change for the whole process, so that code under test finds the services of the tests. All users share
    one directory, and may leave in any order. The directory stays the same until the process ends, because a process
    that outlives its test, such as multiprocessing's forkserver, keeps the variables of its start.
    """

    def __init__(self) -> None:
        self._users = 0
        self._saved_environment: dict[str, str] = {}
        self._directory: Path | None = None

    def enter(self) -> Path:
        """Add a user, who must call :meth:`leave` once; return the directory, which the first call creates."""
        if self._directory is None:
            self._directory = Path(
                tempfile.mkdtemp(prefix="shmrpc-")
            )  # Short, because the path of a socket has at most 107 bytes.
            atexit.register(_remove, self._directory, os.getpid())
        if self._users == 0:
            self._saved_environment = {
                name: os.environ.pop(name) for name in (_VARIABLE, _SHARED_VARIABLE) if name in os.environ
            }
            os.environ[_VARIABLE] = str(self._directory)
        self._users += 1
        return self._directory

    def leave(self) -> None:
        """Remove a user; restore the environment after the last one."""
        self._users -= 1
        if self._users == 0:
            os.environ.pop(_VARIABLE, None)
            os.environ.update(self._saved_environment)


def _remove(directory: Path, owner_pid: int) -> None:
    """Remove the directory, in the process that has created it."""
    if os.getpid() == owner_pid:  # A forked child must not remove its parent's directory.
        shutil.rmtree(directory, ignore_errors=True)


private_runtime = PrivateRuntime()
