"""The types of Python's own library that MessagePack has not."""

from __future__ import annotations

import datetime
import decimal
import fractions
import os
import pathlib
import re
import uuid
import zoneinfo
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reader, Reading
from shmrpc.values.writing import Writer, Writing

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

#: To reduce a fraction takes the square of its size: this many bits of each part are done in a few milliseconds.
MAX_FRACTION_BITS: Final = 65536

_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_IANA_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,5}")


def write_integer(value: int, writing: Writing) -> Any:
    """One that fits into 64 bits is MessagePack's own."""
    if _LEAST <= value <= _MOST:
        return value
    data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return Ext(INTEGER, writing.pack(data))


def read_integer(payload: Any, reading: Reading) -> int:
    """From its bytes."""
    return int.from_bytes(_bytes(payload), "big", signed=True)


def write_complex(value: complex, writing: Writing) -> Ext:
    """Its parts."""
    return Ext(COMPLEX, writing.pack([value.real, value.imag]))


def read_complex(payload: Any, reading: Reading) -> complex:
    """From its parts, which keep their signs."""
    real, imaginary = payload
    if not isinstance(real, float) or not isinstance(imaginary, float):
        raise TypeError("expected two floats")
    return complex(real, imaginary)


def _items_as(code: int) -> Writer:
    """Its elements; of a set in no order."""

    def write(value: Any, writing: Writing) -> Ext:
        return writing.extension(code, value)

    return write


def _set_of(kind: type) -> Reader:
    """A list if an element cannot be in a set here: an instance of a class that is not registered came as a map."""

    def read(payload: Any, reading: Reading) -> Any:
        try:
            return kind(_list(payload))
        except TypeError:
            return _list(payload)

    return read


def read_tuple(payload: Any, reading: Reading) -> tuple[Any, ...]:
    """From its elements."""
    return tuple(_list(payload))


def _ends_as(code: int) -> Writer:
    """Its ends, which of a slice may be any values."""

    def write(value: Any, writing: Writing) -> Ext:
        return writing.extension(code, [value.start, value.stop, value.step])

    return write


def _between(kind: Any) -> Reader:
    """From its ends."""

    def read(payload: Any, reading: Reading) -> Any:
        start, stop, step = payload
        return kind(start, stop, step)

    return read


def write_date(value: datetime.date, writing: Writing) -> Ext:
    """ISO text."""
    return Ext(DATE, writing.pack(datetime.date.isoformat(value)))


def read_date(payload: Any, reading: Reading) -> datetime.date:
    """From ISO text."""
    return datetime.date.fromisoformat(payload)


def write_time(value: datetime.time, writing: Writing) -> Ext:
    """Local time, and its zone."""
    text = datetime.time.isoformat(value.replace(tzinfo=None))
    return Ext(TIME, writing.pack(_with_zone(text, value)))


def _at(kind: Any) -> Reader:
    """With its zone."""

    def read(payload: Any, reading: Reading) -> Any:
        if isinstance(payload, str):
            return kind.fromisoformat(payload)
        text, zone, fold = payload
        return kind.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)

    return read


def write_datetime(value: datetime.datetime, writing: Writing) -> Any:
    """One in UTC is MessagePack's own timestamp; for others local time, and the zone."""
    if value.tzinfo is datetime.UTC and not value.fold and type(value) is datetime.datetime:
        return value
    text = datetime.datetime.isoformat(value.replace(tzinfo=None))
    return Ext(DATETIME, writing.pack(_with_zone(text, value)))


def write_timedelta(value: datetime.timedelta, writing: Writing) -> Ext:
    """As Python keeps it."""
    return Ext(TIMEDELTA, writing.pack([value.days, value.seconds, value.microseconds]))


def read_timedelta(payload: Any, reading: Reading) -> datetime.timedelta:
    """As Python keeps it."""
    days, seconds, microseconds = map(_integer, payload)
    return datetime.timedelta(days, seconds, microseconds)


def write_zone(value: datetime.tzinfo, writing: Writing) -> Ext:
    """A fixed offset, or a name that the receiver's own tables know."""
    zone = _zone(value)
    if zone is None:
        kind = type(value).__qualname__
        raise TypeError(f"a time zone of type {kind} cannot be sent: use datetime.timezone or zoneinfo.ZoneInfo(key)")
    return Ext(ZONE, writing.pack(zone))


def read_zone(payload: Any, reading: Reading) -> datetime.tzinfo:
    """A `datetime.timezone`, or a `zoneinfo.ZoneInfo`."""
    zone = _read_zone(payload)
    if zone is None:
        raise ValueError("there is no zone in it")
    return zone


