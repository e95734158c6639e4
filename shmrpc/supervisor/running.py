"""A server as a program runs it: from its start until it is told to end."""

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
from shmrpc.server.server import CLOSING, Server
from shmrpc.service.service import Service
from shmrpc.supervisor.config import Config
from shmrpc.supervisor.ending import AT_ONCE, LastResort, StopSignals

logger = logging.getLogger("shmrpc.server")

#: Nanoseconds of CPU that the loop asks for at a time: the least that the kernel takes. Beside eight processes that
#: compute 1.9 % of the calls wait for the end of somebody's slice with the usual one; 0.5 % with 200 µs; 0.1 % with it.
_TIME_SLICE: Final = 100_000


class Running:
    """Runs a server in a loop, and ends the process if it is told to stop and does not.

    Told gently it has ``grace`` seconds, and :data:`~shmrpc.server.server.CLOSING` more for what is cancelled then and
    for its lifespans; told to stop at once :data:`~shmrpc.supervisor.ending.AT_ONCE`.
    """

    def __init__(self, server: Server, grace: float) -> None:
        self._server = server
        self._grace = grace
        self._last_resort = LastResort(server.still_running)
        self._process = os.getpid()
        self._at_once: Collection[signal.Signals] = ()
        self._has_heard = False
        self._signals = StopSignals()
        #: Called when it begins to drain.
        self.on_drain: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = False
        self._told = asyncio.Event()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    def listen(self, gentle: Collection[signal.Signals], at_once: Collection[signal.Signals] = ()) -> None:
        """From now on these signals stop it, those of ``at_once`` at once; if there are none, any second one does.

        Also while an endpoint holds the loop. A loop that closes takes signals back: to be called after its end again,
        for what may still keep the process then.
        """
        self._at_once = at_once
        for number in (*gentle, *at_once):
            with contextlib.suppress(RuntimeError):  # There is no loop any more.
                asyncio.get_running_loop().add_signal_handler(number, lambda: None)  # It wakes the loop.
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Whatever the signal has interrupted goes on after this: nothing here may take a lock."""
        if os.getpid() != self._process:
            return  # A forked child is no server.
        if self._signals.is_repeat(number):
            return
        at_once = number in self._at_once or (self._has_heard and not self._at_once)
        self._has_heard = True
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop_at_once if at_once else self.drain)
        self._last_resort.within(AT_ONCE if at_once else self._grace + CLOSING)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serves until :meth:`drain` or :meth:`stop`. Raises what entering the server raises."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            if self._stopped:
                return
            async with self._server:
                self._is_ready = True
                _set_apart()
                _ask_for_short_slices()
                on_ready()
                await self._told.wait()
                await self._server.drain(self._grace)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more calls."""
        return self._told.is_set() or self._stopped

    def drain(self) -> None:
        """Stops gently, see :meth:`Server.drain`; at once if it does not serve yet. Again: nothing."""
        self._last_resort.within(self._grace + CLOSING)
        if self._is_ready:
            self._told.set()
        else:
            self._cancel()
        self.on_drain()

    def stop(self) -> None:
        """Stops at once."""
        self._last_resort.within(AT_ONCE)
        self._cancel()

    def _cancel(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def _stop_at_once(self) -> None:
        if self.is_draining:
            logger.warning("stopping at once: calls under way are cancelled")
        self.stop()


def _set_apart() -> None:
    """What is there once all is imported and every lifespan has begun stays as long as the process.

    A collection of garbage looks through everything else: without this each full one would hold the loop for tens of
    milliseconds, and requests with thousands of values bring them about again and again.
    """
    gc.collect()
    gc.freeze()


def _ask_for_short_slices() -> None:
    """Lets the loop have a CPU as soon as there is something to do, and not when others have computed for milliseconds.

    The kernel then takes it away sooner, too; its share stays the same. Kernels before 6.12 know nothing of this.
    """
    try:
        _core.shorten_time_slice(_TIME_SLICE)
    except OSError as error:  # Somewhere it may be forbidden.
        logger.debug("the server's time slice stays as it is: %s", error)


def run_here(config: Config, services: Sequence[Service], on_ready: Callable[[], None]) -> None:
    """Serves in this process until SIGINT or SIGTERM. What may keep the process afterwards it keeps for its time."""
    running = Running(config.server(services), config.grace)
    gentle = (signal.SIGINT, signal.SIGTERM)

    async def run() -> None:
        running.listen(gentle)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _refuse_restart)
        await running.run(on_ready)

    config.run(run())
    running.listen(gentle)


def _refuse_restart() -> None:
    logger.warning("SIGHUP: restarting without a lost call needs --workers N; this server goes on as it is")
