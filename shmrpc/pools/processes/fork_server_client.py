"""A pool's client of its fork server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Final

from shmrpc.pools.processes.python_process import control_pair, own_pidfd, start_python
from shmrpc.pools.processes.spawn_messages import (
    Forked,
    ForkFailed,
    ForkServerSetup,
    Incompatible,
    SpawnRequest,
    WorkerExited,
    decode_message,
    encode,
)
from shmrpc.pools.processes.spawned_process import SpawnedProcess, wait_readable
from shmrpc.pools.transfer.main_module import spawn_preparation

#: Seconds that a fork server has to fork a worker, which takes some milliseconds.
_FORK_TIMEOUT: Final = 5.0
#: Seconds that a fork server has to reap its workers before it is killed.
_REAP_TIMEOUT: Final = 1.0
_MAX_PACKET: Final = 1 << 16


class ForkServerIncompatibleError(Exception):
    """Error for a program of which no fork server can be made; its text is the reason."""


class ForkServerLostError(Exception):
    """Error for a fork server that has died or does not answer."""


class ForkServerClient:
    """A pool's connection to its fork server, :mod:`shmrpc.pools.processes.fork_server`.

    The constructor starts the process, and raises OSError if that fails; the owner closes the client, also after an
    error of ``start`` or ``fork``. Only one thread at a time may call these two.
    """

    def __init__(self, environment: dict[str, str], lifeline: int, *, imports_program: bool) -> None:
        self._setup = ForkServerSetup(spawn_preparation(), imports_program)
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            with server_end:
                self._process = start_python("fork_server", "main", [server_end.fileno(), lifeline], environment)
        except BaseException:
            self._control.close()
            raise
        self._receiving = threading.Lock()
        #: Exit statuses of the workers, by pid; None while a worker lives.
        self._statuses: dict[int, int | None] = {}
        self.is_ready = False

    def start(self) -> None:
        """Send the setup, and wait without limit until the fork server can fork.

        Raises ForkServerIncompatibleError, with the reason, if the fork server cannot fork, or dies.
        """
        try:
            with own_pidfd() as master:
                answer, _ = self._request(self._setup, master, None)
        except ForkServerLostError as error:  # Usually because of what the program does at its import.
            raise ForkServerIncompatibleError(f"it {error} as it imported the program") from None
        if isinstance(answer, Incompatible):
            raise ForkServerIncompatibleError(answer.reason)
        self.is_ready = True

    def fork(self, request: SpawnRequest) -> SpawnedProcess:
        """Have the server fork a worker; return its process.

        Raises ForkServerLostError if the server has died or does not answer within 5 s, or OSError if the system allows
        no process.
        """
        pool_end, worker_end = control_pair()
        with worker_end, contextlib.ExitStack() as stack:
            stack.callback(pool_end.close)
            answer, descriptors = self._request(request, worker_end.fileno(), _FORK_TIMEOUT)
            if isinstance(answer, ForkFailed):
                raise OSError(answer.errno, answer.reason)
            assert isinstance(answer, Forked)
            stack.pop_all()
        pool_end.setblocking(False)
        pid = answer.pid
        self._statuses.setdefault(pid, None)
        return SpawnedProcess(pid, descriptors[0], pool_end, lambda: self._status_of(pid))

    def _request(self, message: Any, descriptor: int, timeout: float | None) -> tuple[Any, list[int]]:
        """Send a message; return the answer and its descriptors.

        Raises ForkServerLostError if the server has died, or after the timeout in seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._receiving:  # A thread that reads exit notices in between would drop the answer.
            try:
                socket.send_fds(self._control, [encode(message)], [descriptor])
            except OSError:
                raise ForkServerLostError("has died") from None
            while True:
                remaining = None if end is None else end - time.monotonic()
                if not wait_readable(self._control.fileno(), remaining):
                    raise ForkServerLostError(f"has not answered for {timeout:g} s")
                answer, descriptors = self._receive()
                if answer is None:
                    raise ForkServerLostError("has died")
                if not isinstance(answer, WorkerExited):
                    return answer, descriptors

    def _receive(self) -> tuple[Any, list[int]]:
        """Receive and return a message and its descriptors; record an exit status.

        The message is None at the end of the connection.
        """
        try:
            packet, descriptors, *_ = socket.recv_fds(self._control, _MAX_PACKET, 1)
        except OSError:
            return None, []
        message = decode_message(packet) if packet else None
        if isinstance(message, WorkerExited):
            self._statuses[message.pid] = message.status
        return message, descriptors

    def _status_of(self, pid: int) -> int | None:
        """Receive the notices that have arrived; return the exit status of a worker, or None without a notice."""
        if self._receiving.acquire(blocking=False):
            try:
                while self._control.fileno() >= 0 and wait_readable(self._control.fileno(), 0.0):
                    if self._receive()[0] is None:
                        break
            finally:
                self._receiving.release()
        return self._statuses.get(pid)

    def kill(self) -> None:
        """Kill the fork server, without a wait."""
        self._process.kill()

    def wait_reaped(self) -> None:
        """Wait at most a second until the fork server has reaped its workers, which no other process can do."""
        end = time.monotonic() + _REAP_TIMEOUT
        with self._receiving:
            while None in self._statuses.values() and wait_readable(self._control.fileno(), end - time.monotonic()):
                if self._receive()[0] is None:
                    break

    def close(self) -> None:
        """Kill the fork server, wait for its end, and close the connection to it."""
        self.kill()
        self._process.wait()
        with self._receiving:
            self._control.close()
