"""What was asked, what was told and what was done, in a file that outlives each process that writes into it."""

from __future__ import annotations

import enum
import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Calls that a book has room for.
ROOM: Final = 4_000_000
_HEADER: Final = 4096
_STOP: Final = 8


class Kind(enum.IntEnum):
    """What was called."""

    PLAIN = 1
    LATER = 2
    ARRAY = 3
    STREAM = 4
    UPLOAD = 5
    ONE_WAY = 6
    BATCH = 7


class CallOutcome(enum.IntEnum):
    """What the caller knows."""

    #: nothing: it was killed, or called one way
    NOTHING = 1
    ANSWERED = 2
    NOT_EXECUTED = 3
    MAYBE_EXECUTED = 4


class Book:
    """The calls of one caller, process after process: of each a byte that the caller writes, and one of the server."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, _HEADER + 2 * ROOM)
        self._memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        #: How many calls there are. It is written in one go, whenever its writer is killed: struct.pack_into() writes
        #: zeros first, and a caller that was killed behind them had its calls numbered from 0 again.
        self._count = memoryview(self._memory).cast("Q")

    @property
    def count(self) -> int:
        """Calls so far."""
        return int(self._count[0])

    @property
    def is_closed(self) -> bool:
        """Whether there are to be no more calls."""
        return bool(self._memory[_STOP]) or self.count >= ROOM - 1000

    def close(self) -> None:
        """No more calls."""
        self._memory[_STOP] = 1

    def begin(self, kind: Kind) -> int:
        """A new call of this kind; its number. By one thread at a time."""
        number = self.count
        self._count[0] = number + 1
        self._memory[_HEADER + number] = kind << 4 | CallOutcome.NOTHING
        return number

    def tell(self, number: int, told: CallOutcome) -> None:
        """The caller knows now."""
        self._memory[_HEADER + number] = self._memory[_HEADER + number] & 0xF0 | told

    def execute(self, number: int) -> None:
        """The server does it. By one thread of one server."""
        self._memory[_HEADER + ROOM + number] += 1

    def _bytes(self, start: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._memory, np.uint8, self.count, start).copy()  # Nothing refers to the file then.

    def calls(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Of each call: its kind, what the caller knows, and how often it was executed."""
        written = self._bytes(_HEADER)
        executed = self._bytes(_HEADER + ROOM)
        return (written >> 4).astype(np.uint8), (written & 0xF).astype(np.uint8), executed
