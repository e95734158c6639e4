"""The ticks of one share, the same each time, and what is unusual about some of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, TypedDict

#: Of a price: between two ticks it changes by less, unless it jumps.
STEP: Final = 0.001
JUMP: Final = 0.02


class Tick(TypedDict):
    """A trade."""

    price: float
    size: int


def ticks(count: int) -> Iterator[Tick]:
    """Yield ``count`` ticks, whose price wanders and sometimes jumps."""
    chance = random.Random(19)
    price = 100.0
    for number in range(count):
        jumps = number % 997 == 500
        price *= 1 + (chance.choice((-1, 1)) * JUMP if jumps else chance.uniform(-STEP, STEP))
        yield {"price": round(price, 4), "size": chance.randrange(1, 1000)}


def is_jump(before: float, price: float) -> bool:
    """Tell whether a price differs from the previous price by more than half a jump."""
    return abs(price / before - 1) > JUMP / 2


def jumps(count: int) -> list[int]:
    """Return the numbers of the ticks that must raise an alarm."""
    prices = [tick["price"] for tick in ticks(count)]
    return [number for number in range(1, count) if is_jump(prices[number - 1], prices[number])]
