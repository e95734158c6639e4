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
from shmrpc.host.processes import describe_killed, explain_no_progress
from shmrpc.server.server import CLOSE_TIMEOUT
from shmrpc.supervisor import messages
from shmrpc.supervisor.config import ServeConfig
from shmrpc.supervisor.forced_exit import FORCED_EXIT_CODE, QUICK_STOP_SECONDS

logger = logging.getLogger("shmrpc.supervisor")

#: Seconds that a worker may exceed its own limits, see :class:`ServerRunner`, before the supervisor orders a quick
#: stop, and again before it kills the worker.
_STOP_MARGIN: Final = 5.0
#: Seconds between signals to a worker that has to stop at once, and their number before it is killed.
_SIGNAL_INTERVAL: Final = 0.5
_MAX_SIGNALS: Final = round((QUICK_STOP_SECONDS + _STOP_MARGIN) / _SIGNAL_INTERVAL)
#: Seconds that a worker has to answer before it gets a client; then the supervisor tries another worker.
_REPLY_TIMEOUT: Final = 0.25
#: Seconds after that until the silence of a worker is logged.
_SILENCE_LOG_DELAY: Final = 1.0
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """A worker process, the socket to it, and its latest reports.

    Raises OSError if no process can be started. ``on_imported`` and ``on_ready`` are called with the worker when it has
    imported its services, and when it serves. ``quick_deaths``: number of workers in its place that died in a row
    before they served or soon after. ``environment``: variables of the worker, besides those of this process.
    """

    def __init__(
        self,
        config: ServeConfig,
        on_imported: Callable[[WorkerProcess], None],
        on_ready: Callable[[WorkerProcess], None],
        quick_deaths: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.quick_deaths = quick_deaths
        #: Endpoints of each service that the worker offers.
        self.offers: dict[str, list[str]] = {}
        #: True if the worker accepts no new clients.
        self.draining = False
        #: True once the supervisor has ordered the worker to end.
        self.is_dismissed = False
        #: True if the worker started before the latest restart.
        self.is_outdated = False
        #: True if the worker replaces one that still serves.
        self.is_successor = False
        #: Reason that the worker gave for not serving.
        self.failure = ""
        #: True if the cause is a wrong target or option.
        self.failure_is_usage = False
        #: Time at which the worker began to serve, in seconds of time.monotonic().
        self.ready_at: float | None = None
        #: Result True once the worker serves, False if it dies before.
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        #: Latest report of the connections.
        self.report = messages.ConnectionReport(0, 0, {}, False)
        #: True if the worker did not answer the latest query; it gets no clients until it does.
        self.is_silent = False
        #: Number of clients that wait for an answer of the worker.
        self.pending_queries = 0
        #: Future of the answer to the latest query; None if there is no query.
        self._reply_waiter: asyncio.Future[bool] | None = None
        #: Timer until the silence is logged; None afterwards.
        self._silence_timer: asyncio.TimerHandle | None = None
        #: Number of clients passed to the worker.
        self._adopted = 0
        #: Time at which the last client was passed to the worker, in seconds of time.monotonic().
        self.last_adopted_at = 0.0
        #: CPU seconds used up to the last sample.
        self._cpu_seconds = 0.0
        #: Recent CPU usage, in CPUs.
        self.recent_cpu = 0.0
        self._grace = config.grace
        self._on_imported = on_imported
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        #: True if the worker did not end by itself when ordered to.
        self.was_forced = False
        #: Timer until the next, firmer order to end.
        self._stop_timer: asyncio.TimerHandle | None = None
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, _signals_blocked():
                descriptor = theirs.fileno()
                variables = {**os.environ, **(environment or {})}
                self.process = subprocess.Popen(_make_command(descriptor), pass_fds=[descriptor], env=variables)
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._socket.send(msgspec.msgpack.encode(config))
        self._loop.add_reader(self._socket, self._on_packet)
        fork.abandon_in_child(self)

    @property
    def is_ready(self) -> bool:
        """True if the worker serves, or has served."""
        return self.ready_at is not None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self.process.pid

    @property
    def clients(self) -> int:
        """Number of clients that the worker has, was passed, or may be passed once it answers a query."""
        load = self.report
        return sum(load.connections.values()) + load.arriving + self._adopted - load.adopted + self.pending_queries

    def start_serving(self) -> None:
        """Let the worker serve. Does not wait; does nothing if the worker has gone."""
        self._send(messages.StartServing())

    def _send(self, order: messages.SupervisorMessage) -> bool:
        """Send a message; return False if the socket is full or the worker has gone."""
        try:
            self._socket.send(messages.encode(order))
        except OSError:
            return False
        return True

    async def is_responsive(self) -> bool:
        """Return True if the worker answers a query within 0.25 s; otherwise mark it as silent until it answers.

        Return False at once, without that mark, if the query cannot be sent or the worker ends. Callers share a query
        that is open.
        """
        if self._reply_waiter is None:
            if not self._send(messages.StatusQuery()):
                return False
            self._reply_waiter = self._loop.create_future()
        self.pending_queries += 1
        try:
            return await asyncio.wait_for(asyncio.shield(self._reply_waiter), _REPLY_TIMEOUT)
        except TimeoutError:
            if not self.is_silent:
                self.is_silent = True
                self._silence_timer = self._loop.call_later(_SILENCE_LOG_DELAY, self._log_silence)
            return False
        finally:
            self.pending_queries -= 1

    def _log_silence(self) -> None:
        """Log that the worker does not answer."""
        self._silence_timer = None
        logger.warning(
            "worker %d does not answer, and gets no clients until it does: %s", self.pid, self.silence_reason
        )

    @property
    def silence_reason(self) -> str:
        """Reason why the worker may not answer, as seen by the operating system."""
        return explain_no_progress(self.pid)

    def _on_status(self, *, is_responsive: bool) -> None:
        """Resolve the query after an answer, which also ends the silence, or after the end of the worker."""
        if self._reply_waiter is not None:
            self._reply_waiter.set_result(is_responsive)
            self._reply_waiter = None
        if self.is_silent and is_responsive:
            if self._silence_timer is None:
                logger.warning("worker %d answers again, and gets clients", self.pid)
            self.is_silent = False
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None

    def adopt(self, service: str, accepted: socket.socket) -> bool:
        """Pass a client to the worker; return False if that fails. If the worker dies, the client is disconnected.

        Does not wait. The caller closes ``accepted`` in both cases.
        """
        try:
            packet = messages.encode(messages.AdoptClient(service))
            socket.send_fds(self._socket, [packet], [accepted.fileno()], socket.MSG_DONTWAIT)
        except OSError:
            return False
        self._adopted += 1
        self.last_adopted_at = time.monotonic()
        return True

    def shed(self, clients: int) -> None:
        """Have the worker ask so many of its clients to reconnect, so that they come to other workers.

        Does nothing if the message cannot be sent.
        """
        self._send(messages.ShedClients(clients))

    def _on_packet(self) -> bool:
        """Receive and handle one message of the worker; return False if there is none."""
        try:
            packet = self._socket.recv(messages.MAX_PACKET)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            packet = b""
        if not packet:  # The worker has ended, or is about to; SIGCHLD follows.
            self._loop.remove_reader(self._socket)
            return False
        match messages.decode_worker_message(packet):
            case messages.ServiceOffer(service, endpoints):
                self.offers[service] = endpoints
            case messages.ImportDone():
                self._on_imported(self)
            case messages.Serving():
                self.ready_at = time.monotonic()
                self.ready.set_result(True)
                self._on_ready(self)
            case messages.StatusReply():
                self._on_status(is_responsive=True)
            case messages.ConnectionReport() as load:
                self.report = load
                self.draining = self.draining or load.draining
            case messages.StartFailed(reason, is_usage):
                self.failure, self.failure_is_usage = reason, is_usage
        return True

    def drain(self) -> None:
        """Order the worker to end gracefully, without a wait; :meth:`stop_now` follows if it is late. Idempotent."""
        if not self.is_dismissed:
            self.is_dismissed = self.draining = True
            # The signal reaches the worker even while an endpoint occupies its loop. The signal goes first: a worker
            # that has read the end of the socket may have closed its loop, which removes its signal handlers.
            if self.is_ready:
                self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._stop_in(self._grace + CLOSE_TIMEOUT + _STOP_MARGIN, self.stop_now)

    def stop_now(self) -> None:
        """Order the worker to end at once, without a wait; kill the worker if it lives some seconds later."""
        self.drain()
        self._signal_stop(_MAX_SIGNALS)

    def _signal_stop(self, attempts: int) -> None:
        """Signal the worker to end at once, at most ``attempts`` times at an interval, then kill it.

        One signal may not suffice: Python misses a signal that comes just as the main thread resumes to wait in an
        endpoint, after an earlier signal.
        """
        self.process.send_signal(signal.SIGQUIT)
        self._stop_in(_SIGNAL_INTERVAL, partial(self._signal_stop, attempts - 1) if attempts > 1 else self._kill)

    def _stop_in(self, seconds: float, stop: Callable[[], None]) -> None:
        """Schedule ``stop``, the next and firmer order to end, after ``seconds``; it replaces the scheduled one."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = self._loop.call_later(seconds, stop)

    def _kill(self) -> None:
        """Kill the worker, and record that it was forced to end."""
        logger.warning("worker %d did not end in time: killing it", self.pid)
        self.was_forced = True
        self.process.kill()

    def has_ended(self) -> bool:
        """Return True if the worker has ended: its exit status, last messages and resources are then collected.

        Do not call this again after True.
        """
        if self.process.poll() is None:
            return False
        while self._on_packet():  # Its last messages may not have been read.
            pass
        self._loop.remove_reader(self._socket)  # No end was received if another process holds the worker's socket.
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self.was_forced = self.was_forced or (
            self.is_dismissed and not self.failure and self.process.returncode == FORCED_EXIT_CODE
        )
        if not self.ready.done():
            self.ready.set_result(False)
        self._on_status(is_responsive=False)
        self._socket.close()
        return True

    @property
    def exit_description(self) -> str:
        """Way in which the worker has ended, as the predicate of a sentence. Read this after the end."""
        code = self.process.returncode
        if code < 0:
            return describe_killed(-code)
        return f"exited with code {code}"

    def sample_cpu(self) -> None:
        """Update the recent CPU usage. Call this once a second."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        used = (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
        self.recent_cpu = (self.recent_cpu + used - self._cpu_seconds) / 2
        self._cpu_seconds = used

    def abandon(self) -> None:
        """Close the socket in a forked child, which is no supervisor."""
        fork.close_socket(self._socket)


def _make_command(descriptor: int) -> list[str]:
    """Return the command that starts a worker: a fresh interpreter with the same path, and so with this very package.

    ``python -m`` would look in the working directory first, where there may be another shmrpc.
    """
    path = [each or os.getcwd() for each in sys.path]
    source = f"import sys; sys.path[:] = {path!r}; from shmrpc.supervisor.worker import main; main()"
    return [sys.executable, "-c", source, str(descriptor)]


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGHUP, which a child inherits until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
