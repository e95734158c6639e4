"""Both sides of a random exchange of arrays: each keeps, drops, cuts, sends on and checks the arrays it receives."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import numpy as np

import shmrpc
from tests.helpers import array_service
from tests.helpers.array_service import Bytes, sum_of

#: An array, and the checksum that its sender has computed.
Item = tuple[Any, int]

#: The largest number of arrays that a side keeps.
_MAX_KEPT: Final = 24
#: Ranges of lengths: of arrays in the body of a frame, of small and of large arrays in shared memory.
_SIZES: Final = ((1, 4000), (4096, 20_000), (20_000, 200_000))


class KeptArrays:
    """The arrays that one side keeps. ``empty`` makes arrays in its shared memory."""

    def __init__(self, seed: int, empty: Callable[[int, str], Bytes]) -> None:
        self._dice = random.Random(seed)
        self._noise = np.random.default_rng(seed)
        self._empty = empty
        self._kept: list[Item] = []
        #: The number of arrays for which there was no memory, and of checks of arrays.
        self.refused = self.checked = 0

    def receive(self, items: list[Item]) -> None:
        """Check the arrays received, and keep some of them, or parts of them."""
        for array, expected in items:
            self._check(array, expected)
            part = self._part_of(array)
            if part is not None:
                self._kept.append((part, sum_of(part)))
        while len(self._kept) > _MAX_KEPT:
            self._kept.pop(self._dice.randrange(len(self._kept)))
        self.check(self._dice.randrange(8))

    def give(self) -> list[Item]:
        """Return some of the kept arrays and some new ones, of which most are kept, too."""
        given = self._dice.sample(self._kept, self._dice.randrange(min(3, len(self._kept) + 1)))
        for _ in range(self._dice.randrange(3)):
            array = self._new()
            item = array, sum_of(array)
            given.append(item)
            if self._dice.random() < 0.6:
                self._kept.append(item)
        self._dice.shuffle(given)
        return given

    def check(self, count: int | None = None) -> None:
        """Compare the checksums of so many kept arrays, or of all."""
        chosen = self._kept if count is None else self._dice.sample(self._kept, min(count, len(self._kept)))
        for array, expected in chosen:
            self._check(array, expected)

    def drop_all(self) -> None:
        """Drop all arrays."""
        self._kept.clear()

    def _check(self, array: Any, expected: int) -> None:
        found = sum_of(array)
        assert found == expected, f"{array.nbytes} bytes have changed: {found:#x} instead of {expected:#x}"
        self.checked += 1

    def _part_of(self, array: Any) -> Any:
        """Return the array, a part of it, or None."""
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

_kept_arrays: dict[str, KeptArrays] = {}


@service.endpoint
def begin(seed: int) -> None:
    """Begin the server's side of an exchange."""
    _kept_arrays["server"] = KeptArrays(seed, lambda size, dtype: shmrpc.current_call().empty(size, dtype))


@service.endpoint
def trade(items: list[Item]) -> list[Item]:
    kept = _kept_arrays["server"]
    kept.receive(items)
    return kept.give()


@service.endpoint
async def given(n: int) -> AsyncIterator[list[Item]]:
    for _ in range(n):
        yield _kept_arrays["server"].give()


@service.endpoint
async def taken(items: AsyncIterator[list[Item]]) -> int:
    count = 0
    async for some in items:
        _kept_arrays["server"].receive(some)
        count += 1
    return count


@service.endpoint
def end() -> tuple[int, int]:
    """Check all kept arrays, drop them, and return the number of refusals of memory and of checks."""
    kept = _kept_arrays["server"]
    kept.check()
    kept.drop_all()
    return kept.refused, kept.checked
