"""Extensions for types of Python's standard library that MessagePack lacks."""

from __future__ import annotations

import datetime
import decimal
import os
import pathlib
import re
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.msgpack import Ext

from shmrpc.values.decode_context import DecodeContext, Reader
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension, imported
from shmrpc.values.pickling import write_pickle

if TYPE_CHECKING:
    import fractions

_T = TypeVar("_T")

INTEGER: Final = 16
COMPLEX: Final = 17
SET: Final = 18
FROZENSET: Final = 19
TUPLE: Final = 20
RANGE: Final = 21
SLICE: Final = 22
DATE: Final = 23
TIME: Final = 24
DATETIME: Final = 25
TIMEDELTA: Final = 26
ZONE: Final = 27
DECIMAL: Final = 28
FRACTION: Final = 29
UUID: Final = 30
PATH: Final = 31

#: The largest part of a fraction, in bits. Reducing it takes the square of its size: a few milliseconds for this.
MAX_FRACTION_BITS: Final = 65536

_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_IANA_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,5}")
#: Names of MessagePack's own types in errors.
_WIRE_NAMES: Final[dict[type, str]] = {bytes: "bin", float: "float", int: "int", list: "an array", str: "text"}


def _check_type(payload: Any, kind: type[_T]) -> _T:
    """Return a payload of the expected type. Raises TypeError for any other."""
    if not isinstance(payload, kind):
        raise TypeError(f"expected {_WIRE_NAMES[kind]}, got {type(payload).__name__}")
    return payload


def write_integer(value: int, context: EncodeContext) -> Any:
    """Return an integer that fits into 64 bits unchanged, and an extension for a larger one."""
    if _LEAST <= value <= _MOST:
        return value
    data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return Ext(INTEGER, context.pack(data))


def _read_complex(payload: Any, context: DecodeContext) -> complex:
    """Return a complex number. Raises TypeError unless both parts are floats."""
    real, imaginary = payload
    return complex(_check_type(real, float), _check_type(imaginary, float))


def _collection_extension(code: int, kind: type[Any]) -> Extension:
    """Return the extension of a collection class. Elements of which no instance can be built arrive as a list."""

    def read(payload: Any, context: DecodeContext) -> Any:
        items = _check_type(payload, list)
        try:
            return kind(items)
        except TypeError:  # An element of a set arrived as a map, because its class is not registered.
            return items

    return Extension(
        code,
        kind.__name__,
        "array of the elements",
        read,
        {kind: lambda value, context: context.extension(code, value)},
    )


def _span_extension(code: int, kind: type[Any]) -> Extension:
    """Return the extension of ``range`` or ``slice``."""

    def read(payload: Any, context: DecodeContext) -> Any:
        start, stop, step = payload
        return kind(start, stop, step)

    def write(value: Any, context: EncodeContext) -> Ext:
        return context.extension(code, [value.start, value.stop, value.step])

    return Extension(code, kind.__name__, "`[start, stop, step]`", read, {kind: write})


def _write_datetime(value: datetime.datetime, context: EncodeContext) -> Any:
    """Return a datetime in ``datetime.UTC`` unchanged, which travels as a timestamp; an extension for any other.

    Returns a pickle if its zone needs one. Raises TypeError for a zone that cannot be sent.
    """
    if value.tzinfo is datetime.UTC and not value.fold:
        return value
    if _needs_pickle(value.tzinfo, context):
        return write_pickle(value, context)
    return Ext(DATETIME, context.pack(_encode_time(datetime.datetime, value)))


def _time_reader(kind: Any) -> Reader:
    """Return the reader of a class: ``time`` or ``datetime``."""

    def read(payload: Any, context: DecodeContext) -> Any:
        if isinstance(payload, str):
            return kind.fromisoformat(payload)
        text, zone, fold = payload
        return kind.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)

    return read


def _read_timedelta(payload: Any, context: DecodeContext) -> datetime.timedelta:
    """Return a timedelta. Raises TypeError unless its three parts are integers."""
    days, seconds, microseconds = payload
    return datetime.timedelta(_check_type(days, int), _check_type(seconds, int), _check_type(microseconds, int))


