"""How workers are started: by a template that forks them, or by exec. Nothing of theirs has a name."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shmrpc.basics.green_threads import new_poll
from shmrpc.pools.transfer.main_module import preparation

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger("shmrpc.pool")

_BEGIN: Final = (
    "import sys; sys.path[:] = {path!r}; from shmrpc.pools.processes.{module} import {function}; {function}()"
)
#: Seconds within which a template forks. It takes some milliseconds.
_FORKING: Final = 5.0
#: Seconds for which it is given time to see that its workers have ended.
_REAPING: Final = 1.0
_LARGEST: Final = 1 << 16


class Order(msgspec.Struct):
    """What a new worker is told first."""

    number: int
    #: What multiprocessing tells a process that it spawns, so that `__main__` is found; pickled.
    preparation: bytes
    #: The CPU that it is kept on.
    cpu: int | None
    #: Bytes of data that it may have.
    memory: int | None
    #: Whether classes of the program go by value, since it cannot be imported.
    by_value: bool


class Setup(msgspec.Struct):
    """What a template is told first."""

    preparation: bytes
    #: Whether it imports the program itself, for all workers.
    prepares: bool


class Fit(msgspec.Struct, tag=True):
    """A template can fork workers."""


class Unfit(msgspec.Struct, tag=True):
    """A template cannot, and has ended."""

    why: str


class Started(msgspec.Struct, tag=True):
    """A template has forked a worker, whose pidfd comes with this."""

    pid: int


class NotForked(msgspec.Struct, tag=True):
    """It could not."""

    errno: int
    why: str


class Ended(msgspec.Struct, tag=True):
    """A worker has ended. Status: its exit status, a signal's number with a minus."""

    pid: int
    status: int


