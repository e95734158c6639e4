"""Keys of dicts and members of sets that are no plain values: what they are compared by."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any


def plain(key: Any) -> Any:
    """Returns the int, float, str or bytes that equals a key; the key itself if none does."""
    if isinstance(key, decimal.Decimal):
        if not key.is_finite():
            hash(key)  # Raises what Python raises for a signaling NaN.
            return float(key)
        if key == key.to_integral_value():
            return int(key)
        nearest = float(key)
        return nearest if nearest == key else key
    if isinstance(key, complex) and not key.imag:
        return key.real
    base: Any
    for base in (int, float, str, bytes):
        if isinstance(key, base) and not isinstance(key, bool):
            return base.__new__(base, key)
    return key


def canonical(key: Any) -> bytes:
    """Returns the same bytes for keys that are equal in Python, and others for those that are not.

    Raises TypeError for what cannot be a key of a store.
    """
    if key is None or isinstance(key, (bool, int, float, decimal.Decimal, complex)):
        return _number(key)
    if isinstance(key, str):
        return b"s" + _sized(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return b"b" + _sized(key)
    if isinstance(key, tuple):
        return b"(" + _sized(b"".join(map(canonical, key)))
    if isinstance(key, frozenset):
        return b"{" + _sized(b"".join(sorted(map(canonical, key))))
    if isinstance(key, (datetime.date, datetime.time, datetime.timedelta, datetime.timezone)):
        return _time(key)
    hash(key)  # Raises what Python raises for a list.
    raise TypeError(
        f"a key of a store has to be None, a bool, a number, str, bytes, a tuple or frozenset of these, a Decimal, or "
        f"of a type of datetime; got {type(key).__qualname__}"
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