def _write_tzinfo(value: datetime.tzinfo, context: EncodeContext) -> Ext:
    """Return the extension of a zone, or a pickle if needed and allowed. Raises TypeError for any other zone."""
    if _needs_pickle(value, context):
        return write_pickle(value, context)
    return Ext(ZONE, context.pack(_encode_zone(value)))


def _encode_zone(value: datetime.tzinfo) -> Any:
    """Return the encoding of a zone. Raises TypeError for one that the receiver could not rebuild."""
    zone = _try_encode_zone(value)
    if zone is None:
        raise TypeError(f"the time zone {value!r:.100} cannot be sent: use datetime.timezone or zoneinfo.ZoneInfo(key)")
    return zone


def _read_tzinfo(payload: Any, context: DecodeContext) -> datetime.tzinfo:
    """Return a zone. Raises ValueError if the payload holds none."""
    zone = _read_zone(payload)
    if zone is None:
        raise ValueError("there is no zone in it")
    return zone


def _write_time(value: datetime.time, context: EncodeContext) -> Ext:
    """Return the extension of a time, or a pickle if its zone needs one.

    Raises TypeError for a zone that cannot be sent.
    """
    if _needs_pickle(value.tzinfo, context):
        return write_pickle(value, context)
    return Ext(TIME, context.pack(_encode_time(datetime.time, value)))


def _needs_pickle(zone: datetime.tzinfo | None, context: EncodeContext) -> bool:
    """Return True if a zone can only be pickled, and the context allows that."""
    return context.pickled and zone is not None and _try_encode_zone(zone) is None


def _encode_time(kind: Any, value: datetime.time | datetime.datetime) -> Any:
    """Return the encoding of a time or a datetime with its zone. Raises TypeError for an unknown zone."""
    text = kind.isoformat(value.replace(tzinfo=None))
    if value.tzinfo is None:
        return [text, None, value.fold] if value.fold else text
    return [text, _encode_zone(value.tzinfo), value.fold]


def _try_encode_zone(value: datetime.tzinfo) -> Any:
    """Return the encoding of a zone; None if it has neither a fixed offset nor a known name."""
    if type(value) is imported("zoneinfo.ZoneInfo"):
        return value.key  # type: ignore[attr-defined]  # A ZoneInfo; one that was read from a file has no key.
    if type(value) is not datetime.timezone:
        return None
    offset = value.utcoffset(None)
    name = value.tzname(None)
    return [offset // _MICROSECOND, *([] if name == datetime.timezone(offset).tzname(None) else [name])]


def _read_zone(zone: Any) -> datetime.tzinfo | None:
    """Return the zone of an encoding; None for None. Raises ValueError for an unknown zone."""
    if zone is None:
        return None
    if isinstance(zone, str):
        if not _IANA_NAME.fullmatch(zone):
            raise ValueError(f"{zone[:100]!r} is not the name of a time zone")
        import zoneinfo  # Imported on use: few programs need it.

        try:
            return zoneinfo.ZoneInfo(zone)
        except zoneinfo.ZoneInfoNotFoundError:
            raise ValueError(f"the time zone {zone!r} is not known here; the package tzdata knows all") from None
    offset, *name = zone
    return datetime.timezone(datetime.timedelta(microseconds=_check_type(offset, int)), *name)


def _write_fraction(value: fractions.Fraction, context: EncodeContext) -> Ext:
    """Return the extension of a Fraction. Raises ValueError for a part of more than MAX_FRACTION_BITS bits."""
    parts = [value.numerator, value.denominator]
    if max(part.bit_length() for part in parts) > MAX_FRACTION_BITS:
        raise ValueError(f"a Fraction with a part over {MAX_FRACTION_BITS} bits cannot be sent; send its parts")
    return context.extension(FRACTION, parts)


def _read_fraction(payload: Any, context: DecodeContext) -> fractions.Fraction:
    """Return a Fraction. Raises ValueError for a part of more than MAX_FRACTION_BITS bits."""
    numerator, denominator = payload
    if max(_check_type(numerator, int).bit_length(), _check_type(denominator, int).bit_length()) > MAX_FRACTION_BITS:
        raise ValueError(f"a part is over {MAX_FRACTION_BITS} bits")
    import fractions  # Imported on use: few programs need it.

    return fractions.Fraction(numerator, denominator)


_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    "path": pathlib.Path,
    "posix": pathlib.PurePosixPath,
    "windows": pathlib.PureWindowsPath,
}


