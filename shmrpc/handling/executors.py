"""Where handlers run that must not hold the loop: threads, and processes of the server's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from shmrpc.call import Call, handled

if TYPE_CHECKING:
    from shmrpc.handling.processes import Processes

#: What a thread says instead of StopIteration, which cannot travel through a future.
_END: Final = object()


class Executors:
    """A server's threads and processes, made when the first handler needs them."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._processes: Processes | None = None
        #: The calls that threads work for at the moment, also those of which nobody waits for the end any more.
        self.working: list[Call] = []

    async def in_thread(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in a thread, with the context variables of here."""
        return await self._run_in_thread(contextvars.copy_context(), function, *args, **kwargs)

    async def _run_in_thread(
        self, context: contextvars.Context, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="shmrpc-handler")
        work = functools.partial(context.run, function, *args, **kwargs)
        call = handled.get()
        return await run_in(self._threads, functools.partial(self._work, call, work) if call is not None else work)

    def _work(self, call: Call, work: Callable[[], Any]) -> Any:
        """Works for a call, in a thread."""
        self.working.append(call)
        try:
            return work()
        finally:
            self.working.remove(call)

    async def in_process(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in another process. Function, arguments and result are pickled."""
        if self._processes is None:
            # Few servers have one, and what a pool of processes imports takes a tenth of all that is imported here.
            from shmrpc.handling.processes import Processes

            self._processes = Processes()
        return await self._processes.run(function, args, kwargs)

    async def iterate(self, items: Iterator[Any]) -> AsyncIterator[Any]:
        """What a generator yields, each step in a thread, and all in one context."""
        context = contextvars.copy_context()
        try:
            while (item := await self._run_in_thread(context, next, items, _END)) is not _END:
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self._run_in_thread(context, close)

    def close(self) -> None:
        """Ends the processes. A handler that runs in a thread cannot be stopped: it runs to its end."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        if self._processes is not None:
            self._processes.close()
            self._processes = None


async def run_in(executor: Executor, work: Callable[[], Any]) -> Any:
    """What the work returns or raises, done by the executor."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def notify(job: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
            loop.call_soon_threadsafe(end)

    job = executor.submit(work)
    job.add_done_callback(notify)
    try:
        await ended
    except asyncio.CancelledError:
        job.cancel()
        raise
    try:
        if job.cancelled():  # The executor has ended before its turn came.
            raise asyncio.CancelledError
        # What it raised is raised here: the loop's future would take no StopIteration.
        return job.result()
    finally:
        del job  # Its exception has this frame in its traceback.
