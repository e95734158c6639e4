"""Queues and topics of whatever make: their ends, what is put into them, and the check that each item has come once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, Literal, Protocol

from benchmark.processes import Rendezvous
from benchmark.subjects import Loop

#: Elements of an array, eight bytes each, and what those of the last one are.
ELEMENTS: Final = 50_000
LAST: Final = 1 << 32
#: Items of a writer until it begins again with its first one, and the bytes that all of them may have.
_DIFFERENT: Final = 4_000
_BYTES: Final = 1 << 22
#: Says to a reader that a writer has ended: neither an item, nor is what it consists of.
OVER: Final = "."
#: The ways in which arrays go: through a queue, or to all readers of a topic.
COPIED, IN_PLACE, TO_ALL = "copied", "in place", "to all"

#: Puts an array of which each element is that number; gets an array and returns its sum.
Arrays = tuple[Callable[[int], Any], Callable[[], int]]


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a process: writer or reader, its number, and how many there are."""

    side: Literal["put", "get"]
    number: int
    writers: int
    readers: int
    #: The most waiting items, for queues that count them; 0: any number.
    most: int = 10_000
    #: True if items are bytes, for queues that then need no encoding.
    raw: bool = False


def missing_side(*_: Any) -> Any:
    """Raise an error: the stand-in for the missing side of an end with one direction."""
    raise NotImplementedError("this end has one direction")


@dataclasses.dataclass
class End:
    """One process's end of a queue, as functions; in a loop they are asynchronous, but ``is_over`` and ``end``."""

    put: Callable[[Any], Any] = missing_side
    put_many: Callable[[list[Any]], Any] = missing_side
    get: Callable[[], Any] = missing_side
    #: At least one item, at most so many.
    get_many: Callable[[int], Any] = missing_side
    #: Announces that this writer has put all its items. The first writer does so after all others.
    end: Callable[[], Any] = missing_side
    #: A reader has got this, which is no item: whether that was the last there is for it.
    is_over: Callable[[Any], bool] = bool
    #: Returns the number of waiting items, where the queue can report it.
    size: Callable[[], int] = int
    #: Makes, for each of the ways in which it has arrays, the functions for them.
    arrays: Mapping[str, Callable[[], Arrays]] = dataclasses.field(default_factory=dict)


class Way(Protocol):
    """The client of a subject that has queues: it is there before the processes that use it, which are forked."""

    place: Rendezvous
    #: The loop of the processes.
    loop: Loop

    def open(self, part: Part) -> AbstractContextManager[End] | AbstractAsyncContextManager[End]:
        """Return the end of the process that calls it."""


def one_by_one(put: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    """``put_many`` for a queue without batches."""

    def put_many(items: list[Any]) -> None:
        for item in items:
            put(item)

    return put_many


def copied(put: Callable[[Any], Any], get: Callable[[], Any], *, is_kept: bool = False) -> Arrays:
    """Arrays for a queue that takes and gives them as values; ``is_kept``: it reads them after ``put`` has returned."""
    import numpy as np  # Only the loads of arrays need it.

    array = np.empty(ELEMENTS, "u8")

    def put_array(number: int) -> None:
        filled = np.empty(ELEMENTS, "u8") if is_kept else array
        filled.fill(number)
        put(filled)

    def get_array() -> int:
        return int(get().sum())

    return put_array, get_array


def baton(put: Callable[[Any], Any], part: Part) -> tuple[Callable[[], None], Callable[[int], bool]]:
    """``end`` and ``is_over`` for a queue that all readers share: a number that each of them passes on to the next."""

    def end() -> None:
        if part.number == 0:
            put(-part.readers)

    def is_over(left: int) -> bool:
        if left < -1:
            put(left + 1)
        return True

    return end, is_over


def countdown(part: Part) -> Callable[[Any], bool]:
    """``is_over`` for a reader to which each writer says that it has ended."""
    left = itertools.count(part.writers - 1, -1)
    return lambda _: next(left) == 0


class Follower:
    """Looks at what the reader of a topic gets: all that its one writer puts, in order."""

    def __init__(self, stock: Stock) -> None:
        self._items, self._twice = len(stock.items), stock.items * 2
        self.count = 0

    def note(self, items: list[Any]) -> None:
        """Look at items. Raises KeyError for what is not the next one."""
        at = self.count % self._items
        if items != (expected := self._twice[at : at + len(items)]):
            right = next(number for number, pair in enumerate(zip(items, expected, strict=True)) if pair[0] != pair[1])
            self.count += right
            raise KeyError(items[right])
        self.count += len(items)


class Stock:
    """The items of all writers: each puts its own ones, in order, again and again.

    ``size`` 0: small ints; else bytes of that length.
    """

    def __init__(self, writers: int, batch: int, size: int) -> None:
        self.batch = batch
        count = min(_DIFFERENT, max(1, _BYTES // size)) if size else _DIFFERENT
        self._each = max(1, count // batch) * batch
        numbers = range(writers * self._each)
        self.items: list[Any] = [_bytes(number, size) for number in numbers] if size else list(numbers)
        #: Where an item stands among all.
        self.places = {item: number for number, item in enumerate(self.items)}

    def batches(self, writer: int) -> list[list[Any]]:
        """Return the batches of a writer, in order."""
        start = writer * self._each
        return [self.items[at : at + self.batch] for at in range(start, start + self._each, self.batch)]

    def expected(self, batches: Sequence[int]) -> list[int]:
        """Return the expected number of items of each batch, for these numbers of batches of the writers."""
        each = self._each // self.batch
        return [self.batch * (put // each + (at < put % each)) for put in batches for at in range(each)]


def _bytes(number: int, size: int) -> bytes:
    """Bytes that are another item's nowhere but in their filling."""
    return number.to_bytes(4, "little") + b"\xa5" * (size - 4)


class Ledger:
    """The items that a reader has received, counted by batch."""

    def __init__(self, stock: Stock) -> None:
        self._items, self._places, self._batch = stock.items, stock.places, stock.batch
        self.seen = [0] * (len(stock.items) // stock.batch)

    def note(self, items: list[Any]) -> None:
        """Look at items, of which parts of a batch stand together. Raises KeyError for what is no item."""
        at, end = 0, len(items)
        while at < end:
            place = self._places[items[at]]
            run = min(end - at, self._batch - place % self._batch)
            if items[at : at + run] != self._items[place : place + run]:
                raise ValueError(f"what came after item {place} is not what was put after it")
            self.seen[place // self._batch] += run
            at += run


def check(stock: Stock, batches: Sequence[int], seen: Sequence[Sequence[int]]) -> None:
    """Raise ValueError if the readers together have not seen exactly what the writers put."""
    wrong = sum(
        abs(sum(came) - put) for put, came in zip(stock.expected(batches), zip(*seen, strict=True), strict=True)
    )
    if wrong:
        raise ValueError(f"{wrong} items were lost or came twice")