def _write_path(value: pathlib.PurePath, context: EncodeContext) -> Ext:
    """Return the extension of a path: its kind, and its name, as bytes if the name is no valid text."""
    if isinstance(value, pathlib.Path):
        kind = "path"
    else:
        kind = "windows" if isinstance(value, pathlib.PureWindowsPath) else "posix"
    name: str | bytes = str(value)
    try:
        str(name).encode()
    except UnicodeEncodeError:  # The name of a file need not be text.
        name = os.fsencode(name)
    return Ext(PATH, context.pack([kind, name]))


def _read_path(payload: Any, context: DecodeContext) -> pathlib.PurePath:
    """Return a path of the kind that was sent. A concrete path is one of the receiver's system."""
    kind, name = payload
    return _PATHS[kind](os.fsdecode(name))


EXTENSIONS: Final = (
    # No writer: the value of an integer decides, not its type.
    Extension(
        INTEGER,
        "int",
        "bin: two's complement, most significant byte first",
        lambda payload, context: int.from_bytes(_check_type(payload, bytes), "big", signed=True),
    ),
    Extension(
        COMPLEX,
        "complex",
        "`[real, imaginary]`",
        _read_complex,
        {complex: lambda value, context: Ext(COMPLEX, context.pack([value.real, value.imag]))},
    ),
    _collection_extension(SET, set),
    _collection_extension(FROZENSET, frozenset),
    _collection_extension(TUPLE, tuple),
    _span_extension(RANGE, range),
    _span_extension(SLICE, slice),
    # Before date, the base class of datetime.
    Extension(
        DATETIME,
        "datetime",
        "as for a time: `2026-01-02T03:04:05.000006`",
        _time_reader(datetime.datetime),
        {datetime.datetime: _write_datetime},
    ),
    Extension(
        DATE,
        "date",
        "ISO 8601 text: `2026-01-02`",
        lambda payload, context: datetime.date.fromisoformat(payload),
        {datetime.date: lambda value, context: Ext(DATE, context.pack(datetime.date.isoformat(value)))},
    ),
    Extension(
        TIME,
        "time",
        "ISO 8601 text, or `[text, zone, fold]`",
        _time_reader(datetime.time),
        {datetime.time: _write_time},
    ),
    Extension(
        TIMEDELTA,
        "timedelta",
        "`[days, seconds, microseconds]`",
        _read_timedelta,
        {
            datetime.timedelta: lambda value, context: Ext(
                TIMEDELTA, context.pack([value.days, value.seconds, value.microseconds])
            )
        },
    ),
    Extension(
        ZONE,
        "time zone",
        "zone",
        _read_tzinfo,
        dict.fromkeys((datetime.timezone, "zoneinfo.ZoneInfo"), _write_tzinfo),
    ),
    Extension(
        DECIMAL,
        "Decimal",
        "text: `1.10`",
        lambda payload, context: decimal.Decimal(_check_type(payload, str)),
        {decimal.Decimal: lambda value, context: Ext(DECIMAL, context.pack(decimal.Decimal.__str__(value)))},
    ),
    Extension(
        FRACTION, "Fraction", "`[numerator, denominator]`", _read_fraction, {"fractions.Fraction": _write_fraction}
    ),
    Extension(
        UUID,
        "UUID",
        "bin of 16 bytes",
        lambda payload, context: uuid.UUID(bytes=_check_type(payload, bytes)),
        {uuid.UUID: lambda value, context: Ext(UUID, context.pack(value.bytes))},
    ),
    Extension(
        PATH,
        "path",
        "`[kind, name]`: `path`, `posix` or `windows`, the last two being pure ones; text, or bin if it is not UTF-8",
        _read_path,
        {pathlib.PurePath: _write_path},
        covers={pathlib.PosixPath, pathlib.WindowsPath, *_PATHS.values()}.__contains__,
    ),
)
