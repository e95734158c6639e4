"""Another process that opens shared objects and executes a test's statements, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from types import TracebackType
from typing import Any, Final

from tests.helpers.prepared_python import PreparedPython
from tests.helpers.stopped_processes import PATIENCE

_MAIN: Final = "from tests.helpers import member_process; member_process.main()"


class MemberProcess:
    """A process with ``shmrpc`` and ``shmrpc.sync`` imported; killed at the end.

    ``points``: with the core that has places to die.
    """

    def __init__(self, *, points: bool = False) -> None:
        self._process = PreparedPython(["-c", _MAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, points=points)
        assert self._read() == "ready"

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, code: str) -> None:
        """Start the execution of statements; :meth:`end` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """Return ``result`` after the statements; raise their exception as RuntimeError."""
        text = self._read()
        if text.startswith("raised "):
            raise RuntimeError(json.loads(text.removeprefix("raised ")))
        return json.loads(text)

    def ends(self, seconds: float) -> bool:
        """Return True if the statements end within so many seconds: ``end()`` then returns at once."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def do(self, code: str) -> Any:
        self.begin(code)
        return self.end()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise EOFError("the process has died")
        return line.rstrip("\n")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end; return the exit code, or the negative number of the signal that killed the process."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> int:
        """Let the process end by itself; return its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return self.wait()

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


def _forked(code: str, names: dict[str, Any]) -> int:
    """Execute statements in a forked child; return its exit code, or the negative number of the signal."""
    child = os.fork()
    if not child:
        try:
            exec(code, names)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Execute the statements that arrive until the input ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import shmrpc
    import shmrpc.sync
    from tests.helpers import crash_points

    names: dict[str, Any] = {"shmrpc": shmrpc, "sync": shmrpc.sync, "crash_points": crash_points, "forked": _forked}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        names["result"] = None
        try:
            exec(json.loads(line), names)
            text = json.dumps(names["result"])
        except BaseException:
            text = f"raised {json.dumps(traceback.format_exc())}"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
