"""A worker process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from shmrpc.host import fork
from shmrpc.host.processes import explain_no_progress
from shmrpc.server.server import CLOSE_TIMEOUT
from shmrpc.supervisor import messages
from shmrpc.supervisor.config import Config
from shmrpc.supervisor.ending import AT_ONCE, FORCED

logger = logging.getLogger("shmrpc.supervisor")

#: Seconds that a worker may take longer than it allows itself, see :class:`Runner`, before it is told to stop at once,
#: and again before it is killed.
_MARGIN: Final = 5.0
#: Seconds between orders to a worker that was told to stop at once, and how many it gets before it is killed.
_AGAIN: Final = 0.5
_ORDERS: Final = round((AT_ONCE + _MARGIN) / _AGAIN)
#: Seconds in which a worker has to answer before a client is passed to it; after that the next worker is asked.
_ANSWER: Final = 0.25
#: Seconds after that until the log says that the worker does not answer.
_LONG_SILENCE: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """A worker process, the socket to it, and what it has said.

    Raises OSError if no process can be started. ``on_imported`` and ``on_ready`` are called with this worker when it
    has imported what it is to serve, and when it serves. ``quick_deaths``: how many workers in its place have just
    died, one after the other, before they served or soon after. ``environment``: variables that it has besides ours.
    """

    def __init__(
        self,
        config: Config,
        on_imported: Callable[[WorkerProcess], None],
        on_ready: Callable[[WorkerProcess], None],
        quick_deaths: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.quick_deaths = quick_deaths
        #: The endpoints of each service that it offers.
        self.offers: dict[str, list[str]] = {}
        #: Whether it takes no new clients.
        self.draining = False
        #: Whether we have told it to end.
        self.dismissed = False
        #: Whether it is older than the last order to restart.
        self.outdated = False
        #: Whether it is to replace a worker that still serves.
        self.is_successor = False
        #: Why it could not serve, in its own words.
        self.failure = ""
        #: True if the cause is a wrong target or option.
        self.failure_is_usage = False
        #: When it began to serve, in seconds of time.monotonic().
        self.ready_at: float | None = None
        #: True when it is ready, False if it dies before.
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        #: What it last reported of its connections.
        self.load = messages.Connections(0, 0, {}, False)
        #: Whether it did not answer when last asked; it is passed no clients until it does.
        self.is_silent = False
        #: Clients that wait for its answer.
        self.asked = 0
        #: Whether it is there; while it is being asked.
        self._answer: asyncio.Future[bool] | None = None
        #: Until it has been silent for long; None once the log has said so.
        self._long_silence: asyncio.TimerHandle | None = None
        #: Clients passed to it.
        self._passed = 0
        #: When the last client was passed to it, in seconds of time.monotonic().
        self.last_passed = 0.0
        #: CPU seconds that it had used when last sampled.
        self._cpu = 0.0
        #: CPU seconds per second that it has used lately.
        self.cpu_lately = 0.0
        self._grace = config.grace
        self._on_imported = on_imported
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        #: Whether it did not end by itself when told to.
        self.forced = False
        #: Until it is told more firmly to end.
        self._ending: asyncio.TimerHandle | None = None
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, _signals_deferred():
                descriptor = theirs.fileno()
                variables = {**os.environ, **(environment or {})}
                self.process = subprocess.Popen(_command(descriptor), pass_fds=[descriptor], env=variables)
        except BaseException:
            self._link.close()
            raise
        self._link.setblocking(False)
        self._link.send(msgspec.msgpack.encode(config))
        self._loop.add_reader(self._link, self._on_packet)
        fork.abandon_in_child(self)

    @property
    def is_ready(self) -> bool:
        """Whether it serves, or has served."""
        return self.ready_at is not None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def clients(self) -> int:
        """How many clients it has, or will have in a moment."""
        load = self.load
        return sum(load.connections.values()) + load.arriving + self._passed - load.adopted + self.asked

    def begin(self) -> None:
        """Let it serve."""
        self._send(messages.Begin())

    def _send(self, order: messages.Order) -> bool:
        """Send an order; False if there is no room for it, or the worker is gone."""
        try:
            self._link.send(messages.encode(order))
        except OSError:
            return False
        return True

    async def is_there(self) -> bool:
        """Whether it answers soon. A client passed to a stopped worker would wait for it."""
        if self._answer is None:
            if not self._send(messages.Ask()):
                return False
            self._answer = self._loop.create_future()
        self.asked += 1
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), _ANSWER)
        except TimeoutError:
            if not self.is_silent:
                self.is_silent = True
                self._long_silence = self._loop.call_later(_LONG_SILENCE, self._on_long_silence)
            return False
        finally:
            self.asked -= 1

    def _on_long_silence(self) -> None:
        self._long_silence = None
        logger.warning("worker %d does not answer, and is passed no clients until it does: %s", self.pid, self.silence)

    @property
    def silence(self) -> str:
        """Why it does not answer."""
        return explain_no_progress(self.pid)

    def _answered(self, *, is_there: bool) -> None:
        if self._answer is not None:
            self._answer.set_result(is_there)
            self._answer = None
        if self.is_silent and is_there:
            if self._long_silence is None:
                logger.warning("worker %d answers again, and is passed clients", self.pid)
            self.is_silent = False
        if self._long_silence is not None:
            self._long_silence.cancel()
            self._long_silence = None

    def adopt(self, service: str, accepted: socket.socket) -> bool:
        """Pass it a client; False if that fails. If it dies before it takes the client, the client sees the end."""
        try:
            packet = messages.encode(messages.Adopt(service))
            socket.send_fds(self._link, [packet], [accepted.fileno()], socket.MSG_DONTWAIT)
        except OSError:
            return False
        self._passed += 1
        self.last_passed = time.monotonic()
        return True

    def shed(self, clients: int) -> None:
        """Have it send so many of its clients to the other workers: those that connect again by themselves."""
        self._send(messages.Shed(clients))

    def _on_packet(self) -> None:
        try:
            packet = self._link.recv(messages.MAX_PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        if not packet:  # It has ended, or is about to; SIGCHLD tells us when.
            self._loop.remove_reader(self._link)
            return
        match messages.decode_news(packet):
            case messages.WillServe(service, endpoints):
                self.offers[service] = endpoints
            case messages.Imported():
                self._on_imported(self)
            case messages.Serving():
                self.ready_at = time.monotonic()
                self.ready.set_result(True)
                self._on_ready(self)
            case messages.Here():
                self._answered(is_there=True)
            case messages.Connections() as load:
                self.load = load
                self.draining = self.draining or load.draining
            case messages.Failed(reason, is_usage):
                self.failure, self.failure_is_usage = reason, is_usage

    def drain(self) -> None:
        """Let it end gently."""
        if not self.dismissed:
            self.dismissed = self.draining = True
            # The signal reaches it even while an endpoint holds its loop. It goes first: a worker that has read the end
            # of the socket may have closed its loop already, and with it removed its signal handlers.
            if self.is_ready:
                self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)
            self._end_in(self._grace + CLOSE_TIMEOUT + _MARGIN, self.quit)

    def quit(self) -> None:
        """Let it end at once."""
        self.drain()
        self._order_end(_ORDERS)

    def _order_end(self, orders: int) -> None:
        """Order it to end at once, up to ``orders`` times, then kill it.

        One order may not do: Python misses a signal that comes just as the main thread goes on to wait in an endpoint,
        after an earlier signal.
        """
        self.process.send_signal(signal.SIGQUIT)
        self._end_in(_AGAIN, partial(self._order_end, orders - 1) if orders > 1 else self._kill)

    def _end_in(self, seconds: float, end: Callable[[], None]) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = self._loop.call_later(seconds, end)

    def _kill(self) -> None:
        logger.warning("worker %d did not end in time, and is killed", self.pid)
        self.forced = True
        self.process.kill()

    def has_ended(self) -> bool:
        """Whether it has ended; if so, release all that we have of it."""
        if self.process.poll() is None:
            return False
        while self._loop.remove_reader(self._link):  # Its last words may still be there.
            self._loop.add_reader(self._link, self._on_packet)
            self._on_packet()
        if self._ending is not None:
            self._ending.cancel()
        self.forced = self.forced or (self.dismissed and not self.failure and self.process.returncode == FORCED)
        if not self.ready.done():
            self.ready.set_result(False)
        self._answered(is_there=False)
        self._link.close()
        return True

    @property
    def end(self) -> str:
        """How it has ended."""
        code = self.process.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def sample_cpu(self) -> None:
        """Update how much CPU time it uses. To be called once a second."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        used = (int(fields[11]) + int(fields[12])) / _TICKS
        self.cpu_lately = (self.cpu_lately + used - self._cpu) / 2
        self._cpu = used

    def abandon(self) -> None:
        """Close the socket in a forked child, which is no supervisor."""
        fork.close_socket(self._link)


def _command(descriptor: int) -> list[str]:
    """The command that starts a worker: a fresh interpreter that finds the same modules, and so this very package.

    ``python -m`` would look in the working directory first, where there may be another shmrpc.
    """
    path = [each or os.getcwd() for each in sys.path]
    source = f"import sys; sys.path[:] = {path!r}; from shmrpc.supervisor.worker import main; main()"
    return [sys.executable, "-c", source, str(descriptor)]


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Start processes that do not hear a terminal's signals until they choose to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
