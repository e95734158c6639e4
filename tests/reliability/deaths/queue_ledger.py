"""A record of the items that entered a queue and left it, in a file that outlives each process that writes into it."""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

#: Bytes, and words of an array, of large items: the bytes have a chunk of their own, the array a buffer of its own.
BYTES: Final = 50_000
WORDS: Final = 20_000
#: The end mark of a line of a ledger.
END: Final = ";"


def small(number: int) -> Any:
    return number


def large_bytes(number: int) -> Any:
    return struct.pack("=Q", number) * (BYTES // 8)


def array(number: int) -> Any:
    return np.full(WORDS, number, "i8")


def item(number: int) -> Any:
    """Return the item with this number: most are small, some are large."""
    return {7: large_bytes, 8: array}.get(number % 10, small)(number)


def number_of(value: Any) -> int:
    """Return the number of an item, after a check of all its bytes."""
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        number: int = struct.unpack("=Q", value[:8])[0]
        assert value == large_bytes(number)
        return number
    number = int(value[0])
    assert len(value) == WORDS
    assert (value == number).all()
    return number


class Ledger:
    """The lines of one process: each is in the file before the process goes on.

    A kill during a write across two pages of the file leaves the first part of the line. Therefore each line begins
    after a newline, and ends with a mark; a line without a mark counts as not written, because its process died there.

    ``put`` and ``get`` have a line before and a line after, so that the items of a dead process are known.
    """

    def __init__(self, path: Path, writer: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._writer = writer

    def write(self, what: str, *numbers: int) -> None:
        """Write an action, and the numbers of its items.

        The actions are "putting" and "put"; "getting" a number of items, and "got"; "claimed" an item, with 1 if it was
        redelivered; "acknowledging" and "acknowledged".
        """
        os.write(self._file, f"\n{self._writer} {what} {' '.join(map(str, numbers))} {END}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Account:
    """The balance of the ledgers after the death of all their writers, and of the remaining items of the queue.

    Raises AssertionError for lost, doubled and reordered items.
    """

    def __init__(self, path: Path) -> None:
        #: Items by number that `put` has begun with; True if it has returned.
        self._put: dict[int, bool] = {}
        self._batches: list[list[int]] = []
        #: The number of final removals of each item.
        self._taken = Counter[int]()
        self._claimed: set[int] = set()
        self._redelivered = 0
        self._acknowledging: set[int] = set()
        self._acknowledged: set[int] = set()
        #: Numbers of items that dead processes may have received, by writer.
        self._getting: dict[int, int] = {}
        #: The last item of each putter that a process has received.
        self._seen: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        for line in path.read_text().splitlines():
            if line.endswith(END):
                writer, what, *numbers = line.removesuffix(END).split()
                self._read(int(writer), what, [int(number) for number in numbers])

    def _read(self, writer: int, what: str, numbers: list[int]) -> None:
        match what:
            case "putting":
                self._put.update(dict.fromkeys(numbers, False))
                self._batches.append(numbers)
            case "put":
                self._put.update(dict.fromkeys(numbers, True))
            case "getting":
                self._getting[writer] = numbers[0]
            case "got":
                self._getting.pop(writer)
                self._taken.update(numbers)
                for number in numbers:
                    self._never_again(number)
            case "claimed":
                self.claimed(writer, numbers[0], numbers[1] == 1)
            case "acknowledging":
                self._acknowledging.add(numbers[0])
            case "acknowledged":
                self._acknowledged.add(numbers[0])
                self._taken[numbers[0]] += 1
            case _:
                raise AssertionError(what)

    def _never_again(self, number: int) -> None:
        assert number in self._put, f"{number} was never put"
        assert number not in self._acknowledged, f"{number} was acknowledged and came again"

    def claimed(self, writer: int, number: int, redelivered: bool) -> None:
        """Check that this item may arrive now."""
        self._never_again(number)
        if not redelivered:
            assert number not in self._claimed, f"{number} came again as if it were new"
            putter = writer, number >> 32
            assert self._seen[putter] < number, f"{number} came after {self._seen[putter]}"
            self._seen[putter] = number
        self._redelivered += redelivered
        self._claimed.add(number)

    def drained(self, number: int, redelivered: bool) -> None:
        """Record an item that remained in the queue at the end."""
        self.claimed(-1, number, redelivered)
        self._taken[number] += 1

    def close(self) -> dict[str, int]:
        """Check that no item is lost or doubled; return the numbers of items, redeliveries, and items of the dead."""
        doubled = [number for number, count in self._taken.items() if count > 1]
        assert not doubled, f"{doubled[:10]} came twice"
        ended = self._taken.keys() | self._acknowledging
        lost = {number for number, has_returned in self._put.items() if has_returned} - ended
        for batch in self._batches:
            if not ended.isdisjoint(batch):
                lost |= set(batch) - ended
        in_hands = sum(self._getting.values())
        assert len(lost) <= in_hands, f"{sorted(lost)[:10]} are lost, and {in_hands} may have been got by the dead"
        return {"items": len(self._put), "redelivered": self._redelivered, "in_hands": len(lost)}
