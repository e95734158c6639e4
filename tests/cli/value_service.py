"""A service that gives values of every kind, for the command line to show."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped, unused-ignore]

import shmrpc

service = shmrpc.Service("shown")


class Colour(enum.Enum):
    RED = "red"


@shmrpc.register
@dataclasses.dataclass
class Point:
    x: int
    y: float


def _nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


VALUES: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": 2**70,
    "float": 1.5,
    "nan": math.nan,
    "minus infinity": -math.inf,
    "text": 'ä→"\n',
    "escape": "\x1b[31m\x9b",
    "bytes": b"\x00ab",
    "bytearray": bytearray(b"x"),
    "many bytes": bytes(1_000_000),
    "list": [1, [], {}],
    "tuple": (1, (2, 3)),
    "set": {1},
    "frozenset": frozenset({1}),
    "dict": {"a": [1]},
    "int keys": {1: "x"},
    "tuple keys": {(1, "a"): "x"},
    "mixed keys": {1: "a", "1": "b"},
    "nan key": {math.nan: 1},
    "complex": 1 + 2j,
    "path": pathlib.PurePosixPath("/tmp/x"),
    "range": range(0, 10, 2),
    "slice": slice(1, 2),
    "very large int": -(7**50_000),
    "fraction": fractions.Fraction(1, 3),
    "decimal": decimal.Decimal("1.50"),
    "uuid": uuid.UUID(int=5),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(1, 2),
    "timedelta": datetime.timedelta(seconds=5),
    "enum": Colour.RED,
    "registered": Point(1, math.nan),
    "counter": collections.Counter("a"),
    "array": np.arange(4).reshape(2, 2),
    "array of text": np.array(["a", "bc"]),
    "array of complex": np.array([1 + 2j]),
    "array of dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "array of nan": np.array([math.nan, 1]),
    "records": np.zeros(1, dtype=[("a", "i4")]),
    "large array": np.zeros((1000, 1000)),
    "no dimensions": np.array(5),
    "number of numpy": np.float32(0.5),
    "long double": np.longdouble("0.5"),
    "empty array": np.zeros((0, 3)),
    "table": pyarrow.table({"a": [1, 2]}),
    "nested array": {"image": np.zeros((2, 2)), "rest": [b"x", 1j]},
    "deep": _nested(300),
}


@service.endpoint
def value(name: str) -> Any:
    return VALUES[name]


@service.endpoint
async def values(names: list[str]) -> AsyncIterator[Any]:
    for name in names:
        yield VALUES[name]


@service.endpoint
async def ticks() -> AsyncIterator[int]:
    for n in range(1_000_000):
        yield n
        await asyncio.sleep(0.01)


@service.endpoint
async def fails_later() -> AsyncIterator[int]:
    yield 1
    raise KeyError("odd")


@service.endpoint
def cannot_be_sent() -> Any:
    return collections.deque([1])


@service.endpoint
def fails() -> None:
    raise ValueError("odd")


@service.endpoint(run_in="thread")
def sleeps(seconds: float) -> None:
    time.sleep(seconds)


_waiting: list[None] = []


@service.endpoint
async def waits() -> None:
    _waiting.append(None)
    try:
        await asyncio.Event().wait()
    finally:
        _waiting.pop()


@service.endpoint
def waiting() -> int:
    return len(_waiting)


@service.endpoint
def shown(what: Any, *, more: Any = None) -> str:
    return f"{what!r} {more!r}"


@dataclasses.dataclass
class Item:
    price: decimal.Decimal
    count: int = 1


@dataclasses.dataclass
class Weighed:
    price: decimal.Decimal
    weight: float


@service.endpoint
def price(amount: decimal.Decimal | None, *, tip: decimal.Decimal = decimal.Decimal()) -> str:
    return f"{amount!r} {tip!r}"


@service.endpoint
def items(items: list[Item], *prices: decimal.Decimal) -> str:
    return f"{[item.price for item in items]} {prices}"


@service.endpoint
def weighed(weighed: Weighed) -> str:
    return f"{weighed.price!r} {weighed.weight!r}"


@service.endpoint
async def sum_up(prices: AsyncIterator[decimal.Decimal]) -> list[str]:
    return [str(each) async for each in prices]


@service.endpoint
def texts(text: str, *, path: pathlib.Path | None = None, either: int | str = 0) -> str:
    return f"{text!r} {path and str(path)!r} {either!r}"


@service.endpoint
def double(n: int) -> int:
    return 2 * n


@service.endpoint
def size(data: bytes) -> int:
    return len(data)


@service.endpoint
def total(array: np.ndarray) -> float:
    return float(array.sum())


@service.endpoint
async def join(first: str, items: AsyncIterator[Any]) -> list[Any]:
    return [first, *[item async for item in items]]


@service.endpoint
async def sizes(lines: AsyncIterator[bytes]) -> AsyncIterator[int]:
    async for line in lines:
        yield len(line)
