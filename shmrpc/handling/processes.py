"""Processes of the server's own, for handlers that compute."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from shmrpc.handling.executors import run_in


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
            return await run_in(pool, functools.partial(function, *args, **kwargs))
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        except (KeyboardInterrupt, SystemExit) as error:  # The handler's there is not ours.
            raise RuntimeError(f"{function.__qualname__}() raised {type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Ends them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
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
