"""Runs a server until it is told to stop."""

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
from shmrpc.supervisor.config import Config
from shmrpc.supervisor.ending import AT_ONCE, LastResort, StopSignals

logger = logging.getLogger("shmrpc.server")

#: Nanoseconds of CPU that the loop asks for at a time: the least that the kernel takes. Beside eight busy processes,
#: 1.9 % of calls wait for the end of another's slice by default, 0.5 % with 200 µs, and 0.1 % with this.
_TIME_SLICE: Final = 100_000


class Runner:
    """Runs a server in a loop until it is told to stop, and ends the process if it does not stop in time.

    To stop gently it has ``grace`` seconds, and :data:`~shmrpc.server.server.CLOSE_TIMEOUT` more for what is cancelled
    then and for the lifespans; to stop at once, :data:`~shmrpc.supervisor.ending.AT_ONCE`. ``on_drain`` is called when
    it begins to stop gently.
    """

    def __init__(self, server: Server, grace: float, on_drain: Callable[[], None] = lambda: None) -> None:
        self._server = server
        self._grace = grace
        self._on_drain = on_drain
        self._last_resort = LastResort(server.still_running)
        self._process = os.getpid()
        #: The signals that stop it at once; if there are none, any second signal does.
        self._at_once: Collection[signal.Signals] = ()
        self._has_heard = False
        self._signals = StopSignals()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What runs the server.
        self._task: asyncio.Task[None] | None = None
        self._is_ready = False
        #: Set when it is to stop gently.
        self._told = asyncio.Event()
        #: Whether it is to stop at once.
        self._stopped = False

    def listen(self, gentle: Collection[signal.Signals], at_once: Collection[signal.Signals] = ()) -> None:
        """Let these signals stop it, also while an endpoint holds the loop: those of ``at_once`` at once.

        Without ``at_once`` any second signal stops it at once. A loop that closes removes its signal handlers: call
        this again afterwards, for whatever may still keep the process.
        """
        self._at_once = at_once
        for number in (*gentle, *at_once):
            with contextlib.suppress(RuntimeError):  # No loop runs any longer.
                asyncio.get_running_loop().add_signal_handler(number, lambda: None)  # To wake the loop.
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take no lock: the code that the signal interrupted may hold it."""
        if os.getpid() != self._process:
            return  # This is a forked child, and no server.
        if self._signals.is_repeat(number):
            return
        at_once = number in self._at_once or (self._has_heard and not self._at_once)
        self._has_heard = True
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop_at_once if at_once else self.drain)
        self._last_resort.within(AT_ONCE if at_once else self._grace + CLOSE_TIMEOUT)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until told to stop. Raises what entering the server raises."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            if self._stopped:
                return
            async with self._server:
                self._is_ready = True
                _freeze_garbage_collection()
                _ask_for_short_slices()
                on_ready()
                await self._told.wait()
                await self._server.drain(self._grace)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    @property
    def is_draining(self) -> bool:
        """Whether it takes no new calls."""
        return self._told.is_set() or self._stopped

    def drain(self) -> None:
        """Stop gently, see :meth:`Server.drain`; at once if it does not serve yet. Again: nothing."""
        self._last_resort.within(self._grace + CLOSE_TIMEOUT)
        if self._is_ready:
            self._told.set()
        else:
            self._cancel()
        self._on_drain()

    def _cancel(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def _stop_at_once(self) -> None:
        if self.is_draining:
            logger.warning("stopping at once: calls under way are cancelled")
        self._cancel()


def _freeze_garbage_collection() -> None:
    """Exempt from garbage collection what exists once everything is imported and every lifespan has begun.

    It stays as long as the process. Otherwise each full collection looks through it and holds the loop for tens of
    milliseconds, and requests with thousands of values cause one after the other.
    """
    gc.collect()
    gc.freeze()


def _ask_for_short_slices() -> None:
    """Let the loop have a CPU as soon as it has work, and not after others have computed for milliseconds.

    The kernel then also takes the CPU away sooner; the loop's share stays the same. Kernels before 6.12 ignore this.
    """
    try:
        _core.shorten_time_slice(_TIME_SLICE)
    except OSError as error:  # Some sandboxes forbid it.
        logger.debug("the server's time slice stays as it is: %s", error)


def run_here(config: Config, services: Sequence[Service], on_ready: Callable[[], None]) -> None:
    """Serve in this process until SIGINT or SIGTERM; the signals still count for what keeps the process afterwards."""
    runner = Runner(config.server(services), config.grace)
    gentle = (signal.SIGINT, signal.SIGTERM)

    async def run() -> None:
        runner.listen(gentle)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _refuse_restart)
        await runner.run(on_ready)

    config.run(run())
    runner.listen(gentle)


def _refuse_restart() -> None:
    logger.warning("SIGHUP: restarting without a lost call needs --workers N; this server goes on as it is")
