"""A record of calls, outcomes and executions, in a file that outlives each process that writes into it."""

from __future__ import annotations

import enum
import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Capacity of a book, in calls.
ROOM: Final = 4_000_000
_HEADER: Final = 4096
_STOP: Final = 8


class Kind(enum.IntEnum):
    """A kind of call."""

    PLAIN = 1
    LATER = 2
    ARRAY = 3
    STREAM = 4
    UPLOAD = 5
    ONE_WAY = 6
    BATCH = 7


class CallOutcome(enum.IntEnum):
    """The outcome of a call as its caller knows it."""

    #: No outcome: the caller was killed, or called one way.
    NOTHING = 1
    ANSWERED = 2
    NOT_EXECUTED = 3
    MAYBE_EXECUTED = 4


class Book:
    """The calls of one caller, process after process: each has a byte of the caller and a byte of the server."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, _HEADER + 2 * ROOM)
        self._memory = mmap.mmap(descriptor, 0)
        #: The number of calls. Its writes are atomic, unlike those of struct.pack_into(), which writes zeros first:
        #: after a kill the next calls were numbered from 0.
        self._count = memoryview(self._memory).cast("Q")

    @property
    def count(self) -> int:
        """Return the number of calls so far."""
        return int(self._count[0])

    @property
    def is_closed(self) -> bool:
        """Return True if no more calls should begin."""
        return bool(self._memory[_STOP]) or self.count >= ROOM - 1000

    def close(self) -> None:
        """Let no more calls begin."""
        self._memory[_STOP] = 1

    def begin(self, kind: Kind) -> int:
        """Record a new call of this kind; return its number. Not for concurrent threads."""
        number = self.count
        self._count[0] = number + 1
        self._memory[_HEADER + number] = kind << 4 | CallOutcome.NOTHING
        return number

    def record(self, number: int, outcome: CallOutcome) -> None:
        """Record the outcome of a call."""
        self._memory[_HEADER + number] = self._memory[_HEADER + number] & 0xF0 | outcome

    def execute(self, number: int) -> None:
        """Record an execution by the server. Not for concurrent threads or servers."""
        self._memory[_HEADER + ROOM + number] += 1

    def _bytes(self, start: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._memory, np.uint8, self.count, start).copy()  # Without a reference to the file.

    def calls(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Return of each call its kind, its outcome, and how often it was executed."""
        written = self._bytes(_HEADER)
        executed = self._bytes(_HEADER + ROOM)
        return (written >> 4).astype(np.uint8), (written & 0xF).astype(np.uint8), executed
