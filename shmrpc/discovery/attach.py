"""Opening a shared object of any kind that another process creates."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, overload

from shmrpc._core import Descriptor, SharedObject, watch_for_names
from shmrpc.basics.checks import public_name
from shmrpc.basics.green_threads import new_poll
from shmrpc.basics.loops import running_loop
from shmrpc.errors import NameConflict, WaitTimeout
from shmrpc.locks.event import BlockingEvent, Event
from shmrpc.locks.lock import BlockingLock, Lock
from shmrpc.locks.semaphore import BlockingSemaphore, Semaphore
from shmrpc.locks.signal import BlockingSignal, Signal
from shmrpc.objects import lock_files
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle
from shmrpc.queues.blocking_queue import BlockingQueue
from shmrpc.queues.queue import Queue
from shmrpc.shared_memory.memory import BlockingMemory, Memory
from shmrpc.stores.store import BlockingStore, Store

_HandleTypes: TypeAlias = Mapping[str, type[Any]]
_ASYNC_HANDLES: Final[_HandleTypes] = {
    "semaphore": Semaphore,
    "lock": Lock,
    "event": Event,
    "signal": Signal,
    "memory": Memory,
    "queue": Queue,
    "store": Store,
}
_H = TypeVar("_H", bound=Handle)
_BLOCKING_HANDLES: Final[_HandleTypes] = {
    "semaphore": BlockingSemaphore,
    "lock": BlockingLock,
    "event": BlockingEvent,
    "signal": BlockingSignal,
    "memory": BlockingMemory,
    "queue": BlockingQueue,
    "store": BlockingStore,
}
#: Seconds between two attempts where the system does not let this process watch the directories.
_POLL_INTERVAL: Final = 0.05
#: The longest wait, in seconds, that ``poll`` can count.
_LONGEST_WAIT: Final = 1e6


@overload
async def attach(name: str, timeout: float | None = 5.0) -> Any: ...
@overload
async def attach(name: str, timeout: float | None = 5.0, *, kind: type[_H]) -> _H: ...
async def attach(name: str, timeout: float | None = 5.0, *, kind: type[Any] | None = None) -> Any:
    """Open a shared object of any kind that another process creates; wait up to ``timeout`` seconds for it.

    ``timeout=None`` waits without a limit, 0 makes one attempt. With ``kind``, such as ``shmrpc.Queue``, only an object
    of that kind is opened, and type checkers know the result. The caller closes the handle, which has default options.

    Raises WaitTimeout if no process has the object open by then, and NameConflict if it is of another kind, or a topic:
    read a topic with :func:`shmrpc.subscribe`, publish in it with :func:`shmrpc.topic`. Raises TypeError for a ``kind``
    that cannot be attached, TypeError or ValueError for an invalid name or timeout, SharedMemoryError,
    LocalProtocolError if the directory of shared objects is not safe, RemoteProtocolError if another version of shmrpc
    has made the object, and WaitTimeout also if a stopped process is opening or closing it.
    """
    handle_types = _select_handle_types(kind, _ASYNC_HANDLES)
    with contextlib.closing(_attempts(name, timeout)) as attempts:
        for watch, seconds in attempts:
            if (opened := _try_open(name)) is not None:
                return _make_handle(opened, handle_types)
            await (asyncio.sleep(seconds) if watch is None else _wait_in_loop(watch, seconds))
    raise AssertionError


async def _wait_in_loop(watch: Descriptor, seconds: float) -> None:
    """Wait until the descriptor is readable, for at most that many seconds. Returns in both cases."""
    loop = running_loop()
    readable = asyncio.Event()
    loop.add_reader(watch.fileno(), readable.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(readable.wait(), seconds)
    finally:
        loop.remove_reader(watch.fileno())


@overload
def blocking_attach(name: str, timeout: float | None = 5.0) -> Any: ...
@overload
def blocking_attach(name: str, timeout: float | None = 5.0, *, kind: type[_H]) -> _H: ...
@public_name("attach")
def blocking_attach(name: str, timeout: float | None = 5.0, *, kind: type[Any] | None = None) -> Any:
    """Open a shared object as :func:`shmrpc.attach` does, and block the thread while it waits.

    ``kind`` is a class of ``shmrpc.sync``, such as ``shmrpc.sync.Queue``. Raises the same errors.
    """
    handle_types = _select_handle_types(kind, _BLOCKING_HANDLES)
    with contextlib.closing(_attempts(name, timeout)) as attempts:
        for watch, seconds in attempts:
            if (opened := _try_open(name)) is not None:
                return _make_handle(opened, handle_types)
            if watch is None:
                time.sleep(seconds)
            else:
                _wait_in_thread(watch, seconds)
    raise AssertionError


def _select_handle_types(kind: type[Any] | None, handle_types: _HandleTypes) -> _HandleTypes:
    """Return the handle types that may be opened: all, or ``kind`` alone. Raises TypeError for an unknown ``kind``."""
    if kind is None:
        return handle_types
    selected = {word: each for word, each in handle_types.items() if each is kind}
    if not selected:
        known = ", ".join(each.__name__.removeprefix("Blocking") for each in handle_types.values())
        raise TypeError(f"attach(): kind: expected a class of the same module as this attach ({known}), got {kind!r}")
    return selected


def _make_handle(opened: SharedObject, handle_types: _HandleTypes) -> Any:
    """Return a handle, with default options, of an open object.

    Close the object and raise NameConflict if it is of none of these types.
    """
    if opened.kind in handle_types:
        return handle_types[opened.kind]._wrap(opened)
    opened.close()
    if opened.kind == "topic":
        remedy = "read it with shmrpc.subscribe(), or publish in it with shmrpc.topic()"
    else:
        remedy = f"it is no {next(iter(handle_types))}"
    raise NameConflict(f"name {opened.name!r} is open as a {opened.kind}: {remedy}")


def _wait_in_thread(watch: Descriptor, seconds: float) -> None:
    """Block until the descriptor is readable, for at most that many seconds. Returns in both cases."""
    poll = new_poll()
    poll.register(watch.fileno(), select.POLLIN)
    poll.poll(math.ceil(seconds * 1e3))


def _try_open(name: str) -> SharedObject | None:
    """Open the object and return it; None if it has no members. The caller closes the object.

    Raises ValueError or TypeError for an invalid name, and the errors of opening.
    """
    for path in lock_files.list_lock_files(name):
        if (opened := SharedObject.attach(name, path)) is not None:
            return opened
    return None


def _attempts(name: str, timeout: float | None) -> Generator[tuple[Descriptor | None, float], None, None]:
    """Yield before each attempt to open an object: a descriptor to wait for after it, and the longest wait in seconds.

    The first process that opens an object touches its lock file, and the kernel reports that to processes that watch
    the directory. The watch begins before the attempt, so no object appears unseen. The system limits the number of
    watches of a user: beyond it, the descriptor is None, and the wait is short. Raises WaitTimeout at the end.
    """
    limit = check_timeout(timeout)
    end = math.inf if limit is None else time.monotonic() + limit
    left = 1.0
    while left > 0:
        left = end - time.monotonic()
        with contextlib.ExitStack() as stack:
            watch, longest = None, _POLL_INTERVAL
            with contextlib.suppress(OSError):
                watch, longest = watch_for_names(lock_files.list_watched_directories()), _LONGEST_WAIT
                stack.callback(watch.close)
            yield watch, max(0.0, min(longest, left))
    raise WaitTimeout(f"name {name!r}: no process has opened it (waited {timeout:g} s)")
