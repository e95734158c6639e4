"""Opening a name that somebody else makes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, overload

from shmrpc._core import Descriptor, Name, watch_for_names
from shmrpc.basics.checks import public_name
from shmrpc.basics.green_threads import new_poll
from shmrpc.basics.loops import running_loop
from shmrpc.errors import NameInUse, WaitTimeout
from shmrpc.locks.event import BlockingEvent, Event
from shmrpc.locks.lock import BlockingLock, Lock
from shmrpc.locks.semaphore import BlockingSemaphore, Semaphore
from shmrpc.objects import lock_files
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle
from shmrpc.queues.blocking_queue import BlockingQueue
from shmrpc.queues.queue import Queue
from shmrpc.shared_memory.memory import BlockingMemory, Memory
from shmrpc.stores.store import BlockingStore, Store

_Kinds: TypeAlias = Mapping[str, type[Any]]
_KINDS: Final[_Kinds] = {
    "semaphore": Semaphore,
    "lock": Lock,
    "event": Event,
    "memory": Memory,
    "queue": Queue,
    "store": Store,
}
_H = TypeVar("_H", bound=Handle)
_BLOCKING_KINDS: Final[_Kinds] = {
    "semaphore": BlockingSemaphore,
    "lock": BlockingLock,
    "event": BlockingEvent,
    "memory": BlockingMemory,
    "queue": BlockingQueue,
    "store": BlockingStore,
}
#: Seconds between two looks for a name where the system does not let us watch the directories.
_PAUSE: Final = 0.05
#: Seconds of the longest wait that ``poll`` can count.
_LONGEST: Final = 1e6


@overload
async def attach(name: str, timeout: float | None = 5.0) -> Any: ...
@overload
async def attach(name: str, timeout: float | None = 5.0, *, kind: type[_H]) -> _H: ...
async def attach(name: str, timeout: float | None = 5.0, *, kind: type[Any] | None = None) -> Any:
    """Opens a name that another process makes, whatever it is; waits up to ``timeout`` seconds for it to appear.

    ``timeout=None`` waits without a limit. With ``kind``, such as ``shmrpc.Queue``, the name is to be of that kind, and
    type checkers know the result.

    Raises WaitTimeout if no process has it open by then, NameInUse if it is of another kind, or a topic:
    :func:`shmrpc.subscribe` waits for what is published in that, :func:`shmrpc.topic` publishes. Raises TypeError for a
    ``kind`` that it does not open.
    """
    kinds = _kinds_for(kind, _KINDS)
    with contextlib.closing(_waits(name, timeout)) as waits:
        for watch, pause in waits:
            if (found := _join(name)) is not None:
                return _made(found, kinds)
            await (asyncio.sleep(pause) if watch is None else _readable(watch, pause))
    raise AssertionError


async def _readable(watch: Descriptor, seconds: float) -> None:
    """Waits until it is readable, for so long at most."""
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
    """Opens a name as :func:`shmrpc.attach` does, and blocks the thread until it is there.

    ``kind`` is a class of ``shmrpc.sync``, such as ``shmrpc.sync.Queue``.
    """
    kinds = _kinds_for(kind, _BLOCKING_KINDS)
    with contextlib.closing(_waits(name, timeout)) as waits:
        for watch, pause in waits:
            if (found := _join(name)) is not None:
                return _made(found, kinds)
            if watch is None:
                time.sleep(pause)
            else:
                _poll(watch, pause)
    raise AssertionError


def _kinds_for(kind: type[Any] | None, kinds: _Kinds) -> _Kinds:
    """Returns the kinds that may be opened: one alone, if it is asked for. Raises TypeError for one of no such."""
    if kind is None:
        return kinds
    found = {word: each for word, each in kinds.items() if each is kind}
    if not found:
        known = ", ".join(each.__name__.removeprefix("Blocking") for each in kinds.values())
        raise TypeError(f"attach(): kind: expected a class of the same module as this attach ({known}), got {kind!r}")
    return found


def _made(found: Name, kinds: _Kinds) -> Any:
    """Returns the handle of a name of one of these kinds."""
    if found.kind in kinds:
        return kinds[found.kind]._of(found)
    found.close()
    if found.kind == "topic":
        instead = "read it with shmrpc.subscribe(), or publish in it with shmrpc.topic()"
    else:
        instead = f"it is no {next(iter(kinds))}"
    raise NameInUse(f"name {found.name!r} is open as a {found.kind}: {instead}")


def _poll(watch: Descriptor, seconds: float) -> None:
    """Blocks until it is readable, for so long at most."""
    asked = new_poll()
    asked.register(watch.fileno(), select.POLLIN)
    asked.poll(math.ceil(seconds * 1e3))


def _join(name: str) -> Name | None:
    for path in lock_files.candidate_paths(name):
        if (found := Name.join(name, path)) is not None:
            return found
    return None


def _waits(name: str, timeout: float | None) -> Generator[tuple[Descriptor | None, float], None, None]:
    """How to wait after each look: until what is readable, and for how many seconds at most.

    Whoever opens a name first touches its lock file then, and the kernel tells whoever watches the directory. It is
    watched before the look, so nobody comes unseen. The system lets a user watch only so much: beyond that, there is
    nothing to be readable, and the next look is soon.
    """
    limit = check_timeout(timeout)
    end = math.inf if limit is None else time.monotonic() + limit
    left = 1.0
    while left > 0:
        left = end - time.monotonic()
        with contextlib.ExitStack() as stack:
            watch, longest = None, _PAUSE
            with contextlib.suppress(OSError):
                watch, longest = watch_for_names(lock_files.directories_to_watch()), _LONGEST
                stack.callback(watch.close)
            yield watch, max(0.0, min(longest, left))
    raise WaitTimeout(f"name {name!r}: no process has opened it (waited {timeout:g} s)")
