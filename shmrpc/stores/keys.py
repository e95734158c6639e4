"""Keys of dicts and members of sets: the bytes by which the core compares them."""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import sys
from typing import Any, Final

from shmrpc.stores.class_names import class_name
from shmrpc.stores.packing import builtin_base, builtin_value

#: The types of datetime. A derived class may have its own comparison.
_TIMES: Final = frozenset({datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone})
#: The most digits of a Decimal before the point, and after it: its fraction is computed within milliseconds.
_MAX_DECIMAL_DIGITS: Final = 100_000


def plain_equivalent(key: Any) -> Any:
    """Return the int, float, bool, str or bytes that equals a key, or else the key itself.

    Raises TypeError for a key whose class has its own comparison, for a signaling NaN, for a Decimal with too many
    digits, and for a NumPy scalar that equals no plain value.
    """
    kind = type(key)
    if kind is decimal.Decimal:
        return _plain_decimal(key)
    if kind is complex:
        return key if key.imag else key.real
    base = builtin_base(kind)
    if base is not None and base is not kind:
        _check_comparison(kind, base)
        return builtin_value(key, base) if base is not tuple else key
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(key, numpy.generic):
        return _plain_scalar(numpy, key)
    return key


def _plain_decimal(key: decimal.Decimal) -> Any:
    """Return the int or float that equals a Decimal, or else the Decimal itself.

    Raises TypeError for a signaling NaN, and for a Decimal with too many digits.
    """
    if not key.is_finite():
        hash(key)  # Raises Python's error for a signaling NaN.
        return float(key)
    if not key:
        return 0
    digits = max(key.adjusted() + 1, -int(key.as_tuple().exponent))
    if digits > _MAX_DECIMAL_DIGITS:
        raise TypeError(
            f"a key of a store cannot be a Decimal with {digits} digits before or after the point: expected at most"
            f" {_MAX_DECIMAL_DIGITS}"
        )
    if key == key.to_integral_value():
        return int(key)
    nearest = float(key)
    return nearest if nearest == key else key


def _plain_scalar(numpy: Any, key: Any) -> Any:
    """Return the plain value that equals a NumPy scalar. Raises TypeError if none does."""
    equal: Any
    for kind, equal in ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float), (numpy.str_, str)):
        if isinstance(key, kind) and not isinstance(key, numpy.timedelta64):
            found = equal(key)
            if found == key or found != found:
                return found
    if isinstance(key, numpy.bytes_):
        return bytes(key)
    if isinstance(key, numpy.complexfloating) and complex(key) == key:
        return plain_equivalent(complex(key))
    raise TypeError(
        f"a key of a store cannot be a {type(key).__name__}: use a number, text or datetime of Python's own"
    )


def _check_comparison(kind: type, base: type) -> None:
    """Raise TypeError if a class compares its instances in another way than its base."""
    if kind.__eq__ is not base.__eq__ or kind.__hash__ is not base.__hash__:
        raise TypeError(
            f"a key of a store cannot be a {kind.__qualname__}, which has its own __eq__ or __hash__: "
            f"use the {base.__name__} itself"
        )


def canonical_bytes(key: Any) -> bytes:
    """Return bytes that are the same for keys that are equal in Python, and different for all others.

    All NaNs are one key. The bytes of a member of an Enum contain the ``repr()`` of its value. Raises TypeError for a
    value that cannot be a key of a store, and RecursionError for a tuple that is nested too deep.
    """
    if isinstance(key, enum.Enum) and builtin_base(type(key)) is None:
        named = f"{class_name(type(key))} {key._name_} {key._value_!r}"
        return b"e" + _length_prefixed(named.encode())
    key = plain_equivalent(key)
    if key is None or isinstance(key, (bool, int, float, decimal.Decimal, complex)):
        return _number_bytes(key)
    if isinstance(key, str):
        return b"s" + _length_prefixed(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return b"b" + _length_prefixed(key)
    if isinstance(key, tuple):
        return b"(" + _length_prefixed(b"".join(map(canonical_bytes, tuple.__iter__(key))))
    if isinstance(key, frozenset):
        return b"{" + _length_prefixed(b"".join(sorted(map(canonical_bytes, key))))
    if type(key) in _TIMES:
        return _time_bytes(key)
    hash(key)  # Raises Python's error for an unhashable type.
    raise TypeError(
        f"expected None, a number, str, bytes, a member of an Enum, a value of datetime, or a tuple or frozenset of "
        f"these as a key of a store; got {type(key).__qualname__}"
    )


def _length_prefixed(parts: bytes) -> bytes:
    """Return bytes after their length, so that no two different sequences of parts give the same bytes."""
    return struct.pack("<I", len(parts)) + parts


def _number_bytes(key: Any) -> bytes:
    """Return the canonical bytes of a number, or of None."""
    if key is None:
        return b"0"
    if isinstance(key, complex):
        if key.imag:
            return b"c" + struct.pack("<dd", key.real + 0.0, key.imag)  # -0.0 equals 0.0: their sum is 0.0.
        key = key.real
    if isinstance(key, (float, decimal.Decimal)) and (key != key or key in {float("inf"), -float("inf")}):
        return b"f" + str(float(key)).encode()
    # Equal numbers have the same reduced fraction.
    above, below = key.as_integer_ratio()
    return b"r" + _length_prefixed(f"{above:x}/{below:x}".encode())


def _time_bytes(key: Any) -> bytes:
    """Return the canonical bytes of a value of datetime.

    Equality is that of Python: two times of different zones are equal if their moment is the same, whatever ``fold``.
    """
    if isinstance(key, datetime.timedelta):
        return b"d" + struct.pack("<iii", key.days, key.seconds, key.microseconds)
    if isinstance(key, datetime.timezone):
        return b"z" + _time_bytes(key.utcoffset(None))
    if isinstance(key, datetime.datetime):
        if key.utcoffset() is None:
            return b"n" + _length_prefixed(key.isoformat().encode())
        return b"a" + _time_bytes(key.replace(tzinfo=None) - datetime.datetime.min - key.utcoffset())  # type: ignore[operator]
    if isinstance(key, datetime.time):
        passed = datetime.timedelta(
            hours=key.hour, minutes=key.minute, seconds=key.second, microseconds=key.microsecond
        )
        offset = key.utcoffset()
        return b"t" + _time_bytes(passed) if offset is None else b"u" + _time_bytes(passed - offset)
    return b"D" + struct.pack("<i", key.toordinal())
