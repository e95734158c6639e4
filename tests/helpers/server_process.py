"""A server in a process of its own, for tests, and conditions to wait for.

Nothing here needs pytest: servers import it too, and each would take as long again to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import shmrpc
from tests.helpers.prepared_python import PreparedPython

#: Seconds for an event that takes moments on an idle machine: only a failure waits so long.
PATIENCE = 30.0
#: Seconds for the end of a server: fewer than the grace of calls that hang, so that a test notices those.
STOPPING = 25.0


class ServerProcess:
    """``shmrpc serve`` of a service; killed at the end if it has not stopped before.

    ``shmrpc_command``: what a new interpreter takes for ``shmrpc``; ``under``: a command that executes it.
    """

    def __init__(
        self,
        target: str = "tests.helpers.services:service",
        *options: str,
        shmrpc_command: Sequence[str] | None = None,
        under: Sequence[str] = (),
    ) -> None:
        arguments = ["serve", target, *options]
        if shmrpc_command is None and not under:
            self.process: subprocess.Popen[str] = PreparedPython(["-m", "shmrpc", *arguments], stderr=subprocess.PIPE)
        else:
            command = [*under, sys.executable, *(shmrpc_command or ("-m", "shmrpc")), *arguments]
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.greeting = self.process.stderr.readline()
        if not self.greeting.startswith("Serving"):  # A remaining server would disturb other tests.
            raise AssertionError(self.greeting + self.process.communicate(timeout=STOPPING)[1])
        #: The name of the first service that the process serves.
        self.name = self.greeting.split("'")[1]

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> str:
        """Stop the server with SIGTERM; return its stderr."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=STOPPING)
        return errors

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.communicate(timeout=STOPPING)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class InThread:
    """A call in a thread, and its outcome."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.outcome: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:
            self.outcome = error

    def join(self) -> object:
        self._thread.join(90)
        assert not self._thread.is_alive()
        return self.outcome


class Script:
    """A Python program in a process group of its own; killed at the end with all that it forked.

    ``under``: a command that executes it, with arguments. ``has_input``: it reads a pipe, not this process's input.
    """

    def __init__(self, source: str, *arguments: str, under: Sequence[str] = (), has_input: bool = False) -> None:
        program = ["-c", textwrap.dedent(source), *arguments]
        if under:
            command = [*under, sys.executable, *program]
            given, pipe = subprocess.PIPE if has_input else None, subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=given, stdout=pipe, text=True, start_new_session=True)
        else:
            self.process = PreparedPython(program, stdout=subprocess.PIPE, start_new_session=True)

    def line(self) -> str:
        """Return the next line that the program prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def _pauses() -> Iterator[float]:
    """Yield the pauses between checks: short at first, because most conditions become true within moments."""
    pause = 0.0001
    while True:
        yield pause
        pause = min(2 * pause, 0.005)


def eventually(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Return True if the condition becomes true within a generous time."""
    end, pauses = time.monotonic() + seconds, _pauses()
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(next(pauses))
    return True


async def eventually_in_loop(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Return True if the condition becomes true within a generous time, while the loop keeps running."""
    end, pauses = time.monotonic() + seconds, _pauses()
    while not true():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(next(pauses))
    return True


async def eventually_seen(client: shmrpc.Client, what: str, times: int = 1) -> bool:
    """Return True if the service of tests/helpers/stream_service.py counts that many events within a generous time."""
    end = time.monotonic() + PATIENCE
    while (await client.seen()).get(what, 0) != times:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


def timeouts() -> Iterator[float]:
    """Yield timeouts for a call that should begin and then expire: longer ones for a machine that is too busy.

    The first suffices nearly always. The caller takes the next one if the call expired before it began.
    """
    seconds = 0.05
    while seconds < PATIENCE:
        yield seconds
        seconds *= 4


async def forever_expires(client: shmrpc.Client, has_begun: Callable[[], bool], forget: Callable[[], object]) -> None:
    """Let a call of ``forever`` begin and then expire. Drops calls that did not begin."""
    for timeout in timeouts():
        forget()
        try:
            await client.with_options(timeout=timeout).forever()
        except shmrpc.DeadlineExceeded:
            if has_begun():
                return
        else:
            raise AssertionError("the call has not ended at its deadline")
    raise AssertionError("each call had expired before it began")


def is_alive(pid: int) -> bool:
    """Return True if a process is alive; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # The latter if the process ends during the read.
        return False


__all__ = [
    "PATIENCE",
    "STOPPING",
    "InThread",
    "Script",
    "ServerProcess",
    "eventually",
    "eventually_in_loop",
    "eventually_seen",
    "forever_expires",
    "is_alive",
    "timeouts",
]
