"""multiprocessing's Lock, blocking and through the loop's executor, and its Semaphore for signals."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Lock, Semaphore
from types import TracebackType

from benchmark.processes import Rendezvous
from benchmark.sharing import AwaitedLocked, Locked, Trip, answer, words

_spawn = multiprocessing.get_context("spawn")


def make() -> Lock:
    """Return a lock for all processes of the subject."""
    return _spawn.Lock()


def make_signals() -> tuple[Semaphore, Semaphore]:
    """Return a semaphore for each way."""
    return _spawn.Semaphore(0), _spawn.Semaphore(0)


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Locked]:
    """Yield the lock, which blocks."""
    with words(place) as shared:
        yield Locked(place.shared, shared)


class _InExecutor:
    """A lock that a thread waits for, so that the loop does not."""

    def __init__(self, lock: Lock, executor: ThreadPoolExecutor) -> None:
        self._lock, self._executor = lock, executor
        self._run = asyncio.get_running_loop().run_in_executor

    async def __aenter__(self) -> None:
        await self._run(self._executor, self._lock.acquire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


@contextlib.asynccontextmanager
async def connect_executor(place: Rendezvous) -> AsyncIterator[AwaitedLocked]:
    """Yield the lock, for which a thread waits."""
    with words(place) as shared, ThreadPoolExecutor(1) as executor:
        yield AwaitedLocked(_InExecutor(place.shared, executor), shared)


def serve_signals(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve the other side of a round trip."""
    there, back = place.shared
    with words(place) as shared:
        ready()
        answer(back.release, there.acquire, shared)


@contextlib.contextmanager
def connect_signals(place: Rendezvous) -> Iterator[Trip]:
    """Signals of two semaphores."""
    there, back = place.shared
    with words(place) as shared:
        yield Trip(there.release, back.acquire, shared)
