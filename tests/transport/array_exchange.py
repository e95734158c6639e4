"""Both sides of a random exchange of arrays: each keeps, drops, cuts, sends on and looks again at what it was given."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import numpy as np

import shmrpc
from tests.helpers import array_service
from tests.helpers.array_service import Bytes, sum_of

#: An array, and its checksum as who sends it knows it.
Item = tuple[Any, int]

#: Arrays that are kept at a time, at most.
_MOST: Final = 24
#: Lengths: of those that go in the body, of those that take little and of those that take much of the memory.
_SIZES: Final = ((1, 4000), (4096, 20_000), (20_000, 200_000))


class Keeper:
    """What one side keeps. ``empty`` makes arrays in its shared memory."""

    def __init__(self, seed: int, empty: Callable[[int, str], Bytes]) -> None:
        self._dice = random.Random(seed)
        self._noise = np.random.default_rng(seed)
        self._empty = empty
        self._kept: list[Item] = []
        #: How often there was no memory for an array, and how many arrays were looked at again.
        self.refused = self.checked = 0

    def take(self, items: list[Item]) -> None:
        """Looks at what has come, and keeps some of it, or parts of it."""
        for array, expected in items:
            self._look(array, expected)
            part = self._part_of(array)
            if part is not None:
                self._kept.append((part, sum_of(part)))
        while len(self._kept) > _MOST:
            self._kept.pop(self._dice.randrange(len(self._kept)))
        self.look_again(self._dice.randrange(8))

    def give(self) -> list[Item]:
        """Some that are kept, and some new ones, most of which it keeps too."""
        given = self._dice.sample(self._kept, self._dice.randrange(min(3, len(self._kept) + 1)))
        for _ in range(self._dice.randrange(3)):
            array = self._new()
            item = array, sum_of(array)
            given.append(item)
            if self._dice.random() < 0.6:
                self._kept.append(item)
        self._dice.shuffle(given)
        return given

    def look_again(self, count: int | None = None) -> None:
        """Compares the checksums of so many that are kept, or of all."""
        chosen = self._kept if count is None else self._dice.sample(self._kept, min(count, len(self._kept)))
        for array, expected in chosen:
            self._look(array, expected)

    def drop_all(self) -> None:
        """Keeps nothing any more."""
        self._kept.clear()

    def _look(self, array: Any, expected: int) -> None:
        found = sum_of(array)
        assert found == expected, f"{array.nbytes} bytes have changed: {found:#x} instead of {expected:#x}"
        self.checked += 1

    def _part_of(self, array: Any) -> Any:
        """All of it, part of it, or nothing."""
        dice, length = self._dice, len(array)
        start = dice.randrange(min(length, 100))
        match dice.randrange(6):
            case 0 | 1:
                return None
            case 2:
                return array
            case 3:
                return array[start : start + dice.randrange(1, length + 1)]
            case 4:
                return array[start :: dice.choice([1, 2, 3, 50])]
            case _:
                return array.T[::-1] if array.ndim > 1 or length < 16 else array[: length // 4 * 4].reshape(4, -1)

    def _new(self) -> Any:
        size = self._dice.randint(*self._dice.choice(_SIZES))
        if self._dice.random() < 0.6:
            try:
                array = self._empty(size, "uint8")
            except shmrpc.SharedMemoryError:
                self.refused += 1
            else:
                array[:] = self._noise.integers(0, 256, size, "uint8")
                return array
        return self._noise.integers(0, 256, size, "uint8")


service = shmrpc.Service("tested.keeping")
memory = service.endpoint(array_service.memory)

_keepers: dict[str, Keeper] = {}


@service.endpoint
def begin(seed: int) -> None:
    """The server's side of an exchange."""
    _keepers["server"] = Keeper(seed, lambda size, dtype: shmrpc.current_call().empty(size, dtype))


@service.endpoint
def trade(items: list[Item]) -> list[Item]:
    keeper = _keepers["server"]
    keeper.take(items)
    return keeper.give()


@service.endpoint
async def given(n: int) -> AsyncIterator[list[Item]]:
    for _ in range(n):
        yield _keepers["server"].give()


@service.endpoint
async def taken(items: AsyncIterator[list[Item]]) -> int:
    count = 0
    async for some in items:
        _keepers["server"].take(some)
        count += 1
    return count


@service.endpoint
def end() -> tuple[int, int]:
    """Looks at all that is kept a last time, and keeps nothing more. How often it was refused memory, and looked."""
    keeper = _keepers["server"]
    keeper.look_again()
    keeper.drop_all()
    return keeper.refused, keeper.checked
