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
from shmrpc.client.aio.client import Client, connect
from shmrpc.errors import LocalProtocolError, ShmrpcError
from shmrpc.host.fork import abandon_in_child
from shmrpc.host.status import collect_reports
from shmrpc.testing.options import ConnectOptions, SyncConnectOptions
from shmrpc.testing.runtime import private_runtime
from shmrpc.wire.control import StatusReport

#: Seconds between two looks whether the server serves.
_LOOK: Final = 0.01
#: Seconds that a server has to go once its grace is over.
_MARGIN: Final = 5.0


class ServerFailed(ShmrpcError):
    """The server process ended, or served nothing in time; the message has what it said on stderr."""


class ServerProcess:
    """``shmrpc serve TARGET`` in another process, for the length of a ``with`` block.

    ``target`` is what the command takes, ``"package.module:service"``, and ``options`` are its options. The
    server finds the modules that this process finds. On entry it is waited for, up to ``timeout`` seconds.

    :meth:`kill`, :meth:`stop` and :meth:`restart` return when that is done. A client in a loop hears of it when
    the loop has its next turn, and one for threads with its next call.

    As long as any ServerProcess lives, ``$XDG_RUNTIME_DIR`` of this process is a directory of the tests' own: code
    under test that calls ``shmrpc.connect("name")`` finds this server, and no other one of the name. It is the same
    directory for all of them. The server ends with this process at the latest, however that ends.
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
            raise LocalProtocolError(f"this ServerProcess of {self.target!r} is in use; make another one")
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
                self.process.send_signal(signal.SIGCONT)  # A test may have stopped it.
                self.stop(grace=0)
        finally:
            self._leave()

    def _leave(self) -> None:
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
        """The process, or the last one. LocalProtocolError before there was any."""
        if self._process is None:
            raise LocalProtocolError(f"no server yet: use `with ServerProcess({self.target!r}) as server`")
        return self._process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def names(self) -> list[str]:
        """The services that it serves."""
        return [report.service for report in self._reports]

    @property
    def name(self) -> str:
        """The service that it serves; ValueError if there are several."""
        if len(self._reports) != 1:
            raise ValueError(f"{self.target!r} serves {', '.join(self.names) or 'nothing'}: say which one you mean")
        return self._reports[0].service

    @property
    def stderr(self) -> str:
        """What it has said on stderr, since its first start."""
        return self._log.read_text(errors="replace") if self._log is not None and self._log.exists() else ""

    def connect(self, service: str | None = None, **options: Unpack[ConnectOptions]) -> Client:
        """A client for a loop, as :func:`shmrpc.connect` makes it: ``async with server.connect() as client``.

        ``service``: which one, if it serves several.
        """
        return connect(service or self.name, **options)

    def sync_connect(self, service: str | None = None, **options: Unpack[SyncConnectOptions]) -> sync.Client:
        """A client for threads, as ``shmrpc.sync.connect`` makes it: ``with server.sync_connect() as client``."""
        return sync.connect(service or self.name, **options)

    def kill(self) -> None:
        """Ends it at once, as a crash would. If it is not running: nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace: float = 30.0) -> int:
        """Stops it with SIGTERM: calls under way have ``grace`` seconds to end; its exit code.

        Then a second signal tells it to stop at once, and at last it is killed.
        """
        process = self.process
        # Two signals of one kind may arrive as one.
        for number, wait in ((signal.SIGTERM, grace), (signal.SIGINT, _MARGIN)):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(wait)
        self.kill()
        return process.returncode

    def restart(self) -> None:
        """Stops it if it is running, and starts it again, in another process of the same services."""
        if self._log is None:
            raise LocalProtocolError(f"the block of this ServerProcess of {self.target!r} is over; make another one")
        if self.is_running:
            self.stop()
        self._start()

    def _start(self) -> None:
        assert self._log is not None
        if self._lifeline is not None:  # That of the process before, which has ended.
            self._lifeline.cut()
        theirs, ours = os.pipe()
        self._lifeline = _Lifeline(ours)
        # -P: not from the working directory, unless this process finds modules there.
        command = [sys.executable, "-P", "-m", "shmrpc.testing.command", str(theirs), "serve", self.target]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        said = len(self.stderr)
        try:
            with self._log.open("ab") as log:  # A file, not a pipe: nobody has to read along.
                self._process = subprocess.Popen(
                    [*command, *self._options],
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    env=environment,
                    pass_fds=[theirs],
                )
        finally:
            os.close(theirs)
        end = time.monotonic() + self._timeout
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                raise ServerFailed(f"`shmrpc serve {self.target}` {_ended(code)}:\n{self.stderr[said:].strip()}")
            if time.monotonic() > end:
                self.kill()
                raise ServerFailed(
                    f"`shmrpc serve {self.target}` did not serve within {self._timeout:g} s and was killed:\n"
                    f"{self.stderr[said:].strip()}"
                )
            time.sleep(_LOOK)

    def _is_ready(self) -> bool:
        """Whether every service of the process serves."""
        # All names are taken before the first service serves, but perhaps after the names were listed: once more.
        return self._all_serve() and self._all_serve()

    def _all_serve(self) -> bool:
        self._reports = [report for report in collect_reports() if report.pid == self.pid]
        return bool(self._reports) and all(report.health == "serving" for report in self._reports)


class _Lifeline:
    """The end of a pipe that only this process has, and no child: when it is closed, the server ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        abandon_in_child(self)

    def cut(self) -> None:
        """Closes it. Again: nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    abandon = cut


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
