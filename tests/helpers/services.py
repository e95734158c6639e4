"""Services for tests, importable by a server in another process."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import decimal
import enum
import os
import time
import uuid
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

import shmrpc

service = shmrpc.Service("tested")

_setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="unset")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Options(TypedDict, total=False):
    depth: int


class Pair(NamedTuple):
    left: int
    right: str


class Order(msgspec.Struct):
    item: str
    count: int = 1


class CustomError(Exception):
    """An error that is no builtin."""


class CustomValueError(ValueError):
    """An error that is derived from a builtin."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@service.endpoint
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@service.endpoint
async def greet(name: str, *, punctuation: str = "!") -> str:
    return f"Hello, {name}{punctuation}"


@service.endpoint
def echo(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - without annotations
    return value


@service.endpoint
def defaults(a: int, b: int = 2, *rest: int, c: str = "c", **others: float) -> list[Any]:
    return [a, b, list(rest), c, others]


@service.endpoint
def keyword_only(*, a: int) -> int:
    return a


@service.endpoint
def nothing() -> None:
    return None


@service.endpoint
def kinds(
    integer: int,
    real: float,
    text: str,
    raw: bytes,
    flag: bool,
    none: None,
    items: list[int],
    pair: tuple[int, str],
    mapping: dict[str, int],
    unique: set[int],
    maybe: int | None,
    choice: Literal["a", "b"],
    colour: Colour,
    when: datetime.datetime,
    amount: decimal.Decimal,
    key: uuid.UUID,
    point: Point,
    options: Options,
    named: Pair,
    order: Order,
) -> list[str]:
    """Return the names of the types that arrive."""
    return [type(value).__name__ for value in locals().values()]


@service.endpoint
def move(point: Point, by: int = 1) -> Point:
    return Point(point.x + by, point.y + by)


@service.endpoint
async def sleep(seconds: float, result: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return result


@service.endpoint
async def with_timeout(seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            await asyncio.sleep(60)
    except TimeoutError:
        return "timed out"
    return "slept"


@service.endpoint
async def task_name_twice() -> bool:
    before = asyncio.current_task()
    await asyncio.sleep(0)
    return before is not None and asyncio.current_task() is before


@service.endpoint
async def set_setting(value: str) -> str:
    before = _setting.get()
    _setting.set(value)
    return before


@service.endpoint
async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@service.endpoint
def block(seconds: float) -> None:
    time.sleep(seconds)


@service.endpoint
def fail(kind: str) -> None:
    match kind:
        case "custom":
            raise CustomError("custom text", 7)
        case "derived":
            raise CustomValueError("derived text")
        case "key":
            raise KeyError("missing")
        case "os":
            raise FileNotFoundError(2, "No such file", "/nowhere")
        case "unicode":
            b"\xff".decode()
        case "unprintable":
            raise Unprintable
        case "unencodable args":
            raise ValueError(object())
        case "group":
            raise ExceptionGroup("several", [ValueError(1)])
        case "invalid arguments":
            raise shmrpc.InvalidArguments("of another caller's call")
        case "syntax":
            raise SyntaxError("odd", ("file", 1, 2, 123))  # type: ignore[arg-type]
        case "stop":
            raise StopIteration
        case _:
            raise ValueError(kind)


@service.endpoint
async def fail_later(text: str) -> None:
    await asyncio.sleep(0.001)
    raise ValueError(text)


@service.endpoint
def unencodable() -> Any:
    return object()


@service.endpoint
async def unencodable_later() -> Any:
    await asyncio.sleep(0.001)
    return object()


@service.endpoint
def zeros(size: int) -> bytes:
    return bytes(size)


@service.endpoint
def pid() -> int:
    return os.getpid()


@service.endpoint
def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@service.endpoint
def mapped() -> int:
    """Return the number of segments of shmrpc that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("/shmrpc.tested." in line for line in maps)
