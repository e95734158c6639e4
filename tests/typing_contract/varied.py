"""A service whose endpoints have types of every kind, to be described and to have a stub made of it."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec

import shmrpc

varied = shmrpc.Service("varied")

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    start: Point
    end: Point
    colour: Colour = Colour.RED
    length: float = dataclasses.field(default=0.0, init=False)


@dataclasses.dataclass(slots=True)
class Address:
    """A class with slots, in which a default has no attribute of the class."""

    street: str
    number: int = 0


class Item(msgspec.Struct):
    id: uuid.UUID
    tags: list[str] = []
    children: list[Item] = []


class Sparse(msgspec.Struct, omit_defaults=True, rename="camel"):
    the_name: str
    the_size: int = 0
    note: str | msgspec.UnsetType = msgspec.UNSET


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Vector(msgspec.Struct, array_like=True):
    x: float
    y: float
    label: str = ""


class Pair(NamedTuple):
    left: int
    right: str = ""


class Nested(NamedTuple):
    inner: list[Nested]


class Options(TypedDict):
    depth: int
    when: NotRequired[datetime.date]


class Awkward(TypedDict):
    list: list[int]
    str: str


Headers = TypedDict("Headers", {"content-type": str, "class": int})


class Box(msgspec.Struct, Generic[T]):
    value: T


class Client(msgspec.Struct):
    """A class with the name of a class of the stub."""

    name: str


@varied.endpoint
def plain(whole: int, real: float, text: str, raw: bytes, flag: bool, nothing: None = None) -> bytes:
    r"""Add nothing.

    It has "quotes", a \ and a second line.
    """
    return raw


@varied.endpoint
def texts(
    when: datetime.datetime, day: datetime.date, hour: datetime.time, span: datetime.timedelta, price: decimal.Decimal
) -> tuple[datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal]:
    return when, day, hour, span, price


@varied.endpoint
def zoned(
    when: Annotated[datetime.datetime, msgspec.Meta(tz=True)],
) -> Annotated[datetime.datetime, msgspec.Meta(tz=True)]:
    return when


@varied.endpoint
def arrays(
    items: list[int], pair: tuple[int, str], many: tuple[float, ...], unique: set[str], ids: Sequence[uuid.UUID]
) -> frozenset[str]:
    return frozenset(unique)


@varied.endpoint
def maps(by_name: dict[str, float], by_id: Mapping[uuid.UUID, Point]) -> dict[tuple[int, str], set[int]]:
    return {(1, "one"): {1}}


@varied.endpoint
def choices(
    colour: Colour, level: Level = Level.LOW, rights: Rights = Rights.READ, mode: Literal["r", "w"] | None = None
) -> tuple[Colour, Level, Rights]:
    return colour, level, rights


@varied.endpoint
async def line(line: Line) -> Line:
    return line


@varied.endpoint
def settled(address: Address) -> Address:
    return address


@varied.endpoint
async def item(item: Item) -> Item:
    return item


@varied.endpoint
def items(items: list[Item]) -> dict[str, Item]:
    return {str(each.id): each for each in items}


@varied.endpoint
def sparse(value: Sparse) -> Sparse:
    return value


@varied.endpoint
def shape(value: Circle | Square) -> Circle | Square | None:
    return value


@varied.endpoint
def vector(value: Vector, pair: Pair) -> tuple[Vector, Pair]:
    return value, pair


@varied.endpoint
def nested(value: Nested) -> Nested:
    return value


@varied.endpoint
def options(value: Options, headers: Headers, awkward: Awkward) -> tuple[Options, Headers, Awkward]:
    return value, headers, awkward


@varied.endpoint
def boxes(of_int: Box[int], of_point: Box[Point]) -> Box[str]:
    return Box(f"{of_int.value} {of_point.value}")


@varied.endpoint
def limited(count: Annotated[int, msgspec.Meta(ge=0)], user: UserId, client: Client | None = None) -> UserId:
    return user


@varied.endpoint
def untold(value, *rest, **others):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201
    return value


@varied.endpoint
def keywords(self: int, /, both: int, *, only: int, optional: int = 1) -> list[int]:
    return [self, both, only, optional]


@varied.endpoint(name="list")
def list_all(count: int) -> dict[str, int]:
    """Carry the name of a type that other endpoints use."""
    return {"count": count}


@varied.endpoint(name="datetime")
def local_time() -> datetime.datetime:
    return datetime.datetime.now()


@varied.endpoint(name="Address")
def make_address(colour: Colour) -> Address:
    """Carry the name of a class."""
    return Address(colour.value)


with warnings.catch_warnings(action="ignore", category=UserWarning):

    @varied.endpoint(name="close")
    def close_valve(number: int) -> int:
        """Carry the name of a method of every client."""
        return number

    @varied.endpoint(name="import")
    def import_goods() -> int:
        """Its name is a word of Python's."""
        return 1


@varied.endpoint
async def ticks(count: int) -> AsyncIterator[Point]:
    for each in range(count):
        yield Point(each)


@varied.endpoint(run_in="thread")
def countdown(start: int) -> Iterator[int]:
    yield from range(start, 0, -1)


@varied.endpoint
async def total(numbers: AsyncIterator[int], start: int = 0) -> int:
    return start + sum([number async for number in numbers])


@varied.endpoint
async def moved(points: AsyncIterator[Point], by: int) -> AsyncIterator[Point]:
    async for point in points:
        yield Point(point.x + by, point.y + by)


deep = varied.group("deep.er")


@deep.endpoint
def add(a: int, b: int = 2) -> int:
    return a + b


@deep.endpoint(name="str")
def as_text(value: Any) -> str:
    return str(value)
