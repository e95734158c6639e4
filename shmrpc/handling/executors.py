"""Where handlers run that must not hold the loop: threads, and processes of the server's own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import multiprocessing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

#: What a thread says instead of StopIteration, which cannot travel through a future.
_END: Final = object()


class Executors:
    """A server's threads and processes, made when the first handler needs them."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._processes: ProcessPoolExecutor | None = None

    async def in_thread(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in a thread, with the context variables of here."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="shmrpc-handler")
        context = contextvars.copy_context()
        return await _run(self._threads, functools.partial(context.run, function, *args, **kwargs))

    async def in_process(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in another process. Function, arguments and result are pickled."""
        if self._processes is None:
            # Not forked: this process has threads, and connections that are not the child's.
            self._processes = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
        processes = self._processes
        try:
            return await _run(processes, functools.partial(function, *args, **kwargs))
        except BrokenProcessPool as error:
            if self._processes is processes:
                self._processes = None  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None

    async def iterate(self, items: Iterator[Any]) -> AsyncIterator[Any]:
        """What a generator yields, each step in a thread."""
        try:
            while (item := await self.in_thread(next, (items, _END), {})) is not _END:
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self.in_thread(close, (), {})

    def close(self) -> None:
        """Begins nothing more. A handler that runs in a thread cannot be stopped: it runs to its end."""
        for executor in (self._threads, self._processes):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
        self._threads = self._processes = None


async def _run(executor: Executor, work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
