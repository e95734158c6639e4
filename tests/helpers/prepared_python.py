"""Python processes with shmrpc imported: each is forked from one process that has imported it once.

A new interpreter takes a third of a second of a CPU before a test sees anything of it, and the tests start hundreds.
:class:`PreparedPython` is a ``Popen`` of ``python -m`` or ``python -c`` all the same, and its process a child of the
test's. What a test says about the start itself, or the interpreter's options, needs a new one: ``subprocess.Popen``.

``python -m tests.helpers.prepared_python`` is the process that forks them.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Sequence
from typing import IO, Any, Final

from tests.helpers import crash_points

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Bytes of an order: arguments and the environment.
_LARGEST: Final = 1 << 20
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Nursery:
    """The process that forks the others, as seen by a test."""

    def __init__(self, *, points: bool) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.prepared_python", "points" if points else "plain"],
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C should end only the forked processes.
            )
        self._owner = os.getpid()
        atexit.register(self.close)

    def fork(self, order: dict[str, Any], streams: Sequence[int]) -> int:
        """Fork a child with these standard streams; return its process id."""
        message = json.dumps(order).encode()
        _adopt_orphans(True)
        try:
            self._socket.sendmsg(
                [len(message).to_bytes(4, "little")],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))],
            )
            self._socket.sendall(message)
            reply = self._socket.recv(4)
        finally:
            _adopt_orphans(False)
        assert reply, "the process that forks others is gone"
        return int.from_bytes(reply, "little")

    def close(self) -> None:
        """End the forking process. Its children stay."""
        if os.getpid() == self._owner:
            self._socket.close()
            self._process.wait()


def _adopt_orphans(whether: bool) -> None:
    """Let this process adopt orphans among its descendants, or stop doing so."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphans")


_lock: Final = threading.Lock()
#: Forking processes, by whether their core has crash points.
_nurseries: Final[dict[bool, _Nursery]] = {}


class PreparedPython(subprocess.Popen[str]):
    """``python`` with arguments, ``-m module`` or ``-c source`` and what belongs to it. Text streams.

    ``points``: use the core with crash points.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
        points: bool = False,
    ) -> None:
        assert arguments[0] in ("-m", "-c"), f"{arguments[0]} is for a new interpreter"
        self._points, self._session = points, start_new_session
        super().__init__(
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def _execute_child(self, arguments: Sequence[str], *rest: Any) -> None:
        """Have a process forked with the ends of Popen's pipes instead of executing a program."""
        ends = rest[9:15]
        streams = [standard if theirs == -1 else theirs for standard, theirs in enumerate((ends[0], ends[3], ends[5]))]
        order = {
            "arguments": list(arguments[1:]),
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "session": self._session,
        }
        try:
            with _lock:
                if self._points not in _nurseries:
                    _nurseries[self._points] = _Nursery(points=self._points)
                self.pid = _nurseries[self._points].fork(order, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def run_prepared(*arguments: str, input: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Execute ``python`` with arguments to its end, and return its output."""
    pipe = subprocess.PIPE
    with PreparedPython(arguments, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def main(kind: str) -> None:
    """Fork a process for each order until the input ends. Returns in each forked process too, when it is done."""
    if kind == "points":
        crash_points.use_core()
    import shmrpc.cli
    import shmrpc.sync  # noqa: F401

    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    gc.collect()
    gc.freeze()
    while True:
        head, streams, _, _ = socket.recv_fds(orders, 4, 3)
        if not head:
            return
        message = b""
        while len(message) < int.from_bytes(head, "little"):
            message += orders.recv(_LARGEST)
        told, tells = os.pipe()
        if between := os.fork():
            os.close(tells)
            for stream in streams:
                os.close(stream)
            reply = os.read(told, 4)
            os.close(told)
            os.waitpid(between, 0)  # From now on the test's process is the parent, so that it alone learns of the end.
            orders.sendall(reply)
            continue
        between = os.getpid()
        if pid := os.fork():
            os.write(tells, pid.to_bytes(4, "little"))
            os._exit(0)
        for descriptor in (told, tells):
            os.close(descriptor)
        orders.close()
        while os.getppid() == between:
            time.sleep(0.0001)
        # A test run that is killed leaves no process behind. The next one removes what this leaves in /dev/shm.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _open_standard_streams()
        _follow(json.loads(message))
        return


def _open_standard_streams() -> None:
    """Replace the streams in ``sys``, which keep whether the first process had a file, a pipe or a terminal."""
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, closefd=False)
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        stream = os.fdopen(number, "w", encoding=before.encoding, errors=before.errors, closefd=False)
        stream.reconfigure(line_buffering=number == 2 or stream.isatty(), write_through=before.write_through)
        setattr(sys, name, stream)


def _follow(order: dict[str, Any]) -> None:
    """Run the module or the source as the interpreter does with these arguments."""
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["session"]:
        os.setsid()
    option, what, *rest = order["arguments"]
    if option == "-m":
        sys.argv, sys.path[0] = [what, *rest], os.getcwd()
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = ["-c", *rest], ""
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(program))


if __name__ == "__main__":
    main(sys.argv[1])
