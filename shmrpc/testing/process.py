"""A server in another process, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Unpack

from shmrpc import sync
from shmrpc.client.aio.client import Client
from shmrpc.client.aio.factory import connect
from shmrpc.errors import LocalProtocolError, ShmrpcError
from shmrpc.host.fork import abandon_in_child
from shmrpc.host.processes import describe_killed
from shmrpc.host.status import collect_reports
from shmrpc.testing.options import ConnectOptions, SyncConnectOptions
from shmrpc.testing.runtime import private_runtime
from shmrpc.wire.control import StatusReport

#: Seconds between two checks that the server serves.
_POLL_SECONDS: Final = 0.01
#: Seconds that a server has to end after its grace period.
_STOP_MARGIN: Final = 5.0


class ServerFailed(ShmrpcError):
    """The server process ended, or did not serve in time; the message has its output on stderr."""


class ServerProcess:
    """``shmrpc serve TARGET`` in another process, for the length of a ``with`` block.

    ``target`` is the target of the command, such as ``"package.module:service"``, and ``options`` are its options. The
    server imports modules from the same path as this process. Entering the block waits until the server serves. Raises
    ServerFailed if the process ends before or does not serve within ``timeout`` seconds, and LocalProtocolError if the
    block has been entered. Leaving the block stops the process, with its calls in flight. Starting and stopping block
    the calling thread.

    :meth:`kill`, :meth:`stop` and :meth:`restart` return once they have taken effect. An asyncio client notices in the
    next iteration of its event loop, a client for threads with its next call.

    As long as any ServerProcess is in use, ``$XDG_RUNTIME_DIR`` of this process is a directory of the tests' own, the
    same for all of them: code under test that calls ``shmrpc.connect("name")`` finds this server, and no other server
    of that name. The server ends with this process at the latest, also if this process is killed.
    """

    def __init__(self, target: str, *options: str, timeout: float = 30.0) -> None:
        self.target = target
        self._options = options
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._lifeline: _Lifeline | None = None
        self._reports: list[StatusReport] = []

    def __enter__(self) -> ServerProcess:
        if self._log is not None:
            raise LocalProtocolError(f"this ServerProcess of {self.target!r} is in use: create another one")
        directory = private_runtime.enter()
        self._log = directory / f"{id(self):x}.stderr"
        try:
            self._start()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_running:
                self.process.send_signal(signal.SIGCONT)  # A test may have stopped the process.
                self.stop(grace=0)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Kill the process, delete its log, close its lifeline, and leave the private runtime directory. Call once."""
        self.kill()
        if self._lifeline is not None:
            self._lifeline.cut()
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None
        private_runtime.leave()

    def __repr__(self) -> str:
        return f"<ServerProcess of {self.target!r}, {f'process {self.pid}' if self.is_running else 'not running'}>"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The current or the last process. Raises LocalProtocolError before the first one."""
        if self._process is None:
            raise LocalProtocolError(f"no server yet: use `with ServerProcess({self.target!r}) as server`")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the current or the last process. Raises LocalProtocolError before the first one."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def names(self) -> list[str]:
        """Names of the services of the current or the last process; empty before the first one."""
        return [report.service for report in self._reports]

    @property
    def name(self) -> str:
        """Name of the only service. Raises ValueError if there are several or none."""
        if len(self._reports) != 1:
            raise ValueError(f"{self.target!r} serves {', '.join(self.names) or 'nothing'}: say which one you mean")
        return self._reports[0].service

    @property
    def stderr(self) -> str:
        """Output on stderr since the first start; "" outside the block."""
        return self._log.read_text(errors="replace") if self._log is not None and self._log.exists() else ""

    def connect(self, service: str | None = None, **options: Unpack[ConnectOptions]) -> Client:
        """Return an asyncio client, like :func:`shmrpc.connect`: ``async with server.connect() as client``.

        ``service``: name of the service; None for the only one. Raises ValueError for None if there are several or
        none.
        """
        return connect(service or self.name, **options)

    def sync_connect(self, service: str | None = None, **options: Unpack[SyncConnectOptions]) -> sync.Client:
        """Return a client for threads, like ``shmrpc.sync.connect``: ``with server.sync_connect() as client``.

        ``service``: see :meth:`connect`.
        """
        return sync.connect(service or self.name, **options)

    def kill(self) -> None:
        """Kill the process, as a crash would, and wait for its end. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace: float = 30.0) -> int:
        """Stop the process with SIGTERM, which gives calls in flight ``grace`` seconds to end; return the exit code.

        A process that does not end in time is ordered to stop at once, and killed 5 seconds later. A negative exit code
        is that of a process that a signal has killed: the negated number of the signal. Returns the exit code of a
        process that has ended, too. Raises LocalProtocolError before the first process.
        """
        process = self.process
        # Two signals of one kind may arrive as one.
        for number, wait in ((signal.SIGTERM, grace), (signal.SIGINT, _STOP_MARGIN)):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(wait)
        self.kill()
        return process.returncode

    def restart(self) -> None:
        """Stop the process if it runs, as :meth:`stop` does, and start another one with the same services.

        Raises ServerFailed if the new process ends, or does not serve in time, and LocalProtocolError outside the
        ``with`` block. After ServerFailed no process runs, and this method may be called again.
        """
        if self._log is None:
            raise LocalProtocolError(f"the block of this ServerProcess of {self.target!r} is over: create another one")
        if self.is_running:
            self.stop()
        self._start()

    def _start(self) -> None:
        """Start the process and wait until it serves.

        Raises ServerFailed if the process ends before, or does not serve in time, after killing it.
        """
        assert self._log is not None
        if self._lifeline is not None:  # The lifeline of the last process, which has ended.
            self._lifeline.cut()
        server_end, own_end = os.pipe()
        self._lifeline = _Lifeline(own_end)
        # -P: the working directory is on the path only if it is on the path of this process.
        command = [sys.executable, "-P", "-m", "shmrpc.testing.command", str(server_end), "serve", self.target]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        output_start = len(self.stderr)
        try:
            with self._log.open("ab") as log:  # A file, because a pipe would need a reader.
                self._process = subprocess.Popen(
                    [*command, *self._options],
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    env=environment,
                    pass_fds=[server_end],
                )
        finally:
            os.close(server_end)
        end = time.monotonic() + self._timeout
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                raise ServerFailed(
                    f"`shmrpc serve {self.target}` {_describe_exit(code)}:\n{self.stderr[output_start:].strip()}"
                )
            if time.monotonic() > end:
                self.kill()
                raise ServerFailed(
                    f"`shmrpc serve {self.target}` did not serve within {self._timeout:g} s and was killed:\n"
                    f"{self.stderr[output_start:].strip()}"
                )
            time.sleep(_POLL_SECONDS)

    def _is_ready(self) -> bool:
        """Return True if every service of the process serves."""
        # The server takes all names before the first service serves, but perhaps after the list was read: check twice.
        return self._all_serve() and self._all_serve()

    def _all_serve(self) -> bool:
        """Collect the status reports of the process, which set :attr:`names`; return True if all its services serve.

        Return False if there are none.
        """
        self._reports = [report for report in collect_reports() if report.pid == self.pid]
        return bool(self._reports) and all(report.health == "serving" for report in self._reports)


class _Lifeline:
    """The end of a pipe that only this process has, and no child; closing it ends the server at once.

    Takes ownership of the descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        abandon_in_child(self)

    def cut(self) -> None:
        """Close the pipe. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    abandon = cut


def _describe_exit(code: int) -> str:
    """Return how a process ended, as the predicate of a sentence."""
    return describe_killed(-code) if code < 0 else f"ended with exit code {code}"
