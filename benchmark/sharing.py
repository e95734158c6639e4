"""Operations on locks and signals of any make, and words in memory that show that they work."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmark.processes import Rendezvous

#: Words: what a lock protects, what a signal's sender has written, and what its receiver has made of it.
COUNT, ASKED, ANSWERED = range(3)


@contextlib.contextmanager
def words(place: Rendezvous) -> Iterator[memoryview]:
    """Integers in the memory of all processes of a subject, zeros at first."""
    file = os.open(place.socket("words"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(file, mmap.PAGESIZE)
        memory = mmap.mmap(file, mmap.PAGESIZE)
    finally:
        os.close(file)
    with memory, memoryview(memory) as view, view.cast("q") as made:
        yield made


class Locked:
    """The client of a lock whose ``acquire()`` blocks. Its call is one that the lock protects."""

    def __init__(self, lock: Any, words: memoryview) -> None:
        self.lock, self.words = lock, words
        self._acquire, self._release = lock.acquire, lock.release

    def add(self, a: int, b: int) -> int:
        """Count the calls of all processes: a call is lost if two of them are here at once."""
        self._acquire()
        self.words[COUNT] += 1
        self._release()
        return a + b


class AwaitedLocked:
    """The same for one that is acquired by ``async with``."""

    def __init__(self, lock: Any, words: memoryview) -> None:
        self.lock, self.words = lock, words

    async def add(self, a: int, b: int) -> int:
        """Count as :meth:`Locked.add` does."""
        async with self.lock:
            self.words[COUNT] += 1
        return a + b


class Trip:
    """A client that signals to another process and waits for its signal. Its call is such a round trip."""

    def __init__(self, signal: Callable[[], object], wait: Callable[[], object], words: memoryview) -> None:
        self._signal, self._wait, self.words = signal, wait, words

    def add(self, a: int, b: int) -> int:
        """Write the sum before it signals, and returns what the other one has read."""
        self.words[ASKED] = a + b
        self._signal()
        self._wait()
        return self.words[ANSWERED]


def answer(signal: Callable[[], object], wait: Callable[[], object], words: memoryview) -> None:
    """Serve a :class:`Trip`."""
    while True:
        wait()
        words[ANSWERED] = words[ASKED]
        signal()
