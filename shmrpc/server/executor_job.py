"""Work that an executor does for the loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Job:
    """Work that an executor does. ``on_end`` is called in the loop when it has ended, in whatever way."""

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
        """Waits until it has ended, or was given up before it began."""
        if not self._future.done():
            over = self._over = self._loop.create_future()
            await over

    async def result(self) -> Any:
        """What the work returns or raises. Work that has not begun is given up if nobody waits for it any more."""
        try:
            await self._over
        except asyncio.CancelledError:
            self._future.cancel()
            raise
        try:
            if self._future.cancelled():  # The executor has ended before its turn came.
                raise asyncio.CancelledError
            # What it raised is raised here: the loop's future would take no StopIteration.
            return self._future.result()
        finally:
            del self  # Its exception has this frame in its traceback.


def _notify(job: list[Job], future: Future[Any]) -> None:
    """Tells the job's loop that it has ended. The future keeps this, but not the job: the two would keep the result."""
    ended = job.pop()
    with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
        ended._loop.call_soon_threadsafe(ended._end)
