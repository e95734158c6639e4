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
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from shmrpc.errors import ApplicationError
from shmrpc.server.job import Job
from shmrpc.values import registry
from shmrpc.wire import frames

#: The threads that shut pools down.
_ending: Final = weakref.WeakSet[threading.Thread]()


def _wait_for_ends() -> None:
    for thread in list(_ending):
        thread.join()


# Before 3.12.8 Python, when it ends, writes to the pipe of each pool that is left, without the lock under which a pool
# that is shutting down closes it: "Bad file descriptor" (python/cpython#125451). What registers last runs first.
threading._register_atexit(_wait_for_ends)  # type: ignore[attr-defined]


class Processes:
    """As many processes as there are CPUs; made when the first handler needs them, and anew when one has died."""

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
            result = await _submit(pool, functools.partial(_call, function, args, kwargs)).result()
        except BrokenProcessPool as error:
            if self._pool is pool:
                self.close()  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        if type(result) is _Failed:
            raise frames.decode_failure(result.body)
        if type(result) is _Unreadable:
            raise RuntimeError(f"{function.__qualname__}() returned what cannot be unpickled: {result.why}")
        return result

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
            ending = threading.Thread(target=shutdown, name="shmrpc-processes-end")
            ending.start()
            _ending.add(ending)


def _submit(pool: ProcessPoolExecutor, work: Callable[[], Any]) -> Job:
    """Gives work to a pool. Raises BrokenProcessPool also where one process dies while the pool starts another one."""
    try:
        return Job(pool, work)
    except OSError as error:
        if error.errno is not None:
            raise
        raise BrokenProcessPool(str(error)) from None  # "handle is closed": of the queue that the new one was to read.


class _Result:
    """A result on its way back. What cannot be unpickled would end all processes of the pool."""

    def __init__(self, result: Any) -> None:
        self._data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._data,)


class _Unreadable(NamedTuple):
    """Stands for a result that cannot be unpickled."""

    why: str


class _Failed(NamedTuple):
    """Stands for an exception that travels to clients as what it is, and perhaps not as a pickle."""

    body: bytes


def _restore(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except BaseException as error:
        return _Unreadable(f"{type(error).__name__}: {error}")


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the function, in one of the processes. Raises what it raises, if that survives the way back."""
    try:
        result = contextvars.copy_context().run(function, *args, **kwargs)
    except BaseException as error:
        if isinstance(error, ApplicationError) or registry.entry_of(type(error)) is not None:
            return _Failed(frames.encode_failure(error, frames.MAX_MAX_FRAME))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception as second:  # Received by the pool, it would end all of its processes.
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            raise RuntimeError(
                f"{function.__qualname__}() raised {name}: {error} (the exception itself cannot be pickled: {second})"
            ) from error
        raise
    return _Result(result)


def _begin_child(life: Connection) -> None:
    """In a new process: it ends when the server's does, and a terminal's Ctrl-C is for the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(OSError):
            life.poll(None)  # Nothing is ever sent: what comes is the end.
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
