"""Endpoints of every shape."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterator
from typing import Any

import shmrpc

offered = shmrpc.Service("offered")


@dataclasses.dataclass
class Point:
    x: int
    y: int


@offered.endpoint
def add(a: int, b: int = 0) -> int:
    return a + b


@offered.endpoint
async def greet(name: str, *, punctuation: str = "!") -> str:
    return f"Hello, {name}{punctuation}"


@offered.endpoint(run_in="thread")
def move(point: Point, by: int) -> Point:
    return Point(point.x + by, point.y + by)


@offered.endpoint
def names() -> list[str]:
    return ["a list is no stream"]


@offered.endpoint
def nothing() -> None:
    return None


@offered.endpoint
def untold(value: Any) -> Any:
    return value


@offered.endpoint
async def ticks(count: int) -> AsyncIterator[int]:
    for tick in range(count):
        yield tick


@offered.endpoint
async def points(count: int) -> AsyncGenerator[Point, None]:
    for each in range(count):
        yield Point(each, each)


@offered.endpoint
def countdown(start: int) -> Iterator[int]:
    yield from range(start, 0, -1)


@offered.endpoint
def letters(word: str) -> Generator[str, None, None]:
    yield from word


@offered.endpoint
async def total(numbers: AsyncIterator[int], factor: int = 1) -> int:
    return factor * sum([number async for number in numbers])


@offered.endpoint
async def halved(numbers: AsyncIterable[int], *, offset: float = 0) -> AsyncIterator[float]:
    async for number in numbers:
        yield number / 2 + offset
