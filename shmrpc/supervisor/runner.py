"""The run of a server until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Final

from shmrpc import _core
from shmrpc.server.server import CLOSE_TIMEOUT, Server
from shmrpc.service.service import Service
from shmrpc.supervisor.config import ServeConfig
from shmrpc.supervisor.forced_exit import QUICK_STOP_SECONDS, ForcedExit, StopSignals

logger = logging.getLogger("shmrpc.server")

#: CPU time slice that the event loop requests, in nanoseconds: the kernel's minimum. Beside eight busy processes, 1.9 %
#: of calls wait for the end of another process's slice by default, 0.5 % with 200 µs, and 0.1 % with this slice.
_TIME_SLICE_NS: Final = 100_000


class ServerRunner:
    """The run of a server in an event loop until a signal stops it; a process that does not stop in time ends by force.

    A graceful stop has ``grace`` seconds, and :data:`~shmrpc.server.server.CLOSE_TIMEOUT` more for cancelled calls and
    lifespans; a quick stop has :data:`~shmrpc.supervisor.forced_exit.QUICK_STOP_SECONDS`. ``on_drain`` is called at the
    beginning of a graceful stop.
    """

    def __init__(self, server: Server, grace: float, on_drain: Callable[[], None] = lambda: None) -> None:
        self._server = server
        self._grace = grace
        self._on_drain = on_drain
        self._forced_exit = ForcedExit(server.still_running)
        self._owner_pid = os.getpid()
        #: Signals that stop the server at once; if there are none, any second signal does.
        self._at_once: Collection[signal.Signals] = ()
        self._has_signal = False
        self._signals = StopSignals()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Task that runs the server.
        self._task: asyncio.Task[None] | None = None
        self._is_ready = False
        #: Set to begin a graceful stop.
        self._drain_requested = asyncio.Event()
        #: True once the server has to stop at once.
        self._is_stopped = False

    def handle_signals(self, graceful: Collection[signal.Signals], at_once: Collection[signal.Signals] = ()) -> None:
        """Install handlers for the signals that stop the server, which run also while an endpoint occupies the loop.

        Signals of ``at_once`` stop the server at once; without them, any second signal does. Call this in the main
        thread. An event loop that closes removes its signal handlers: call this again afterwards, for code that keeps
        the process running.
        """
        self._at_once = at_once
        for number in (*graceful, *at_once):
            with contextlib.suppress(RuntimeError):  # No event loop runs.
                asyncio.get_running_loop().add_signal_handler(number, lambda: None)  # Wakes the loop.
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Begin to stop. Takes no lock: the code that the signal interrupted may hold it."""
        if os.getpid() != self._owner_pid:
            return  # A forked child is no server.
        if self._signals.is_repeat(number):
            return
        at_once = number in self._at_once or (self._has_signal and not self._at_once)
        self._has_signal = True
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop_at_once if at_once else self.drain)
        self._forced_exit.schedule(QUICK_STOP_SECONDS if at_once else self._grace + CLOSE_TIMEOUT)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until drained or stopped; call ``on_ready`` once the server serves. Call this once.

        Raises what entering, draining or leaving the server raises. Returns without an exception after a stop, also one
        before the start.
        """
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            if self._is_stopped:
                return
            async with self._server:
                self._is_ready = True
                _freeze_garbage()
                _request_short_slices()
                on_ready()
                await self._drain_requested.wait()
                await self._server.drain(self._grace)
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise

    @property
    def is_draining(self) -> bool:
        """True if the server accepts no new calls."""
        return self._drain_requested.is_set() or self._is_stopped

    def drain(self) -> None:
        """Stop gracefully, see :meth:`Server.drain`; at once if the server does not serve so far. Does not wait.

        A process that lives after the grace period and CLOSE_TIMEOUT is ended by force. Call this in the loop.
        Idempotent.
        """
        self._forced_exit.schedule(self._grace + CLOSE_TIMEOUT)
        if self._is_ready:
            self._drain_requested.set()
        else:
            self._cancel()
        self._on_drain()

    def _cancel(self) -> None:
        """Cancel the task that runs the server."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def _stop_at_once(self) -> None:
        """Cancel the calls in flight, and stop the server."""
        if self.is_draining:
            logger.warning("stopping at once: calls in flight are cancelled")
        self._cancel()


def _freeze_garbage() -> None:
    """Exempt all present objects from garbage collection, after the imports and the start of every lifespan.

    These objects live as long as the process. Otherwise each full collection would traverse them and occupy the loop
    for tens of milliseconds, and requests with thousands of values cause many collections.
    """
    gc.collect()
    gc.freeze()


def _request_short_slices() -> None:
    """Request short time slices, so that the loop gets a CPU as soon as it has work, not milliseconds later.

    The kernel then also preempts the loop sooner; the loop's share stays the same. Kernels before 6.12 ignore this.
    """
    try:
        _core.shorten_time_slice(_TIME_SLICE_NS)
    except OSError as error:  # Some sandboxes forbid the system call.
        logger.debug("cannot shorten the server's time slice: %s", error)


def run_here(config: ServeConfig, services: Sequence[Service], on_ready: Callable[[], None]) -> None:
    """Serve in this process until SIGINT or SIGTERM. Call this in the main thread.

    Raises ServeError if an option is out of range, and what entering the server raises. The signal handlers stay
    installed, for code that keeps the process running.
    """
    runner = ServerRunner(config.make_server(services), config.grace)
    graceful = (signal.SIGINT, signal.SIGTERM)

    async def run() -> None:
        runner.handle_signals(graceful)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _refuse_restart)
        await runner.run(on_ready)

    config.run(run())
    runner.handle_signals(graceful)


def _refuse_restart() -> None:
    """Log that a server without workers cannot restart."""
    logger.warning("SIGHUP ignored: a restart without lost calls needs --workers N")
