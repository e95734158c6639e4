"""The life of a pool, and the asyncio tasks that belong to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shmrpc.basics.loops import running_loop
from shmrpc.errors import LocalProtocolError, PoolBroken


class PoolLifecycle:
    """State of a pool, and the asyncio tasks that end with it.

    ``on_fail`` is called with the error when the pool breaks or closes, to fail everything that waits.
    """

    def __init__(self, on_fail: Callable[[Exception], None]) -> None:
        self._on_fail = on_fail
        #: Event loop of the pool, once it is open.
        self.loop: asyncio.AbstractEventLoop
        #: Error raised by every call while the pool is not open; None while it is open.
        self.closed_error: Exception | None = LocalProtocolError(
            "this pool is not open: use `async with shmrpc.pool(...) as pool:`"
        )
        #: Tasks that closing the pool cancels. An exception of one of them breaks the pool.
        self.background: set[asyncio.Task[Any]] = set()
        #: Tasks of submitted calls, one per call. Closing the pool cancels them.
        self.calls: set[asyncio.Task[None]] = set()
        #: Tasks that shut down workers, and are never cancelled.
        self._shutdowns: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Accept calls, in the running event loop. Raises LocalProtocolError if no loop of asyncio runs."""
        self.loop, self.closed_error = running_loop(), None

    def check_open(self) -> None:
        """Raise the error with which the pool has closed, unless the pool is open."""
        if self.closed_error is not None:
            raise self.closed_error

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run a coroutine in the background until it ends, or the pool closes; return its asyncio task.

        An exception of the coroutine breaks the pool.
        """
        task = self.loop.create_task(coroutine, name=name or None)
        self.background.add(task)
        task.add_done_callback(self._on_background_done)
        return task

    def _on_background_done(self, task: asyncio.Task[Any]) -> None:
        """Break the pool if a background task has raised an exception."""
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else PoolBroken(f"the pool is broken: {error!r}"))

    def start_shutdown(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a coroutine, for which the closing of the pool waits; return its asyncio task.

        Its exception does not break the pool.
        """
        task = self.loop.create_task(coroutine)
        self._shutdowns.add(task)
        task.add_done_callback(self._shutdowns.discard)
        return task

    def fail(self, error: Exception) -> None:
        """Close the pool for new calls, and fail everything that waits. The first error counts. Ends no worker."""
        if self.closed_error is None:
            self.closed_error = error
        self._on_fail(self.closed_error)

    async def stop(self) -> None:
        """Cancel the tasks of the pool, and wait until all of them have ended."""
        for task in [*self.background, *self.calls]:
            task.cancel()
        while remaining := self.background | self.calls | self._shutdowns:
            await asyncio.wait(remaining)
