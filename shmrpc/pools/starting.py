"""Starts workers, each by exec, and sees them from outside. Nothing of theirs has a name."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import subprocess

_BEGIN: Final = "import sys; sys.path[:] = {path!r}; from shmrpc.pools.beginning import begin; begin()"


class Order(msgspec.Struct):
    """What a new worker is told first."""

    number: int
    #: What multiprocessing tells a process that it spawns, so that `__main__` is found; pickled.
    preparation: bytes
    argument: bytes
    #: The CPU that it is kept on.
    cpu: int | None
    #: Bytes of data that it may have.
    memory: int | None
    master: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all workers of a pool have in common."""

    environment: dict[str, str]
    memory: int | None = None
    cpus: tuple[int, ...] | None = None
    argument: bytes = b""


class WorkerProcess:
    """A worker as its pool sees it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self.pid = process.pid
        self.control = control
        #: Readable once it has ended.
        self.pidfd = os.pidfd_open(process.pid)

    def interrupt(self, number: int) -> None:
        """Sends it a signal; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.interrupt(signal.SIGKILL)

    def status(self) -> int | None:
        """Its exit status, a signal's number with a minus; None while it lives."""
        return self._process.poll()

    def wait(self, timeout: float) -> None:
        """Waits until it has ended, and ends it then."""
        import subprocess

        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def close(self) -> None:
        """Closes the descriptors of a process that has ended. Again: nothing."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.control.close()


def start(settings: Settings, number: int) -> WorkerProcess:
    """Starts a worker, which knows what it is to be. Raises OSError if there cannot be one."""
    import subprocess  # Few programs have pools.
    from multiprocessing.util import _args_from_interpreter_flags as interpreter_flags  # type: ignore[attr-defined]

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with theirs, contextlib.ExitStack() as stack:
        stack.callback(ours.close)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        command = [sys.executable, *interpreter_flags(), "-c", _BEGIN.format(path=sys.path), str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **settings.environment},
            start_new_session=True,  # A terminal's Ctrl-C is for the master.
        )
        stack.callback(process.kill)
        cpus = settings.cpus
        order = Order(
            number,
            _preparation(),
            settings.argument,
            cpus[number % len(cpus)] if cpus else None,
            settings.memory,
            os.getpid(),
        )
        ours.sendall(msgspec.msgpack.encode(order))
        ours.setblocking(False)
        started = WorkerProcess(process, ours)
        stack.pop_all()
    return started


def _preparation() -> bytes:
    import pickle
    from multiprocessing import spawn

    known: dict[str, Any] = spawn.get_preparation_data("shmrpc-worker")
    kept = {name: known[name] for name in ("init_main_from_name", "init_main_from_path", "dir") if name in known}
    return pickle.dumps(kept)
