"""Keys of dicts and members of sets that are no plain values: what they are compared by."""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import sys
from typing import Any, Final

from shmrpc.stores.class_names import text_of
from shmrpc.stores.packing import base_of, base_value

#: Types of datetime; a class that is derived from one may be compared in a way of its own.
_TIMES: Final = frozenset({datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone})


def plain(key: Any) -> Any:
    """Returns the int, float, bool, str or bytes that equals a key; the key itself if none does, or if it is one.

    Raises TypeError for a key whose class compares it in a way of its own.
    """
    kind = type(key)
    if kind is decimal.Decimal:
        return _plain_decimal(key)
    if kind is complex:
        return key if key.imag else key.real
    base = base_of(kind)
    if base is not None and base is not kind:
        _check_comparison(kind, base)
        return base_value(key, base) if base is not tuple else key
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(key, numpy.generic):
        return _plain_scalar(numpy, key)
    return key


def _plain_decimal(key: decimal.Decimal) -> Any:
    if not key.is_finite():
        hash(key)  # Raises what Python raises for a signaling NaN.
        return float(key)
    if key == key.to_integral_value():
        return int(key)
    nearest = float(key)
    return nearest if nearest == key else key


def _plain_scalar(numpy: Any, key: Any) -> Any:
    """Of a scalar of NumPy's."""
    equal: Any
    for kind, equal in ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float), (numpy.str_, str)):
        if isinstance(key, kind) and not isinstance(key, numpy.timedelta64):
            found = equal(key)
            if found == key or found != found:
                return found
    if isinstance(key, numpy.bytes_):
        return bytes(key)
    if isinstance(key, numpy.complexfloating) and complex(key) == key:
        return plain(complex(key))
    raise TypeError(
        f"a key of a store cannot be a {type(key).__name__}: use a number, text or datetime of Python's own"
    )


def _check_comparison(kind: type, base: type) -> None:
    if kind.__eq__ is not base.__eq__ or kind.__hash__ is not base.__hash__:
        raise TypeError(
            f"a key of a store cannot be a {kind.__qualname__}, which has its own __eq__ or __hash__: "
            f"use the {base.__name__} itself"
        )


def canonical(key: Any) -> bytes:
    """Returns the same bytes for keys that are equal in Python, and others for those that are not.

    Raises TypeError for what cannot be a key of a store.
    """
    if isinstance(key, enum.Enum) and base_of(type(key)) is None:
        named = f"{text_of(type(key))} {key._name_} {key._value_!r}"
        return b"e" + _sized(named.encode())
    key = plain(key)
    if key is None or isinstance(key, (bool, int, float, decimal.Decimal, complex)):
        return _number(key)
    if isinstance(key, str):
        return b"s" + _sized(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return b"b" + _sized(key)
    if isinstance(key, tuple):
        return b"(" + _sized(b"".join(map(canonical, tuple.__iter__(key))))
    if isinstance(key, frozenset):
        return b"{" + _sized(b"".join(sorted(map(canonical, key))))
    if type(key) in _TIMES:
        return _time(key)
    hash(key)  # Raises what Python raises for a list.
    raise TypeError(
        f"a key of a store has to be None, a bool, a number, str, bytes, a member of an Enum, a tuple or frozenset of "
        f"these, or of a type of datetime; got {type(key).__qualname__}"
    )


def _sized(parts: bytes) -> bytes:
    return struct.pack("<I", len(parts)) + parts


def _number(key: Any) -> bytes:
    if key is None:
        return b"0"
    if isinstance(key, complex):
        if key.imag:
            return b"c" + struct.pack("<dd", key.real + 0.0, key.imag)  # -0.0 + 0.0 is 0.0, which it equals.
        key = key.real
    if isinstance(key, (float, decimal.Decimal)) and (key != key or key in {float("inf"), -float("inf")}):
        return b"f" + str(float(key)).encode()
    # A fraction: all numbers that are equal have the same.
    above, below = key.as_integer_ratio()
    return b"r" + _sized(f"{above:x}/{below:x}".encode())


def _time(key: Any) -> bytes:
    """What Python compares times by: those of two zones are equal if they are of one moment; ``fold`` says nothing."""
    if isinstance(key, datetime.timedelta):
        return b"d" + struct.pack("<iii", key.days, key.seconds, key.microseconds)
    if isinstance(key, datetime.timezone):
        return b"z" + _time(key.utcoffset(None))
    if isinstance(key, datetime.datetime):
        if key.utcoffset() is None:
            return b"n" + _sized(key.isoformat().encode())
        return b"a" + _time(key.replace(tzinfo=None) - datetime.datetime.min - key.utcoffset())  # type: ignore[operator]
    if isinstance(key, datetime.time):
        passed = datetime.timedelta(
            hours=key.hour, minutes=key.minute, seconds=key.second, microseconds=key.microsecond
        )
        offset = key.utcoffset()
        return b"t" + _time(passed) if offset is None else b"u" + _time(passed - offset)
    return b"D" + struct.pack("<i", key.toordinal())
