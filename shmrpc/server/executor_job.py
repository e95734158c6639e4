"""Work that an executor does for the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Job:
    """Work that an executor does. ``on_end`` is called in the event loop at its end, whether it ran or not."""

    def __init__(
        self, executor: Executor, work: Callable[[], Any], on_end: Callable[[Job], None] = lambda job: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._over = self._loop.create_future()
        self._future = executor.submit(work)
        self._future.add_done_callback(functools.partial(_notify, [self]))

    def _end(self) -> None:
        self._on_end(self)
        if not self._over.done():
            self._over.set_result(None)

    async def ended(self) -> None:
        """Wait until the job has ended, or was cancelled before it began."""
        if not self._future.done():
            over = self._over = self._loop.create_future()
            await over

    async def result(self) -> Any:
        """Wait for the job; return its result or raise its exception. A cancelled wait cancels a pending job."""
        try:
            await self._over
        except asyncio.CancelledError:
            self._future.cancel()
            raise
        try:
            if self._future.cancelled():  # The executor was shut down first.
                raise asyncio.CancelledError
            # Raised here, because a future of the loop accepts no StopIteration.
            return self._future.result()
        finally:
            del self  # The traceback of its exception refers to this frame.


def _notify(job: list[Job], future: Future[Any]) -> None:
    """Report the end of a job to its loop. The future keeps the list but not the job, which would keep the result."""
    ended = job.pop()
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        ended._loop.call_soon_threadsafe(ended._end)