def _with_zone(text: str, value: datetime.time | datetime.datetime) -> Any:
    if value.tzinfo is None:
        return [text, None, value.fold] if value.fold else text
    zone = _zone(value.tzinfo)
    if zone is None:  # Of a class that we do not know: its offset at this time is kept.
        offset = value.utcoffset()
        if offset is None:
            kind = type(value.tzinfo).__qualname__
            raise TypeError(f"a time in a zone of type {kind} that has no offset cannot be sent")
        zone = [offset // _MICROSECOND]
    return [text, zone, value.fold]


def _zone(value: datetime.tzinfo) -> Any:
    """As it travels; None for a class that has no fixed offset, and no name that others know."""
    if isinstance(value, zoneinfo.ZoneInfo):
        return value.key
    if not isinstance(value, datetime.timezone):
        return None
    offset = value.utcoffset(None)
    name = value.tzname(None)
    return [offset // _MICROSECOND, *([] if name == datetime.timezone(offset).tzname(None) else [name])]


def _read_zone(zone: Any) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        if not _IANA_NAME.fullmatch(zone):
            raise ValueError(f"{zone[:100]!r} is no name of a time zone")
        try:
            return zoneinfo.ZoneInfo(zone)
        except zoneinfo.ZoneInfoNotFoundError:
            raise ValueError(f"the time zone {zone!r} is not known here; the package tzdata knows all") from None
    offset, *name = zone
    return datetime.timezone(datetime.timedelta(microseconds=_integer(offset)), *name)


def write_decimal(value: decimal.Decimal, writing: Writing) -> Ext:
    """Text, with all its digits."""
    return Ext(DECIMAL, writing.pack(decimal.Decimal.__str__(value)))


def read_decimal(payload: Any, reading: Reading) -> decimal.Decimal:
    """From text."""
    if not isinstance(payload, str):
        raise TypeError("expected text")
    return decimal.Decimal(payload)


def write_fraction(value: fractions.Fraction, writing: Writing) -> Ext:
    """Two integers."""
    parts = [value.numerator, value.denominator]
    if max(part.bit_length() for part in parts) > MAX_FRACTION_BITS:
        raise ValueError(f"a Fraction with a part over {MAX_FRACTION_BITS} bits cannot be sent; send its parts")
    return writing.extension(FRACTION, parts)


def read_fraction(payload: Any, reading: Reading) -> fractions.Fraction:
    """From two integers."""
    numerator, denominator = map(_integer, payload)
    if max(numerator.bit_length(), denominator.bit_length()) > MAX_FRACTION_BITS:
        raise ValueError(f"a part is over {MAX_FRACTION_BITS} bits")
    return fractions.Fraction(numerator, denominator)


def write_uuid(value: uuid.UUID, writing: Writing) -> Ext:
    """16 bytes."""
    return Ext(UUID, writing.pack(value.bytes))


def read_uuid(payload: Any, reading: Reading) -> uuid.UUID:
    """From 16 bytes."""
    return uuid.UUID(bytes=_bytes(payload))


def write_path(value: pathlib.PurePath, writing: Writing) -> Ext:
    """Its name, and of which kind it is."""
    if isinstance(value, pathlib.Path):
        kind = "path"
    else:
        kind = "windows" if isinstance(value, pathlib.PureWindowsPath) else "posix"
    name: str | bytes = str(value)
    try:
        str(name).encode()
    except UnicodeEncodeError:  # A file's name may be no text.
        name = os.fsencode(name)
    return Ext(PATH, writing.pack([kind, name]))


def read_path(payload: Any, reading: Reading) -> pathlib.PurePath:
    """Of the same kind; one that names a file is of the receiver's system."""
    kind, name = payload
    return _PATHS[kind](os.fsdecode(name))


_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    "path": pathlib.Path,
    "posix": pathlib.PurePosixPath,
    "windows": pathlib.PureWindowsPath,
}


def _list(payload: Any) -> list[Any]:
    if not isinstance(payload, list):
        raise msgspec.DecodeError(f"expected an array, got {type(payload).__name__}")
    return payload


def _bytes(payload: Any) -> bytes:
    if not isinstance(payload, bytes):
        raise TypeError(f"expected bin, got {type(payload).__name__}")
    return payload


def _integer(payload: Any) -> int:
    if not isinstance(payload, int):
        raise TypeError(f"expected int, got {type(payload).__name__}")
    return payload


#: A datetime is a date too, and so comes before it.
EXTENSIONS: Final = (
    # Which integers travel by it, only their value says.
    Extension(INTEGER, "int", "bin: two's complement, most significant byte first", read_integer),
    Extension(COMPLEX, "complex", "`[real, imaginary]`", read_complex, {complex: write_complex}),
    Extension(SET, "set", "array of the elements", _set_of(set), {set: _items_as(SET)}),
    Extension(FROZENSET, "frozenset", "array of the elements", _set_of(frozenset), {frozenset: _items_as(FROZENSET)}),
    Extension(TUPLE, "tuple", "array of the elements", read_tuple, {tuple: _items_as(TUPLE)}),
    Extension(RANGE, "range", "`[start, stop, step]`", _between(range), {range: _ends_as(RANGE)}),
    Extension(SLICE, "slice", "`[start, stop, step]`", _between(slice), {slice: _ends_as(SLICE)}),
    Extension(
        DATETIME,
        "datetime",
        "as for a time: `2026-01-02T03:04:05.000006`",
        _at(datetime.datetime),
        {datetime.datetime: write_datetime},
    ),
    Extension(DATE, "date", "ISO 8601 text: `2026-01-02`", read_date, {datetime.date: write_date}),
    Extension(TIME, "time", "ISO 8601 text, or `[text, zone, fold]`", _at(datetime.time), {datetime.time: write_time}),
    Extension(
        TIMEDELTA, "timedelta", "`[days, seconds, microseconds]`", read_timedelta, {datetime.timedelta: write_timedelta}
    ),
    Extension(
        ZONE,
        "time zone",
        "zone",
        read_zone,
        {datetime.timezone: write_zone, zoneinfo.ZoneInfo: write_zone, datetime.tzinfo: write_zone},
    ),
    Extension(DECIMAL, "Decimal", "text: `1.10`", read_decimal, {decimal.Decimal: write_decimal}),
    Extension(FRACTION, "Fraction", "`[numerator, denominator]`", read_fraction, {fractions.Fraction: write_fraction}),
    Extension(UUID, "UUID", "bin of 16 bytes", read_uuid, {uuid.UUID: write_uuid}),
    Extension(
        PATH,
        "path",
        "`[kind, name]`: `path`, `posix` or `windows`, the last two being pure ones; text, or bin if it is not UTF-8",
        read_path,
        {pathlib.PurePath: write_path},
        covers_derived=True,
    ),
)
