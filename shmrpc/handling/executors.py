"""Where handlers run that must not hold the loop: threads, and processes of the server's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Final

#: What a thread says instead of StopIteration, which cannot travel through a future.
_END: Final = object()


class Executors:
    """A server's threads and processes, made when the first handler needs them."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._processes: ProcessPoolExecutor | None = None
        #: As long as it is open, in this process alone, the children live.
        self._life: Connection | None = None

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
            spawn = multiprocessing.get_context("spawn")
            theirs, self._life = spawn.Pipe(duplex=False)
            self._processes = ProcessPoolExecutor(mp_context=spawn, initializer=_begin_child, initargs=(theirs,))
        processes = self._processes
        try:
            return await _run(processes, functools.partial(function, *args, **kwargs))
        except BrokenProcessPool as error:
            if self._processes is processes:
                self._processes = None  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        except (KeyboardInterrupt, SystemExit) as error:  # The handler's there is not ours.
            raise RuntimeError(f"{function.__qualname__}() raised {type(error).__name__}: {error}") from None

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
        """Ends the processes. A handler that runs in a thread cannot be stopped: it runs to its end."""
        for executor in (self._threads, self._processes):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
        self._threads = self._processes = None
        if self._life is not None:
            self._life.close()
            self._life = None


def _begin_child(life: Connection) -> None:
    """In a new process: it ends when the server's does, and a terminal's Ctrl-C is for the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(OSError):
            life.poll(None)  # Nothing is ever sent: what comes is the end.
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


async def _run(executor: Executor, work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
