"""A job that an executor does for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Job:
    """A call of ``work`` in an executor, submitted on creation, which must be in an event loop.

    ``on_end`` is called in the loop after the work or its cancellation. Raises RuntimeError if the executor was shut
    down.
    """

    def __init__(
        self, executor: Executor, work: Callable[[], Any], on_end: Callable[[Job], None] = lambda job: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._over = self._loop.create_future()
        self._future = executor.submit(work)
        self._future.add_done_callback(functools.partial(_notify, [self]))

    def _finish(self) -> None:
        """Call ``on_end``, and wake the task that waits for the job."""
        self._on_end(self)
        if not self._over.done():
            self._over.set_result(None)

    async def ended(self) -> None:
        """Wait until the job has run, or was cancelled before it began.

        Call this only while no task waits in result().
        """
        if not self._future.done():
            over = self._over = self._loop.create_future()
            await over

    async def result(self) -> Any:
        """Wait for the job; return its result or raise its exception.

        Cancelling the wait cancels a job that has not begun. Raises CancelledError after a shutdown of the executor.
        """
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
    """Let the loop finish the job. The future refers to a list without the job, which would keep the result."""
    ended = job.pop()
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        ended._loop.call_soon_threadsafe(ended._finish)
