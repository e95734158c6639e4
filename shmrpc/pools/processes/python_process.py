"""The start of a Python process for a pool: a worker, or a fork server."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess

_CODE: Final = (
    "import sys; sys.path[:] = {path!r}; from shmrpc.pools.processes.{module} import {function}; {function}()"
)


def start_python(
    module: str, function: str, descriptors: Sequence[int], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a Python process that calls a function of a module of this package; return the process.

    The process inherits the descriptors, whose numbers are its first arguments; the program's own arguments follow.
    ``environment``: variables besides those of this process. Raises OSError if no process can be started.
    """
    import subprocess  # Most programs have no pools.
    from multiprocessing.util import _args_from_interpreter_flags as interpreter_flags  # type: ignore[attr-defined]

    return subprocess.Popen(
        [
            sys.executable,
            *interpreter_flags(),
            "-c",
            _CODE.format(path=sys.path, module=module, function=function),
            *map(str, descriptors),
            *(each for each in sys.argv if isinstance(each, str)),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env={**os.environ, **environment},
        start_new_session=True,  # The pool's process decides what Ctrl-C in a terminal does.
    )


@contextlib.contextmanager
def own_pidfd() -> Iterator[int]:
    """Open a pidfd of this process; yield it, and close it at the end. Raises OSError."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def control_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, blocking sockets: the pool's end and the worker's end. Raises OSError."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return pair
