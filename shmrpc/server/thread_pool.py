"""The threads of a service or of one endpoint, and a warning if they are too few."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from shmrpc.server.executor_job import Job
from shmrpc.service.call import Call, current_call_var

logger = logging.getLogger("shmrpc.server")

#: Seconds for which calls may wait for a thread without a break, before a warning is logged.
WARN_AFTER: Final = 1.0
#: Marker in the place of StopIteration, which a coroutine cannot raise.
_END: Final = object()


class ThreadPool:
    """The threads of one endpoint, or of all endpoints of a service without their own. For use in one event loop.

    ``whose`` and ``remedy`` are texts for the warning. ``working`` receives the calls that threads work for.
    """

    def __init__(self, size: int, whose: str, remedy: str, working: list[Call]) -> None:
        self._size, self._whose, self._remedy = size, whose, remedy
        self._working = working
        #: Identifiers of the threads, which each thread adds itself.
        self._threads: list[int] = []
        self._executor = ThreadPoolExecutor(
            size, "shmrpc-handler", initializer=lambda: self._threads.append(threading.get_ident())
        )
        #: Endpoints of the calls that have a thread or wait for one.
        self._jobs: dict[Job, str] = {}
        #: Number of iterators that are not closed so far. The executor lives until the last one is closed.
        self._open_iterators = 0
        self._is_closed = False
        #: Timer that logs the warning, while calls wait.
        self._warning: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function in a thread, in a copy of the caller's context; return its result or raise its exception.

        A cancellation ends the wait only, once a thread has begun. Raises RuntimeError after :meth:`close`, and
        CancelledError if the call waits for a thread when the pool is closed.
        """
        self._check_open()
        context = contextvars.copy_context()
        return await self._begin(functools.partial(context.run, function, *args, **kwargs)).result()

    async def iterate(self, items: Iterator[Any]) -> AsyncIterator[Any]:
        """Yield the items of an iterator, each of which a thread computes, in one context.

        At the end, also after a cancellation or :meth:`close`, waits for the running step and closes the iterator in a
        thread. Raises RuntimeError after :meth:`close`, and then leaves an iterator open that had no step.
        """
        self._check_open()
        context = contextvars.copy_context()
        self._open_iterators += 1
        step: Job | None = None
        try:
            while True:
                self._check_open()
                step = self._begin(functools.partial(context.run, next, items, _END))
                if (item := await step.result()) is _END:
                    break
                yield item
                del item  # Does not keep the item until the next one.
        finally:
            try:
                close = getattr(items, "close", None)
                if close is not None:
                    if step is not None:
                        await step.ended()  # A running generator cannot be closed.
                    await self._begin(functools.partial(context.run, close)).result()
            finally:
                self._open_iterators -= 1
                if self._is_closed:
                    self._shut_down()

    def _begin(self, work: Callable[[], Any]) -> Job:
        """Return a new job for ``work``. Starts the timer of the warning if the job must wait for a thread."""
        call = current_call_var.get()
        job = Job(self._executor, work if call is None else functools.partial(self._work, call, work), self._on_job_end)
        self._jobs[job] = call.endpoint if call is not None else "?"
        if len(self._jobs) > self._size and self._warning is None and not self._is_closed:
            self._warning = self._loop.call_later(WARN_AFTER, self._warn)
        return job

    def _work(self, call: Call, work: Callable[[], Any]) -> Any:
        """Run the work of a call in a thread, and list the call in ``working`` meanwhile."""
        self._working.append(call)
        try:
            return work()
        finally:
            self._working.remove(call)

    def _on_job_end(self, job: Job) -> None:
        """Forget a job. Stops the timer of the warning if no job waits for a thread."""
        self._jobs.pop(job, None)
        if len(self._jobs) <= self._size and self._warning is not None:
            self._warning.cancel()
            self._warning = None

    def _warn(self) -> None:
        """Log that calls wait for a thread. The timer starts again only after no call has waited."""
        endpoints = Counter(self._jobs.values())
        names = ", ".join(f"{name}() ({count})" for name, count in endpoints.most_common(5))
        calling = self._count_threads_in_calls()
        deadlock = ""
        if calling:
            deadlock = (
                f" {calling} of the threads wait for calls that their handlers have made: a deadlock if the calls need "
                "these threads."
            )
        logger.warning(
            "all %d threads of %s are busy, and calls have waited for %g s: %s in all.%s For more threads use %s",
            self._size,
            self._whose,
            WARN_AFTER,
            names,
            deadlock,
            self._remedy,
        )

    def _count_threads_in_calls(self) -> int:
        """Return the number of threads that wait for calls that their handlers have made."""
        frames = sys._current_frames()
        return sum(_is_in_call(frames.get(thread)) for thread in self._threads)

    def close(self) -> None:
        """Start no further work, and cancel waiting jobs. A running handler continues to its end.

        While iterators are open, only the waits of cancelled tasks cancel their jobs, because the iterators need
        threads to close in.
        """
        if self._warning is not None:
            self._warning.cancel()
        self._is_closed = True
        self._shut_down()

    def _check_open(self) -> None:
        """Raise RuntimeError after :meth:`close`."""
        if self._is_closed:
            raise RuntimeError("the server is closed")

    def _shut_down(self) -> None:
        """End the threads and cancel waiting jobs, unless an iterator is open."""
        if not self._open_iterators:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _is_in_call(frame: Any) -> bool:
    """Return True if code of a client is on a thread's stack. ``frame``: the innermost one; None without a thread."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("shmrpc.client."):
            return True
        frame = frame.f_back
    return False
