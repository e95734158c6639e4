"""Samples of each row in the table of docs/values.md: what is sent by every way."""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import http
import importlib
import ipaddress
import math
import mmap
import pathlib
import re
import tempfile
import types
import uuid
import warnings
import zoneinfo
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from numpy._core.defchararray import chararray  # `numpy.char` gives it with a warning since NumPy 2.5.

import shmrpc

HOUR: Final = datetime.timedelta(hours=1)


class Colour(enum.Enum):
    RED = "red"
    MIXED = (1, "m")


class State(str, enum.Enum):  # noqa: UP042  # Its text is not its value.
    RUNNING = "running"


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    at: datetime.datetime | None = None


class Size(msgspec.Struct, frozen=True):
    x: int


@shmrpc.register
class KnownColour(enum.Enum):
    BLUE = 1


@shmrpc.register
class KnownPair(NamedTuple):
    left: int
    right: Any


@shmrpc.register
@dataclasses.dataclass(frozen=True)
class KnownPoint:
    x: int
    y: Any = None


@shmrpc.register
class KnownSize(msgspec.Struct, frozen=True):
    x: int


class Celsius(float):
    pass


shmrpc.register(Celsius, float, Celsius)


class Ratio(float):
    pass


class Money(int):
    def __int__(self) -> int:
        return 99


class Name(str):
    def __str__(self) -> str:
        return f"<{self.upper()}>"


class Digest(bytes):
    pass


class Row(tuple[Any, ...]):
    pass


class Words(list[str]):
    pass


class Names(dict[str, str]):
    pass


class Group(set[str]):
    pass


class Tags(frozenset[str]):
    pass


class Buffer(bytearray):
    pass


class Amount(decimal.Decimal):
    pass


class Day(datetime.date):
    pass


class Moment(datetime.datetime):
    pass


class Span(datetime.timedelta):
    pass


class Tally(collections.Counter[str]):
    pass


class Folder(pathlib.PurePosixPath):
    pass


class Ticket(uuid.UUID):
    pass


class Image(np.ndarray):
    pass


class Zone(datetime.tzinfo):
    """A time zone that is in no table."""

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta | None:
        return HOUR

    def dst(self, when: datetime.datetime | None) -> None:
        return None

    def tzname(self, when: datetime.datetime | None) -> str:
        return "ours"

    def __eq__(self, other: object) -> bool:
        return type(other) is Zone

    def __hash__(self) -> int:
        return 1


class Header(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("size", ctypes.c_double))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Header) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


