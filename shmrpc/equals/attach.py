"""Opening a name that somebody else makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from shmrpc._core import Name
from shmrpc.equals import places
from shmrpc.equals.event import BlockingEvent, Event
from shmrpc.equals.lock import BlockingLock, Lock
from shmrpc.equals.memory import BlockingMemory, Memory
from shmrpc.equals.semaphore import BlockingSemaphore, Semaphore
from shmrpc.errors import WaitTimeout

_KINDS: dict[str, Callable[[Name], Semaphore | Lock | Event | Memory]] = {
    "semaphore": Semaphore.of,
    "lock": Lock.of,
    "event": Event.of,
    "memory": Memory.of,
}
_BLOCKING_KINDS: dict[str, Callable[[Name], BlockingSemaphore | BlockingLock | BlockingEvent | BlockingMemory]] = {
    "semaphore": BlockingSemaphore.of,
    "lock": BlockingLock.of,
    "event": BlockingEvent.of,
    "memory": BlockingMemory.of,
}
#: Seconds between two looks for a name: each time twice as long, within these.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


async def attach(name: str, timeout: float = 5.0) -> Semaphore | Lock | Event | Memory:
    """Opens a name that another process makes, whatever it is; waits up to ``timeout`` seconds for it to appear.

    Raises WaitTimeout if no process has it open by then.
    """
    for pause in _pauses(name, timeout):
        if (found := _join(name)) is not None:
            return _KINDS[found.kind](found)
        await asyncio.sleep(pause)
    raise AssertionError


def blocking_attach(
    name: str, timeout: float = 5.0
) -> BlockingSemaphore | BlockingLock | BlockingEvent | BlockingMemory:
    """Opens a name as :func:`shmrpc.attach` does, and blocks the thread until it is there."""
    for pause in _pauses(name, timeout):
        if (found := _join(name)) is not None:
            return _BLOCKING_KINDS[found.kind](found)
        time.sleep(pause)
    raise AssertionError


def _join(name: str) -> Name | None:
    for path in places.lock_files(name):
        if (found := Name.join(name, path)) is not None:
            return found
    return None


def _pauses(name: str, timeout: float) -> Iterator[float]:
    end, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
    is_over = False
    while True:
        if is_over:
            raise WaitTimeout(f"name {name!r}: no process has opened it (waited {timeout:g} s)")
        left = end - time.monotonic()
        is_over = left <= pause
        yield max(0.0, min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
