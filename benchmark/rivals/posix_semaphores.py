"""posix_ipc's Semaphore: as a lock, and for signals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc

from benchmark.processes import Rendezvous
from benchmark.sharing import Locked, Trip, answer, words


@contextlib.contextmanager
def _semaphore(place: Rendezvous, name: str, value: int) -> Iterator[posix_ipc.Semaphore]:
    """Yield a semaphore of this subject, which the first side makes."""
    made = posix_ipc.Semaphore(f"/{Path(place.directory).name}-{name}", posix_ipc.O_CREAT, 0o600, value)
    try:
        yield made
    finally:
        with contextlib.suppress(posix_ipc.ExistentialError):
            made.unlink()
        made.close()


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Locked]:
    """Yield a semaphore of one permit."""
    with _semaphore(place, "lock", 1) as lock, words(place) as shared:
        yield Locked(lock, shared)


def serve_signals(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve the other side of a round trip."""
    with _semaphore(place, "there", 0) as there, _semaphore(place, "back", 0) as back, words(place) as shared:
        ready()
        with contextlib.suppress(posix_ipc.SignalError):  # The signal to end.
            answer(back.release, there.acquire, shared)


@contextlib.contextmanager
def connect_signals(place: Rendezvous) -> Iterator[Trip]:
    """Signals of two semaphores."""
    with _semaphore(place, "there", 0) as there, _semaphore(place, "back", 0) as back, words(place) as shared:
        yield Trip(there.release, back.acquire, shared)
