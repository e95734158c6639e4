"""Programs of other users of this machine. Only root can start them.

They are children of one process, the nursery, which has imported all modules that they need: another user may be
unable to read the directory we run from, and each start is faster by a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from types import TracebackType
from typing import Final, Self

import pytest

#: Users without files on any machine; numbers without a special meaning.
ALLOWED, FORBIDDEN = 64_101, 64_102
#: Seconds after which a silent program has failed.
_TIMEOUT: Final = 60.0

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")

#: Source that runs before each program: imports, and two functions.
_BEGIN = """
import asyncio, contextlib, os, socket, sys
import msgpack, numpy, posix_ipc
import shmrpc, shmrpc.cli.call, shmrpc.cli.listing, shmrpc.cli.serve
from shmrpc.wire import control
from shmrpc.host import cleanup, runtime_dir, rendezvous, service_socket
from shmrpc.transport.shm import segment
from tests.reliability.hostile import shared_service
from tests.helpers.wire_client import ON_SEMAPHORE, WireClient

def expect(kind, call):
    # Prints what is raised, as a line.
    try:
        call()
    except kind as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("nothing was raised", flush=True)

def connected(**options):
    shmrpc.sync.connect(shared_service.NAME, timeout=0, **options).__enter__()
"""


class _Nursery:
    """The process whose children the programs are."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", "from tests.reliability.hostile import other_users; other_users.nurse()"]
            self._process = subprocess.Popen(command, stdin=theirs.fileno())

    def close(self) -> None:
        self.socket.close()
        self._process.wait(_TIMEOUT)


_nursery: _Nursery | None = None


def close_nursery() -> None:
    global _nursery
    if _nursery is not None:
        _nursery.close()
        _nursery = None


def nurse() -> None:
    """Start programs on request, until the other end is closed."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(_BEGIN, names)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=os.dup(0))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not packet:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(packet), descriptors, names)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(order: dict[str, str], descriptors: list[int], names: dict[str, object]) -> None:
    """Start one program in a child; send its process id, a pidfd and its exit status to the test."""
    talk, errors, status = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate((talk, talk, errors)):
            os.dup2(descriptor, number)
        os.closerange(3, 64)
        _run_as_user(int(order.pop("uid")), order.pop("source"), order, names)
    os.close(talk)
    requests = socket.socket(fileno=status)
    # The number may belong to another process after the wait; the pidfd still refers to this one.
    socket.send_fds(requests, [b"%d" % child], [os.pidfd_open(child)])
    requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _run_as_user(uid: int, source: str, environment: dict[str, str], names: dict[str, object]) -> None:
    # The nursery's standard streams may have buffered its own files.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
    os.chdir("/")
    os.environ.update(environment)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    code = 1
    try:
        exec(source, names)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Program:
    """A Python program of another user, which reads lines from its stdin."""

    def __init__(self, uid: int, source: str) -> None:
        global _nursery
        if _nursery is None:
            _nursery = _Nursery()
        variables = {name: os.environ.get(name, "") for name in ("SHMRPC_DIRECTORY", "XDG_RUNTIME_DIR")}
        order = {"uid": str(uid), "source": textwrap.dedent(source), **variables}
        self._talk, theirs = socket.socketpair()
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        with theirs, status:
            socket.send_fds(
                _nursery.socket, [json.dumps(order).encode()], [theirs.fileno(), self._errors.fileno(), status.fileno()]
            )
        for each in (self._talk, self._status):
            each.settimeout(_TIMEOUT)
        self._lines = self._talk.makefile("r")
        pid, (self._handle,), _, _ = socket.recv_fds(self._status, 100, 1)
        self.pid = int(pid)
        #: The exit code, or the negative number of the signal that killed the program.
        self.code: int | None = None

    @property
    def errors(self) -> str:
        """Return the text that the program printed on stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def line(self) -> str:
        """Return the next line that the program prints."""
        line = self._lines.readline()
        assert line, self.errors
        return line.rstrip("\n")

    def go_on(self) -> None:
        """Send the program a line."""
        self._talk.send(b"\n")

    def is_running(self) -> bool:
        """Return True if the program has not ended."""
        if self.code is None:
            self._status.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                if self._status.recv(1, socket.MSG_PEEK):
                    self._status.settimeout(_TIMEOUT)
                    self._wait()
            self._status.settimeout(_TIMEOUT)
        return self.code is None

    def _wait(self) -> int:
        if self.code is None:
            self.code = int(self._status.recv(100))
        return self.code

    def send_signal(self, number: int) -> None:
        """Send a signal. Ignored after the program's end."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def end(self) -> str:
        """Wait for a successful end; return the rest of the output."""
        self._talk.shutdown(socket.SHUT_WR)
        printed = self._lines.read()
        assert self._wait() == 0, self.errors
        return printed.rstrip("\n")

    def kill(self) -> None:
        """Kill the program. Idempotent."""
        self.send_signal(signal.SIGKILL)
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for each in (self._lines, self._talk, self._status, self._errors):
            each.close()
        os.close(self._handle)


def run_as(uid: int, source: str) -> str:
    """Run a program of another user; return its output."""
    with Program(uid, source) as program:
        return program.end()


class Server(Program):
    """A program that SIGTERM ends."""

    def stop(self) -> str:
        """Stop the server with SIGTERM; return its stderr."""
        self.send_signal(signal.SIGTERM)
        self.end()
        return self.errors

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_running():
                self.stop()
        finally:
            super().__exit__(kind, error, trace)


def served_by(uid: int, *options: str) -> Server:
    """Start a server of the shared service; return it once it serves."""
    program = Server(
        uid,
        f"""
        control.STEP_TIMEOUT = {_TIMEOUT}  # Programs are started while a handshake waits.
        shmrpc.cli.serve._announce = lambda *_: print("serving", flush=True)
        shmrpc.cli.commands.main(["serve", "tests.reliability.hostile.shared_service:service", *{list(options)!r}])
        """,
    )
    try:
        assert program.line() == "serving"
    except BaseException:
        program.kill()
        raise
    return program
