"""Checks of arguments: TypeError for a wrong type, ValueError for a value out of bounds."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type[Any])

_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def check_whole(option: str, value: object, expected: str) -> int:
    """Return a whole number, also one of NumPy's, as an int. Raises TypeError for any other value, also a bool.

    ``expected`` describes a valid value for the message.
    """
    if type(value) is int:  # isinstance() with an abstract class takes several times as long.
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{option}: expected {expected}, got {value!r}")
    return int(value)


def check_count(option: str, count: int, least: int, most: int | None = None) -> int:
    """Return a whole number from ``least`` to ``most``, both included, as an int; None: no upper bound.

    Raises TypeError for a value that is no whole number, ValueError for one out of bounds.
    """
    count = check_whole(option, count, "a whole number")
    if count < least or (most is not None and count > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{option}: expected {bounds}, got {count}")
    return count


def check_bytes(option: str, size: int | str, least: int = 64 << 10, most: int | None = 16 << 30) -> int:
    """Return a size in bytes: an int, or text such as ``"64MiB"``, ``"1.5 GB"`` or, without a unit, ``"65536"``.

    Upper and lower case of a unit matter. Raises TypeError for a value of another type, also a bool, and ValueError for
    any other text, or for a size that is not from ``least`` to ``most`` bytes, both included. None for ``most`` means
    no upper bound.
    """
    expected = "a number of bytes, or a size such as '64MiB' (B, kB, KiB, MB, MiB, GB, GiB)"
    if isinstance(size, str):
        number = size.rstrip("BKMGikmg ")
        unit = size[len(number) :].strip() or "B"
        try:
            found = int(float(number) * _UNITS[unit])
        except (KeyError, ValueError, OverflowError):
            raise ValueError(f"{option}: expected {expected}, got {size!r}") from None
    else:
        found = check_whole(option, size, expected)
    if found < least or (most is not None and found > most):
        bounds = f"{least >> 10} KiB " + ("or more" if most is None else f"to {most >> 30} GiB")
        raise ValueError(f"{option}: expected {bounds}, got {found} bytes")
    return found


def check_real(option: str, value: object, expected: str) -> None:
    """Raise TypeError, with the text ``expected``, unless the value is a real number and no bool. Accepts NaN."""
    if type(value) is int or type(value) is float:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{option}: expected {expected}, got {value!r}")


def check_seconds(option: str, seconds: float) -> None:
    """Raise TypeError or ValueError unless the value is a number of seconds, 0 or more, or ``math.inf``."""
    check_real(option, seconds, "a number of seconds (math.inf: for ever)")
    if not seconds >= 0:
        raise ValueError(f"{option}: expected seconds, 0 or more, got {seconds}")


def check_flag(option: str, value: object) -> None:
    """Raise TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{option}: expected True or False, got {value!r}")


def check_many(what: str, items: object) -> None:
    """Raise TypeError if ``items`` is a str, bytes or a bytearray, which is one item, not an iterable of items."""
    if isinstance(items, (str, bytes, bytearray)):
        raise TypeError(
            f"{what}: expected an iterable of items, got one {type(items).__name__}: put it in a list, or use the"
            " method for a single item"
        )


def public_name(name: str) -> Callable[[_F], _F]:
    """Return a decorator that gives a function its public name, which Python's errors about its arguments show."""

    def rename(function: _F) -> _F:
        function.__name__ = function.__qualname__ = name
        return function

    return rename


def public_class(name: str, factory: str = "", internal: type | None = None) -> Callable[[_C], _C]:
    """Return a decorator that gives a class and its methods their public names, which errors about arguments show.

    ``name`` is for example ``shmrpc.Queue`` or ``shmrpc.sync.Queue``. Errors name the methods of the base class
    ``QueueBase`` as ``Queue.put``, too, and the methods of other base classes without a class.

    ``factory`` is the expression by which users get an instance of a class that they must not call. A call of the class
    then raises TypeError, unless its first argument is an ``internal`` one, a type that only shmrpc passes. With None,
    every call raises, also that of a derived class; with a type, derived classes can be called.
    """
    place, _, short = name.rpartition(".")

    def rename(cls: _C) -> _C:
        for base in cls.__mro__:
            if not base.__module__.startswith("shmrpc."):
                continue
            kind = f"{short}." if base is cls or base.__name__ == f"{short}Base" else ""
            for method, found in vars(base).items():
                function = getattr(found, "__func__", found)  # Unwraps a classmethod or staticmethod.
                if isinstance(function, FunctionType) and function.__qualname__ == f"{base.__qualname__}.{method}":
                    function.__qualname__ = kind + method
        if cls.__name__ != short:
            cls.__module__, cls.__name__, cls.__qualname__ = place, short, short
        if factory:

            def make(made: type, *arguments: object, **options: object) -> object:
                if internal is None or (made is cls and not isinstance(next(iter(arguments), None), internal)):
                    raise TypeError(f"{name} is a type: get one by {factory}")
                return object.__new__(made)

            cls.__new__ = make  # type: ignore[assignment]
        return cls

    return rename
