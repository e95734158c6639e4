"""Processes of the server's own, for handlers that compute."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from shmrpc.handling.executors import Job


class Processes:
    """As many as there are CPUs; made when the first handler needs them, and anew when one has died."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        #: As long as it is open, in this process alone, the children live.
        self._life: Connection | None = None

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in one of them."""
        if self._pool is None:
            # Not forked: this process has threads, and connections that are not the child's.
            spawn = multiprocessing.get_context("spawn")
            theirs, self._life = spawn.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(mp_context=spawn, initializer=_begin_child, initargs=(theirs,))
        pool = self._pool
        try:
            return await Job(pool, functools.partial(_call, function, args, kwargs)).result()
        except BrokenProcessPool as error:
            if self._pool is pool:
                self.close()  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None

    def close(self) -> None:
        """Ends them."""
        if self._life is not None:
            self._life.close()
            self._life = None
        if self._pool is not None:
            # The pool has a thread, and must outlive it: when a pool goes, a callback takes a lock that its thread may
            # hold, or be the one that drops the pool while holding it, and then neither ever ends, nor the program.
            shutdown = functools.partial(self._pool.shutdown, cancel_futures=True)
            self._pool = None
            threading.Thread(target=shutdown, name="shmrpc-processes-end").start()


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the function, in one of the processes. Raises what it raises, if that survives the way back."""
    try:
        return contextvars.copy_context().run(function, *args, **kwargs)
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception as second:  # Received by the pool, it would end all of its processes.
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            raise RuntimeError(
                f"{function.__qualname__}() raised {name}: {error} (the exception itself cannot be pickled: {second})"
            ) from error
        raise


def _begin_child(life: Connection) -> None:
    """In a new process: it ends when the server's does, and a terminal's Ctrl-C is for the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(OSError):
            life.poll(None)  # Nothing is ever sent: what comes is the end.
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
