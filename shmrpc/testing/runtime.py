"""A runtime directory of the tests' own: they meet nobody else's services, and nobody meets theirs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLE = "XDG_RUNTIME_DIR"
#: It would come before that one.
_SHARED = "SHMRPC_DIRECTORY"


class PrivateRuntime:
    """``$XDG_RUNTIME_DIR`` is a directory of this process's own while anybody has entered, ``$SHMRPC_DIRECTORY`` unset.

    It is set for the whole process, so that code under test meets the tests' services where it looks anyway.
    Those who have entered at the same time share one directory, and may leave in any order.
    """

    def __init__(self) -> None:
        self._users = 0
        self._before: dict[str, str] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def enter(self) -> Path:
        """The directory, made by the first who comes."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="shmrpc-")  # Short: a socket's path has 107 bytes.
            self._before = {name: os.environ.pop(name) for name in (_VARIABLE, _SHARED) if name in os.environ}
            os.environ[_VARIABLE] = self._directory.name
        self._users += 1
        return Path(self._directory.name)

    def leave(self) -> None:
        """The last one removes it."""
        self._users -= 1
        if self._users == 0 and self._directory is not None:
            os.environ.pop(_VARIABLE, None)
            os.environ.update(self._before)
            self._directory.cleanup()
            self._directory = None


private_runtime = PrivateRuntime()
