"""A server as a program runs it: from its start until it is told to end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from typing import Final

from shmrpc import _core
from shmrpc.server import Server

logger = logging.getLogger("shmrpc.server")

#: Nanoseconds of CPU that the loop asks for at a time: the least that the kernel takes. Beside eight processes that
#: compute 1.9 % of the calls wait for the end of somebody's slice with the usual one; 0.5 % with 200 µs; 0.1 % with it.
_TIME_SLICE: Final = 100_000


class Running:
    """Runs a server in the running loop."""

    def __init__(self, server: Server, grace: float) -> None:
        self._server = server
        self._grace = grace
        self._is_ready = False
        self._told = asyncio.Event()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serves until :meth:`drain` or :meth:`stop`. Raises what entering the server raises."""
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
        if self._is_ready:
            self._told.set()
        else:
            self.stop()

    def stop(self) -> None:
        """Stops at once."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def drain_or_stop(self) -> None:
        """Stops gently; the second time at once."""
        if self.is_draining:
            logger.warning("stopping at once: calls under way are cancelled")
            self.stop()
        else:
            self.drain()


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


async def run_here(server: Server, grace: float, on_ready: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM."""
    running = Running(server, grace)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.drain_or_stop)
    loop.add_signal_handler(signal.SIGHUP, _refuse_restart)
    await running.run(on_ready)


def _refuse_restart() -> None:
    logger.warning("SIGHUP: restarting without a lost call needs --workers N; this server goes on as it is")
