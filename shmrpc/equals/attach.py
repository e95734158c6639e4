"""Opening a name that somebody else makes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import time
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from shmrpc._core import Descriptor, Name, watch_for_names
from shmrpc.basics.checks import called
from shmrpc.basics.green_threads import new_poll
from shmrpc.equals import places
from shmrpc.equals.blocking_queue import BlockingQueue
from shmrpc.equals.event import BlockingEvent, Event
from shmrpc.equals.handle import bounded
from shmrpc.equals.lock import BlockingLock, Lock
from shmrpc.equals.memory import BlockingMemory, Memory
from shmrpc.equals.queue import Queue
from shmrpc.equals.semaphore import BlockingSemaphore, Semaphore
from shmrpc.equals.stores.store import BlockingStore, Store
from shmrpc.errors import NameInUse, WaitTimeout

_KINDS: dict[str, Callable[[Name], Semaphore | Lock | Event | Memory | Queue | Store]] = {
    "semaphore": Semaphore.of,
    "lock": Lock.of,
    "event": Event.of,
    "memory": Memory.of,
    "queue": Queue.of,
    "store": Store.of,
}
_T = TypeVar("_T")
_Blocking: TypeAlias = BlockingSemaphore | BlockingLock | BlockingEvent | BlockingMemory | BlockingQueue | BlockingStore
_BLOCKING_KINDS: dict[str, Callable[[Name], _Blocking]] = {
    "semaphore": BlockingSemaphore.of,
    "lock": BlockingLock.of,
    "event": BlockingEvent.of,
    "memory": BlockingMemory.of,
    "queue": BlockingQueue.of,
    "store": BlockingStore.of,
}
#: Seconds between two looks for a name where the system does not let us watch the directories.
_PAUSE: Final = 0.05
#: Seconds of the longest wait that ``poll`` can count.
_LONGEST: Final = 1e6


async def attach(name: str, timeout: float | None = 5.0) -> Semaphore | Lock | Event | Memory | Queue | Store:
    """Opens a name that another process makes, whatever it is; waits up to ``timeout`` seconds for it to appear.

    ``timeout=None`` waits without a limit.

    Raises WaitTimeout if no process has it open by then, NameInUse if it is a topic: :func:`shmrpc.subscribe` waits for
    what is published in that, :func:`shmrpc.topic` publishes.
    """
    with contextlib.closing(_waits(name, timeout)) as waits:
        for watch, pause in waits:
            if (found := _join(name)) is not None:
                return _made(found, _KINDS)
            await (asyncio.sleep(pause) if watch is None else _readable(watch, pause))
    raise AssertionError


async def _readable(watch: Descriptor, seconds: float) -> None:
    """Waits until it is readable, for so long at most."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(watch.fileno(), readable.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(readable.wait(), seconds)
    finally:
        loop.remove_reader(watch.fileno())


@called("attach")
def blocking_attach(name: str, timeout: float | None = 5.0) -> _Blocking:
    """Opens a name as :func:`shmrpc.attach` does, and blocks the thread until it is there."""
    with contextlib.closing(_waits(name, timeout)) as waits:
        for watch, pause in waits:
            if (found := _join(name)) is not None:
                return _made(found, _BLOCKING_KINDS)
            if watch is None:
                time.sleep(pause)
            else:
                _poll(watch, pause)
    raise AssertionError


def _made(found: Name, kinds: dict[str, Callable[[Name], _T]]) -> _T:
    """Returns the handle of a name of one of these kinds."""
    if found.kind in kinds:
        return kinds[found.kind](found)
    found.close()
    raise NameInUse(
        f"name {found.name!r} is open as a {found.kind}: read it with shmrpc.subscribe(), or publish in it with"
        " shmrpc.topic()"
    )


def _poll(watch: Descriptor, seconds: float) -> None:
    """Blocks until it is readable, for so long at most."""
    asked = new_poll()
    asked.register(watch.fileno(), select.POLLIN)
    asked.poll(math.ceil(seconds * 1e3))


def _join(name: str) -> Name | None:
    for path in places.lock_files(name):
        if (found := Name.join(name, path)) is not None:
            return found
    return None


def _waits(name: str, timeout: float | None) -> Generator[tuple[Descriptor | None, float], None, None]:
    """How to wait after each look: until what is readable, and for how many seconds at most.

    Whoever opens a name first touches its lock file then, and the kernel tells whoever watches the directory. It is
    watched before the look, so nobody comes unseen. The system lets a user watch only so much: beyond that, there is
    nothing to be readable, and the next look is soon.
    """
    limit = bounded(timeout)
    end = math.inf if limit is None else time.monotonic() + limit
    left = 1.0
    while left > 0:
        left = end - time.monotonic()
        with contextlib.ExitStack() as stack:
            watch, longest = None, _PAUSE
            with contextlib.suppress(OSError):
                watch, longest = watch_for_names(places.to_watch()), _LONGEST
                stack.callback(watch.close)
            yield watch, max(0.0, min(longest, left))
    raise WaitTimeout(f"name {name!r}: no process has opened it (waited {timeout:g} s)")