_reports: Final = msgspec.msgpack.Decoder(Fit | Unfit | Started | NotForked | Ended)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all workers of a pool have in common."""

    environment: dict[str, str]
    memory: int | None = None
    cpus: tuple[int, ...] | None = None
    by_value: bool = False

    def order(self, number: int) -> Order:
        """What a worker is told."""
        cpu = self.cpus[number % len(self.cpus)] if self.cpus else None
        return Order(number, preparation(), cpu, self.memory, self.by_value)


class WorkerProcess:
    """A worker as its pool sees it. ``told``: how it has ended, once that is known."""

    def __init__(self, pid: int, pidfd: int, control: socket.socket, told: Callable[[], int | None]) -> None:
        self.pid = pid
        self.control = control
        #: Readable once it has ended.
        self.pidfd = pidfd
        self._told = told

    def interrupt(self, number: int) -> None:
        """Sends it a signal; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.interrupt(signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, and none has continued it."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except OSError:  # It has ended.
            return False

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Whether it has ended; waits this many seconds for that."""
        return self.pidfd < 0 or _readable(self.pidfd, timeout)

    def status(self) -> int | None:
        """Its exit status, a signal's number with a minus; None while it lives, and as long as nobody has told."""
        return self._told() if self.has_ended() else None

    def wait(self, timeout: float) -> None:
        """Waits until it has ended, and ends it then."""
        if not self.has_ended(timeout):
            self.kill()
            self.has_ended(_FORKING)

    def close(self) -> None:
        """Closes the descriptors of a process that has ended. Again: nothing."""
        if self.pidfd >= 0:
            self._told()  # Reaps it, if it is our child.
            os.close(self.pidfd)
            self.pidfd = -1
        self.control.close()


class Starter:
    """Starts the workers of a pool: forked from its template, or by exec if there can be none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._template: _Template | None = None
        #: A pipe whose other end workers and templates have: it ends with this process, also if that becomes another.
        self._life: tuple[int, int] | None = None
        #: Whether a template imports the program; not if that leaves it with threads or open files.
        self._prepares = True
        self._forks = True
        self._is_closed = False

    def start(self, number: int) -> WorkerProcess:
        """Starts a worker. It takes a while: to be run in a thread. Raises OSError if there cannot be one."""
        order = self._settings.order(number)
        with self._lock:
            self._check_open()
            if self._life is None:
                self._life = os.pipe2(os.O_CLOEXEC)
            life = self._life[0]
            while self._forks:
                self._check_open()
                try:
                    if self._template is None:
                        self._template = _Template(self._settings, life, prepares=self._prepares)
                        self._template.begin()
                    return self._template.fork(order)
                except _UnfitError as unfit:
                    logger.debug("workers are not forked from one that has imported the program: %s", unfit)
                    self._forks, self._prepares = self._prepares, False
                except _LostError as lost:
                    self._check_open()
                    logger.warning("the template of a pool's workers %s: another one takes its place", lost)
                self._drop()
            self._check_open()
            return _execute(self._settings.environment, order, life)

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError("the pool is closed")

    def _drop(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None

    def stop(self) -> None:
        """Starts no more workers. A start that waits for the program to be imported raises OSError."""
        self._is_closed = True
        if (template := self._template) is not None and not template.is_ready:
            template.kill()

    def close(self) -> None:
        """Ends the template, once it has seen the ends of the workers, which have ended."""
        self.stop()
        with self._lock:
            if self._template is not None:
                self._template.reap()
            self._drop()
            if self._life is not None:
                for end in self._life:
                    os.close(end)
                self._life = None


class _UnfitError(Exception):
    """There can be no such template."""


class _LostError(Exception):
    """The template has died, or does not answer."""


class _Template:
    """A pool's client of :mod:`shmrpc.pools.processes.fork_server`. ``begin`` and ``fork`` one at a time."""

    def __init__(self, settings: Settings, life: int, *, prepares: bool) -> None:
        self._setup = Setup(preparation(), prepares)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            with theirs:
                arguments = [str(theirs.fileno()), str(life)]
                self._process = _python("fork_server", "main", arguments, settings.environment)
        except BaseException:
            self._control.close()
            raise
        self._receiving = threading.Lock()
        #: The workers that it has forked, by their process: how each has ended.
        self._statuses: dict[int, int | None] = {}
        self.is_ready = False

    def begin(self) -> None:
        """Waits until it can fork. Raises _UnfitError or _LostError."""
        try:
            with _this_process() as master:
                report, _ = self._ask(self._setup, master, None)
        except _LostError as lost:  # By what the program does as it is imported, as a rule.
            raise _UnfitError(f"it {lost} as it imported the program") from None
        if isinstance(report, Unfit):
            raise _UnfitError(report.why)
        self.is_ready = True

    def fork(self, order: Order) -> WorkerProcess:
        """Has it fork a worker. Raises _LostError, or OSError if there can be no more processes."""
        ours, theirs = _control_pair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            report, descriptors = self._ask(order, theirs.fileno(), _FORKING)
            if isinstance(report, NotForked):
                raise OSError(report.errno, report.why)
            assert isinstance(report, Started)
            stack.pop_all()
        ours.setblocking(False)
        pid = report.pid
        self._statuses.setdefault(pid, None)
        return WorkerProcess(pid, descriptors[0], ours, lambda: self._status(pid))

    def _ask(self, what: Any, descriptor: int, timeout: float | None) -> tuple[Any, list[int]]:
        """Sends something; the answer, with its descriptors. Raises _LostError if there is none within the time."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._receiving:  # From here on, since who looks for the ends of workers would drop the answer.
            try:
                socket.send_fds(self._control, [msgspec.msgpack.encode(what)], [descriptor])
            except OSError:
                raise _LostError("has died") from None
            while True:
                left = None if end is None else end - time.monotonic()
                if not _readable(self._control.fileno(), left):
                    raise _LostError(f"has not answered for {timeout:g} s")
                report, descriptors = self._next()
                if report is None:
                    raise _LostError("has died")
                if not isinstance(report, Ended):
                    return report, descriptors

    def _next(self) -> tuple[Any, list[int]]:
        try:
            packet, descriptors, *_ = socket.recv_fds(self._control, _LARGEST, 1)
        except OSError:
            return None, []
        report = _reports.decode(packet) if packet else None
        if isinstance(report, Ended):
            self._statuses[report.pid] = report.status
        return report, descriptors

    def _status(self, pid: int) -> int | None:
        """How a worker has ended, as far as the template has told."""
        if self._receiving.acquire(blocking=False):
            try:
                while self._control.fileno() >= 0 and _readable(self._control.fileno(), 0.0):
                    if self._next()[0] is None:
                        break
            finally:
                self._receiving.release()
        return self._statuses.get(pid)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def reap(self) -> None:
        """Waits a moment until it has seen its workers end: no other process reaps them."""
        end = time.monotonic() + _REAPING
        with self._receiving:
            while None in self._statuses.values() and _readable(self._control.fileno(), end - time.monotonic()):
                if self._next()[0] is None:
                    break

    def close(self) -> None:
        """Ends it, and closes what belongs to it."""
        self.kill()
        self._process.wait()
        with self._receiving:
            self._control.close()


def _readable(descriptor: int, timeout: float | None) -> bool:
    poll = new_poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1e3))


@contextlib.contextmanager
def _this_process() -> Iterator[int]:
    """A pidfd of this process."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _control_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a worker's connection."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return pair


def _execute(environment: dict[str, str], order: Order, life: int) -> WorkerProcess:
    """Starts a worker by exec."""
    ours, theirs = _control_pair()
    with theirs, contextlib.ExitStack() as stack:
        stack.callback(ours.close)
        process = _python("bootstrap", "begin", [str(theirs.fileno())], environment)
        stack.callback(process.kill)
        with _this_process() as master:
            socket.send_fds(ours, [msgspec.msgpack.encode(order)], [master, life])
        pidfd = os.pidfd_open(process.pid)
        stack.pop_all()
    ours.setblocking(False)
    return WorkerProcess(process.pid, pidfd, ours, lambda: _status(process))


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a child; None also if this process ignores SIGCHLD, and so cannot know."""
    status = process.poll()
    return None if status == 0 and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else status


def _python(
    module: str, function: str, arguments: Sequence[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Starts Python with a function of this package. The first arguments are descriptors that it inherits.

    Behind them are the program's own, which it has as its own then.
    """
    import subprocess  # Few programs have pools.
    from multiprocessing.util import _args_from_interpreter_flags as interpreter_flags  # type: ignore[attr-defined]

    code = _BEGIN.format(path=sys.path, module=module, function=function)
    return subprocess.Popen(
        [
            sys.executable,
            *interpreter_flags(),
            "-c",
            code,
            *arguments,
            *(each for each in sys.argv if isinstance(each, str)),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=[*map(int, arguments)],
        env={**os.environ, **environment},
        start_new_session=True,  # A terminal's Ctrl-C is for the master.
    )
