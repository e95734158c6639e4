"""Our locks, signals and memory, as a rival's are written."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import shmrpc
from benchmark.processes import Rendezvous
from benchmark.sharing import AwaitedLocked, Locked, Trip, answer, words


@contextlib.asynccontextmanager
async def connect_permit(place: Rendezvous) -> AsyncIterator[AwaitedLocked]:
    """Yield a semaphore of one permit for tasks: a lock that does not ask which task has it."""
    with contextlib.closing(shmrpc.Semaphore("permit")) as permit, words(place) as shared:
        yield AwaitedLocked(permit, shared)


@contextlib.contextmanager
def connect_permit_sync(place: Rendezvous) -> Iterator[Locked]:
    """Yield the same for threads."""
    with contextlib.closing(shmrpc.sync.Semaphore("permit")) as permit, words(place) as shared:
        yield Locked(permit, shared)


@contextlib.asynccontextmanager
async def connect_lock(place: Rendezvous) -> AsyncIterator[AwaitedLocked]:
    """Yield a lock for tasks."""
    with contextlib.closing(shmrpc.Lock("lock")) as lock, words(place) as shared:
        yield AwaitedLocked(lock, shared)


@contextlib.contextmanager
def connect_lock_sync(place: Rendezvous) -> Iterator[Locked]:
    """Yield a lock for threads."""
    with contextlib.closing(shmrpc.sync.Lock("lock")) as lock, words(place) as shared:
        yield Locked(lock, shared)


@contextlib.contextmanager
def _signals() -> Iterator[tuple[shmrpc.sync.Signal, shmrpc.sync.Signal]]:
    with contextlib.closing(shmrpc.sync.Signal("there")) as there:
        with contextlib.closing(shmrpc.sync.Signal("back")) as back:
            yield there, back


def serve_signals(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve the other side of a round trip."""
    with _signals() as (there, back), words(place) as shared:
        ready()
        answer(back.signal, there.wait, shared)


@contextlib.contextmanager
def connect_signals(place: Rendezvous) -> Iterator[Trip]:
    """Connect by two signals."""
    with _signals() as (there, back), words(place) as shared:
        yield Trip(there.signal, back.wait, shared)


@contextlib.contextmanager
def connect_memory(place: Rendezvous) -> Iterator[Callable[[int], memoryview]]:
    """Make memories of a size."""
    with contextlib.ExitStack() as stack:

        def make(size: int) -> memoryview:
            return stack.enter_context(contextlib.closing(shmrpc.sync.memory(f"bytes-{size}", size))).buf

        yield make
