"""A service for hostile clients: one endpoint of each shape, none of which does much for any arguments."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import shmrpc

service = shmrpc.Service("tested")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
def echo(value: Any) -> Any:
    return value


@service.endpoint
def size(value: Any) -> int:
    """Take any value and return a small one."""
    return len(value) if hasattr(value, "__len__") else 0


@service.endpoint
async def later(value: Any = None, *, seconds: float = 0.001) -> Any:
    await asyncio.sleep(min(max(seconds, 0), 0.01))
    return value


@service.endpoint
def options(a: int = 1, *rest: int, text: str = "", **others: float) -> list[Any]:
    return [a, len(rest), len(text), len(others)]


@service.endpoint
def typed(
    number: int,
    real: float = 0.0,
    text: str = "",
    raw: bytes = b"",
    items: list[int] | None = None,
    mapping: dict[str, int] | None = None,
    unique: set[int] | None = None,
    pair: tuple[int, str] = (0, ""),
    when: datetime.datetime | None = None,
    amount: decimal.Decimal | None = None,
    key: uuid.UUID | None = None,
    colour: Colour | None = None,
    point: Point | None = None,
) -> int:
    return number


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    for number in range(min(n, 100)):
        yield number


@service.endpoint
async def total(numbers: AsyncIterator[int], scale: int = 1) -> int:
    result = 0
    async for number in numbers:
        result += number
    return result * scale


@service.endpoint
async def doubled(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    async for number in numbers:
        yield 2 * number


@service.endpoint
def fail(text: str) -> None:
    raise ValueError(text)


@service.endpoint
def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