class Tensor:
    """An array of a library of one's own."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def __dlpack__(self, **options: Any) -> Any:
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.numbers.__dlpack_device__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and self.numbers.tolist() == other.numbers.tolist()

    __hash__ = None  # type: ignore[assignment]


#: The classes whose instances travel as a structure, and arrive as themselves where they are declared.
STRUCTURED: Final = (Colour, State, Word, Level, Access, http.HTTPStatus, Pair, Point, Size)

_BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
_RECORDS = [("a", "<i4"), ("b", ">f8")]


def _nat_without_unit() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 wants a unit.
        return np.datetime64("NaT")


def _memmap() -> Any:
    with tempfile.TemporaryFile() as file:
        made = np.memmap(file, np.int32, "w+", shape=(2000,))
    made[:] = 7
    return made


def _jax() -> list[Any]:
    jnp = importlib.import_module("jax.numpy")
    return [jnp.arange(3), jnp.ones((100, 100), "float32"), jnp.float32(2.5), jnp.zeros((0, 3), "int8")]


def _torch() -> list[Any]:
    torch = importlib.import_module("torch")
    return [torch.arange(3), torch.ones(100, 100), torch.tensor(2.5)]


def _pandas() -> list[Any]:
    pd = importlib.import_module("pandas")
    return [
        *(pd.Timestamp("2020-01-01 00:00:00.123456789"), pd.Timestamp("2020-01-01", tz="Europe/Berlin")),
        *(pd.Timedelta(1, "ns"), pd.NaT, pd.Series([1, 2]), pd.DataFrame({"a": [1, 2]}), pd.Index([1, 2])),
    ]


def _polars() -> list[Any]:
    pl = importlib.import_module("polars")
    return [pl.Series([1, 2]), pl.DataFrame({"a": [1, 2]})]


_table = pa.table({"a": [1, 2, None], "b": ["x", "y", "z"]})
_large = np.arange(40_000.0).reshape(200, 200)

#: By the words in the table's first column: what makes the samples, and the library that they need.
SAMPLES: Final[dict[str, tuple[Callable[[], list[Any]], str | None]]] = {
    "`None`, `bool`, `int`, `float`, `complex`": (
        lambda: [
            *(None, True, False, 0, 5, -(2**63), 2**64 - 1, 2**64, -(2**70), 7**5000),
            *(1.5, -0.0, math.nan, math.inf, 5e-324, 1 + 2j, complex(math.nan, -0.0)),
        ],
        None,
    ),
    "`str`, `bytes`": (lambda: ["", "ü", "x" * 100_000, b"", b"\0raw", b"x" * 100_000], None),
    "`list`, `dict`": (
        lambda: [[], [1, [2.5, None]], {}, {"a": [1], 2: {"b": -0.0}, None: 1, b"k": 2, (1, "x"): 3}],
        None,
    ),
    "`tuple`, `set`, `frozenset`": (
        lambda: [(), (1, ("a", [2])), set(), {1, "a", None}, frozenset(), frozenset([1.5, (1, 2)])],
        None,
    ),
    "`bytearray`, `array.array`": (
        lambda: [bytearray(), bytearray(b"ab"), bytearray(100_000), array.array("d", [1.5]), array.array("i")],
        None,
    ),
    "`memoryview`, read-only at the receiver": (
        lambda: [
            *(memoryview(b""), memoryview(b"abc"), memoryview(bytes(100_000)), memoryview(array.array("i", [1, 2]))),
            *(np.arange(6, dtype="i4").reshape(2, 3).data, np.arange(10, dtype="u1").data[::2]),
        ],
        None,
    ),
    "`range`, `slice`": (lambda: [range(0), range(0, 10, 3), range(2**70, 0, -1), slice(1, None, 2)], None),
    "`date`, `time`, `datetime`, `timedelta`, time zones": (
        lambda: [
            *(datetime.date(2026, 1, 2), datetime.time(1, 2, 3, 4), datetime.time(1, fold=1)),
            *(datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.datetime(2026, 10, 25, 2, 30, fold=1)),
            *(datetime.datetime(2026, 10, 25, 2, 30, tzinfo=_BERLIN, fold=each) for each in (0, 1)),
            *(datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.datetime(1, 1, 1)),
            *(datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(HOUR, "ours")), datetime.timedelta(-1, 1, 3)),
            *(datetime.UTC, datetime.timezone(HOUR), datetime.timezone(-HOUR, "X"), _BERLIN),
        ],
        None,
    ),
    "`Decimal`, `Fraction`": (
        lambda: [
            *map(decimal.Decimal, ("1.10", "-0", "1E+9", "NaN", "-Infinity", "2")),
            *(fractions.Fraction(1, 3), fractions.Fraction(2)),
        ],
        None,
    ),
    "`UUID`, paths": (
        lambda: [uuid.UUID(int=5), pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("C:/y")],
        None,
    ),
    "`Counter`, `OrderedDict`, `defaultdict`": (
        lambda: [
            *(collections.Counter("aab"), collections.OrderedDict(b=1, a=[2]), collections.defaultdict(list, a=[1])),
            collections.defaultdict(None, a=1),
        ],
        None,
    ),
    "NumPy arrays of numbers, texts, times and structures": (
        lambda: [
            *(np.arange(4, dtype="u1"), _large, np.asfortranarray(_large), _large[::2, 1::3], np.array(5)),
            *(np.zeros((0, 3)), np.arange(3, dtype=">i4"), np.array(["a", "bc"]), np.array([b"a"]), np.array([1 + 2j])),
            *(np.array(["2026-01-01", "NaT"], "M8[ns]"), np.array([1], "m8[25s]"), np.zeros(2, _RECORDS)),
            *(np.array([1.5], "longdouble"), np.array([True]), np.array([math.nan, -0.0])),
        ],
        None,
    ),
    "NumPy scalars and records": (
        lambda: [
            *(np.int64(1), np.float64(1.5), np.float64(math.nan), np.float32(0.5), np.bool(True), np.str_("x")),
            *(np.bytes_(b"x"), np.complex64(1j), np.longdouble(1) / 3, np.datetime64("2020-01-01T00:00:00.123456789")),
            *(_nat_without_unit(), np.timedelta64(5, "ns"), np.timedelta64(5, "M"), np.zeros(1, _RECORDS)[0]),
            *(np.rec.array([(1, 2.0)], dtype=_RECORDS)[0], np.longlong(-3), np.ulonglong(1 << 63)),
        ],
        None,
    ),
    "NumPy's `matrix`, `recarray`, `chararray`, `memmap`": (
        lambda: [
            *(np.ones((2, 2)).view(np.matrix), np.rec.array([(1, 2.0)], dtype=_RECORDS)),
            *(np.array(["a", "b"]).view(chararray), _memmap()),
        ],
        None,
    ),
    "masked arrays, arrays of objects, arrays of classes of your own": (
        lambda: [
            *(np.ma.masked_array([1, 2, 3], [True, False, False]), np.array([1, "a", None], object)),
            *(np.array(["a"], np.dtypes.StringDType()), np.ones(3).view(Image)),
        ],
        None,
    ),
    "`Enum`, not registered": (
        lambda: [*Colour, State.RUNNING, Word.YES, Level.HIGH, Access.READ | Access.WRITE, http.HTTPStatus.OK],
        None,
    ),
    "`NamedTuple`, not registered": (lambda: [Pair(1, "x")], None),
    "dataclass, `Struct`, not registered": (lambda: [Point(1), Size(2)], None),
    "instance of a registered class": (
        lambda: [
            KnownColour.BLUE,
            KnownPair(1, (2,)),
            KnownPoint(1, datetime.date(2026, 1, 2)),
            KnownSize(3),
            Celsius(20),
        ],
        None,
    ),
    "of a class derived from `int`, `float`, `str`, `bytes`, `tuple`": (
        lambda: [Money(5), Money(2**70), Ratio(1.5), Name("ada"), Digest(b"d"), Row((1, "a"))],
        None,
    ),
    "of a class derived from any other of these": (
        lambda: [
            *(Words("ab"), Names(a="b"), Group("a"), Tags("a"), Buffer(b"x"), Amount("1.10"), Day(2026, 1, 2)),
            *(Moment(2026, 1, 2), Span(1), Tally("aa"), Folder("a"), Ticket(int=1)),
        ],
        None,
    ),
    "of any other class of Python's": (
        lambda: [
            *(
                collections.UserString("x"),
                collections.UserDict(a=1),
                collections.UserList([1]),
                collections.deque([1]),
            ),
            *(ipaddress.ip_address("127.0.0.1"), re.compile("a"), types.SimpleNamespace(a=1), ...),
        ],
        None,
    ),
    "times in any other zone": (
        lambda: [datetime.datetime(2026, 1, 2, tzinfo=Zone()), datetime.time(1, tzinfo=Zone()), Zone()],
        None,
    ),
    "structures of ctypes": (lambda: [Header(1, 2.5)], None),
    "`mmap`, and what else has the buffer protocol": (lambda: [mmap.mmap(-1, 8)], None),
    "arrays of other libraries, with `__dlpack__`": (lambda: [Tensor(np.arange(3))], None),
    "pyarrow's buffers, arrays, chunked arrays, batches and tables": (
        lambda: [
            *(pa.py_buffer(b"raw"), pa.array([1, None, 3]), pa.array(["a", "b"]), pa.array([], pa.int8())),
            *(
                pa.array([{"x": 1}, None]),
                pa.array(["a", "b", "a"]).dictionary_encode(),
                pa.array(range(10_000))[5:9_000],
            ),
            *(pa.chunked_array([[1], [2, 3]]), _table.to_batches()[0], _table),
        ],
        "pyarrow",
    ),
    "JAX arrays": (_jax, "jax"),
    "PyTorch tensors": (_torch, "torch"),
    "of pandas: `Timestamp`, `Timedelta`, `NaT`, `Series`, `DataFrame`, `Index`": (_pandas, "pandas"),
    "of polars: `Series`, `DataFrame`": (_polars, "polars"),
}


def is_same(got: Any, sent: Any) -> bool:
    """Return True if two values are equal and of the same types throughout: 1 is not True, -0.0 not 0.0."""
    if type(got) is not type(sent):
        return False
    if type(sent).__name__ == "NaTType":
        return got is sent
    if isinstance(sent, dict):
        factories = getattr(got, "default_factory", None), getattr(sent, "default_factory", None)
        pairs = zip(got.items(), sent.items(), strict=True)
        return len(got) == len(sent) and factories[0] is factories[1] and all(is_same(a, b) for a, b in pairs)
    if isinstance(sent, (list, tuple)):
        return len(got) == len(sent) and all(map(is_same, got, sent))
    if isinstance(sent, (set, frozenset)):
        return {(type(each), each) for each in got} == {(type(each), each) for each in sent}
    if isinstance(sent, np.ma.MaskedArray):
        return is_same(got.filled(9), sent.filled(9)) and got.mask.tolist() == sent.mask.tolist()
    if isinstance(sent, (np.ndarray, np.generic)):
        if sent.dtype.hasobject:
            return bool(got.dtype == sent.dtype) and got.tolist() == sent.tolist()
        alike = (got.dtype, got.dtype.type, got.shape) == (sent.dtype, sent.dtype.type, sent.shape)
        return bool(alike) and np.asarray(got).tobytes() == np.asarray(sent).tobytes()
    if isinstance(sent, memoryview):
        return (got.format, got.shape, got.tobytes()) == (sent.format, sent.shape, sent.tobytes())
    if isinstance(sent, (datetime.datetime, datetime.time)):
        zones = got.tzinfo, sent.tzinfo
        return got == sent and got.fold == sent.fold and (zones[0] == zones[1] or repr(zones[0]) == repr(zones[1]))
    if isinstance(sent, (float, complex, decimal.Decimal)):
        return repr(got) == repr(sent)
    if type(sent).__module__.partition(".")[0] in ("pyarrow", "pandas", "polars") and hasattr(sent, "equals"):
        return bool(got.equals(sent))
    if type(sent).__module__.partition(".")[0] in ("jax", "jaxlib", "torch"):
        return is_same(np.asarray(got), np.asarray(sent))
    if isinstance(sent, datetime.timezone):
        return repr(got) == repr(sent)
    return got is sent or bool(got == sent)
