"""The start of workers: forked by a fork server, or by exec. Their sockets have no names."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from shmrpc.pools.processes.fork_server_client import (
    ForkServerClient,
    ForkServerIncompatibleError,
    ForkServerLostError,
)
from shmrpc.pools.processes.python_process import control_pair, own_pidfd, start_python
from shmrpc.pools.processes.spawn_messages import SpawnRequest, encode
from shmrpc.pools.processes.spawned_process import SpawnedProcess
from shmrpc.pools.transfer.main_module import spawn_preparation

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger("shmrpc.pool")


@dataclasses.dataclass(frozen=True)
class SpawnSettings:
    """Settings that all workers of a pool have in common."""

    environment: dict[str, str]
    #: Maximum bytes of data of a worker.
    memory: int | None = None
    #: CPUs to pin workers to, one each in turn.
    cpus: tuple[int, ...] | None = None
    #: True if workers cannot import the program.
    by_value: bool = False

    def request_for(self, number: int) -> SpawnRequest:
        """Return the request for the worker with this number.

        Raises FileNotFoundError if the working directory has been removed.
        """
        cpu = self.cpus[number % len(self.cpus)] if self.cpus else None
        return SpawnRequest(number, spawn_preparation(), cpu, self.memory, self.by_value)


class Spawner:
    """The starter of the worker processes of a pool: by a fork server, or by exec if there can be none."""

    def __init__(self, settings: SpawnSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._fork_server: ForkServerClient | None = None
        #: Pipe that workers and fork servers watch: it ends with this process, also if this process calls exec.
        self._lifeline: tuple[int, int] | None = None
        #: True if the fork server imports the program; False if that leaves it with threads or open files.
        self._imports_program = True
        self._uses_fork_server = True
        self._is_closed = False

    def spawn(self, number: int) -> SpawnedProcess:
        """Start a worker, and return its process. Slow: call in a thread. Thread-safe: one call starts after another.

        Raises OSError if no process can be started, or after stop().
        """
        request = self._settings.request_for(number)
        with self._lock:
            self._check_open()
            if self._lifeline is None:
                self._lifeline = os.pipe2(os.O_CLOEXEC)
            lifeline = self._lifeline[0]
            while self._uses_fork_server:
                self._check_open()
                try:
                    if self._fork_server is None:
                        self._fork_server = ForkServerClient(
                            self._settings.environment, lifeline, imports_program=self._imports_program
                        )
                        self._check_open()  # A stop() before the assignment has killed nothing.
                        self._fork_server.start()
                    return self._fork_server.fork(request)
                except ForkServerIncompatibleError as error:
                    logger.debug("workers are not forked from a process that has imported the program: %s", error)
                    self._uses_fork_server, self._imports_program = self._imports_program, False
                except ForkServerLostError as error:
                    self._check_open()
                    logger.warning("the fork server of a pool %s: starting another one", error)
                self._close_fork_server()
            self._check_open()
            return _spawn_by_exec(self._settings.environment, request, lifeline)

    def _check_open(self) -> None:
        """Raise OSError after :meth:`stop`."""
        if self._is_closed:
            raise OSError("the pool is closed")

    def _close_fork_server(self) -> None:
        """Close the fork server, if there is one, and forget it."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def stop(self) -> None:
        """Start no more workers: a spawn() that waits for the program's import raises OSError. Does not wait."""
        self._is_closed = True
        if (fork_server := self._fork_server) is not None and not fork_server.is_ready:
            fork_server.kill()

    def close(self) -> None:
        """End the fork server, after it has reaped the workers. Call this when all workers have ended. Idempotent.

        Waits for a spawn() that runs, and at most a second for the workers to be reaped: call in a thread.
        """
        self.stop()
        with self._lock:
            if self._fork_server is not None:
                self._fork_server.wait_reaped()
            self._close_fork_server()
            if self._lifeline is not None:
                for end in self._lifeline:
                    os.close(end)
                self._lifeline = None


def _spawn_by_exec(environment: dict[str, str], request: SpawnRequest, lifeline: int) -> SpawnedProcess:
    """Start a worker by exec, and return its process. Raises OSError if that fails."""
    pool_end, worker_end = control_pair()
    with worker_end, contextlib.ExitStack() as stack:
        stack.callback(pool_end.close)
        process = start_python("bootstrap", "main", [worker_end.fileno()], environment)
        stack.callback(process.kill)
        with own_pidfd() as master:
            socket.send_fds(pool_end, [encode(request)], [master, lifeline])
        pidfd = os.pidfd_open(process.pid)
        stack.pop_all()
    pool_end.setblocking(False)
    return SpawnedProcess(process.pid, pidfd, pool_end, lambda: _status_of(process))


def _status_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a child; None while the child lives, or if this process ignores SIGCHLD."""
    status = process.poll()
    return None if status == 0 and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else status
