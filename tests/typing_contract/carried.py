"""A service whose endpoints have types that MessagePack has not: Python's own, arrays, and what holds them."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo
from collections.abc import AsyncIterator, Collection, Mapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

import shmrpc

carried = shmrpc.Service("carried")

ID = uuid.UUID(int=5)
DAY = datetime.date(2030, 1, 2)
ZONED = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))


class Odd(enum.Enum):
    """Values that no Literal names beside some that it does."""

    NONE = None
    HALF = 0.5
    PAIR = (1, 2)
    WORD = "word"


class Sizes(TypedDict):
    """Two forms of it arrive: this one, and within a Box a plain one."""

    sizes: set[int]


class Span(NamedTuple):
    start: datetime.date
    ids: frozenset[uuid.UUID] = frozenset()


class Outer(TypedDict):
    """Has no set of its own; what it holds has."""

    inner: Sizes


class Same(TypedDict):
    """The same wherever it is."""

    number: int


@dataclasses.dataclass(frozen=True)
class Spot:
    x: int
    y: int


@dataclasses.dataclass
class Box:
    """Its fields travel as msgspec writes them."""

    ids: set[uuid.UUID]
    price: decimal.Decimal
    pair: tuple[int, str]
    by_id: dict[uuid.UUID, set[int]]
    by_pair: dict[tuple[int, str], int]
    made: datetime.datetime
    zoned: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    took: datetime.timedelta
    sizes: Sizes
    outer: Outer
    same: Same
    span: Span


@dataclasses.dataclass
class Mixed:
    """Some of its fields can hold what msgspec does not write: those arrive as what they are."""

    image: npt.NDArray[np.uint8]
    anything: Any
    raw: bytearray
    complexes: set[complex]
    ids: set[uuid.UUID]
    box: Box | None = None
    path: pathlib.Path | None = None


class Cell(msgspec.Struct, array_like=True, frozen=True):
    numbers: frozenset[int]
    at: tuple[int, datetime.date]


class Row(msgspec.Struct, array_like=True, frozen=True):
    ids: frozenset[int]
    values: tuple[complex, ...] = ()


@carried.endpoint
def numbers(
    real: float, value: complex, exact: fractions.Fraction, price: decimal.Decimal, huge: int
) -> tuple[complex, fractions.Fraction, decimal.Decimal, int]:
    return value, exact, price, huge


@carried.endpoint
def times(zone: datetime.timezone, region: zoneinfo.ZoneInfo, any_zone: datetime.tzinfo) -> dict[str, datetime.time]:
    return {str(zone): datetime.time(1, 2, tzinfo=zone), str(region): datetime.time(3), str(any_zone): datetime.time(4)}


@carried.endpoint
def zones() -> tuple[datetime.timezone, zoneinfo.ZoneInfo, datetime.tzinfo, datetime.datetime, datetime.timedelta]:
    return datetime.UTC, zoneinfo.ZoneInfo("UTC"), datetime.UTC, ZONED, datetime.timedelta(1)


@carried.endpoint
def buffers(
    raw: bytearray,
    view: memoryview,
    items: array.array,  # type: ignore[type-arg]
) -> tuple[bytes, bytearray, memoryview, array.array, bytearray | None]:  # type: ignore[type-arg]
    return bytes(raw), raw, view, items, None


@carried.endpoint
def ranges(within: range, part: slice, where: pathlib.Path, pure: pathlib.PurePosixPath) -> dict[str, Any]:
    return {"within": within, "part": part, "where": where, "pure": pure}


@carried.endpoint
def paths() -> tuple[range, slice, pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PurePath]:
    here = pathlib.Path("a")
    return range(3), slice(1, None), here, pathlib.PurePosixPath("b"), pathlib.PureWindowsPath("c"), here


@carried.endpoint
def sets(unique: set[uuid.UUID], frozen: frozenset[frozenset[int]]) -> tuple[set[uuid.UUID], frozenset[frozenset[int]]]:
    return unique, frozen


@carried.endpoint
def sets_of_classes(
    spots: set[Spot],
) -> tuple[set[Spot], frozenset[tuple[Spot, int]], set[Spot | int], set[Span], set[Row]]:
    return spots, frozenset((spot, 1) for spot in spots), {1, *spots}, {Span(DAY)}, {Row(frozenset([1]))}


@carried.endpoint
def abstract(
    items: Sequence[float], some: Collection[str], several: AbstractSet[int], by_name: Mapping[str, set[int]]
) -> tuple[list[Sequence[int]], list[Collection[str]], list[AbstractSet[int]], Mapping[str, Any]]:
    return [range(3), [1]], [{"a"}, ("a",)], [{1}, frozenset([1])], by_name


@carried.endpoint
def changeable() -> tuple[MutableSequence[int], MutableSet[int]]:
    return [1], {1}


@carried.endpoint
def derived(
    word: str,
) -> tuple[collections.Counter[str], collections.OrderedDict[str, int], pathlib.PosixPath]:
    return collections.Counter(word), collections.OrderedDict(a=1), pathlib.PosixPath("a")


@carried.endpoint
def keys(
    by_id: dict[uuid.UUID, int],
) -> tuple[
    dict[uuid.UUID | frozenset[int], int],
    dict[tuple[datetime.date, frozenset[int]], int],
    dict[Span, int],
    dict[Cell, int],
]:
    cell = Cell(frozenset([1]), (1, DAY))
    return {ID: len(by_id), frozenset([1]): 2}, {(DAY, frozenset([1])): 1}, {Span(DAY, frozenset([ID])): 1}, {cell: 1}


@carried.endpoint
def odd(value: Odd) -> list[Odd]:
    return [value, *Odd]


@carried.endpoint
def sizes(value: Sizes, outer: Outer, same: Same) -> tuple[Sizes, Outer, Same]:
    return value, outer, same


@carried.endpoint
def span(value: Span) -> Span:
    return value


@carried.endpoint
def box(box: Box) -> Box:
    return box


@carried.endpoint
def mixed(value: Mixed) -> Mixed:
    return value


@carried.endpoint
def row(value: Row) -> Row:
    return value


@carried.endpoint
def arrays(
    image: np.ndarray, exact: npt.NDArray[np.float32], flat: np.ndarray[tuple[int], np.dtype[np.uint8]], one: np.float32
) -> tuple[np.ndarray, npt.NDArray[np.float32], np.ndarray[tuple[int], np.dtype[np.uint8]], np.float32]:
    return image, exact, flat, one


@carried.endpoint
def perhaps(
    value: np.ndarray | float | None, texts: dict[str, npt.NDArray[np.floating[Any]] | str]
) -> list[npt.NDArray[np.float64] | float | None]:
    return [np.ones(2), 1.5, None]


@carried.endpoint
def fixed(image: np.ndarray[tuple[Literal[2], int], np.dtype[np.float32 | np.float64]]) -> int:
    return image.size


@carried.endpoint
def invert(image: shmrpc.Writable[npt.NDArray[np.uint8]], mask: shmrpc.Writable[np.ndarray] | None = None) -> None:
    np.invert(image, out=image)


@carried.endpoint
def table(table: pa.Table) -> tuple[pa.Table, pa.RecordBatch, pa.Buffer]:
    return table, table.to_batches()[0], pa.py_buffer(b"raw")


@carried.endpoint
async def frames(images: AsyncIterator[npt.NDArray[np.uint8]]) -> AsyncIterator[npt.NDArray[np.uint8]]:
    async for image in images:
        yield image + np.uint8(1)


@carried.endpoint
async def found(ids: AsyncIterator[uuid.UUID]) -> AsyncIterator[set[uuid.UUID]]:
    async for each in ids:
        yield {each}


@carried.endpoint(name="numpy")
def numpy_version() -> np.ndarray:
    """Use numpy.array and torch.Tensor under the name of a module."""
    return np.zeros(1)
