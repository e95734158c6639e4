"""Conversion of decoded values to declared types, including types that msgspec does not know."""

from __future__ import annotations

import enum
import functools
import pathlib
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import msgspec

from shmrpc.values import arrays, defaults, fields, references, registry
from shmrpc.values.aliases import UNIONS, type_hints, union
from shmrpc.values.error_text import nested, readable, split
from shmrpc.values.fields import CONTAINERS
from shmrpc.values.foreign_arrays import ForeignArray, mismatch

#: Types that are not converted: msgspec would decode any str as base64.
_BUILTIN: Final = (bytes, bytearray, memoryview)
_MAX_KEPT: Final = 4096


class _Choice(type):
    """Stand-in for a type that msgspec does not support. ``take`` converts and checks values."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _choice(name: str, take: Callable[[Any], Any]) -> _Choice:
    return _Choice(name, (), {"take": staticmethod(take)})


def dec_hook(kind: Any, value: Any) -> Any:
    """Convert a value to a declared type that msgspec does not know; msgspec checks the class of the result."""
    if type(value) is kind:
        return value
    if isinstance(kind, _Choice):
        return kind.take(value)  # type: ignore[attr-defined]
    origin = get_origin(kind) or kind
    if type(value) is ForeignArray:
        return value.as_instance(origin)
    if origin is complex and type(value) in (int, float):
        return complex(value)
    if isinstance(origin, type):
        if type(value) is str and issubclass(origin, pathlib.PurePath):
            return origin(value)
        if issubclass(origin, getattr(sys.modules.get("numpy"), "ndarray", ())):
            _check_array(kind, value)
    return value


def _check_array(kind: Any, value: Any) -> None:
    """Raise ValueError for an array that does not have the declared shape or dtype."""
    np: Any = sys.modules["numpy"]
    if not isinstance(value, np.ndarray):
        return
    axes, scalars = declared_array(kind)
    if axes is not None:
        if len(axes) != value.ndim:
            raise ValueError(f"Expected an array of {len(axes)} dimensions, got one of {value.ndim}")
        for number, (lengths, length) in enumerate(zip(axes, value.shape, strict=True)):
            if lengths and length not in lengths:
                wanted = " or ".join(map(str, lengths))
                raise ValueError(f"Expected an array of length {wanted} along axis {number}, got one of {length}")
    if scalars and not any(is_dtype(np, value.dtype, each) for each in scalars):
        names = " | ".join(each.__name__ for each in scalars)
        raise ValueError(f"Expected an array of `{names}`, got one of `{value.dtype}`")


@functools.lru_cache(_MAX_KEPT)
def declared_array(kind: Any) -> tuple[list[tuple[Any, ...]] | None, tuple[type, ...]]:
    """Return the allowed lengths of each axis (empty: any), or None for any axes; and the allowed types of elements."""
    args = get_args(kind)
    axes = get_args(args[0]) if args and get_origin(args[0]) is tuple else (Ellipsis,)
    lengths = [get_args(axis) if get_origin(axis) is typing.Literal else () for axis in axes]
    scalars = _members(get_args(args[1])[0]) if len(args) > 1 and get_args(args[1]) else ()
    some = all(isinstance(each, type) and each is not Any for each in scalars)
    return None if Ellipsis in axes else lengths, scalars if some else ()


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in UNIONS else (kind,)


def is_dtype(np: Any, dtype: Any, scalar: type) -> bool:
    """Return True if elements of a dtype have a declared type."""
    if issubclass(dtype.type, scalar):
        return True
    # Two integer types of C may have equal dtypes. An abstract class has no dtype.
    return scalar.__module__ == "numpy" and scalar.__name__ in np.sctypeDict and np.dtype(scalar) == dtype


class DeclaredTypes:
    """Cache of declared types, translated for msgspec, of one codec."""

    def __init__(self, *, pickled: bool) -> None:
        """Create the cache. With ``pickled``, instances of any class can arrive, not only of registered ones."""
        self._pickled = pickled
        self._for_decoding: dict[Any, Any] = {}
        self._for_converting: dict[Any, Any] = {}
        #: Number of registrations seen.
        self._changes = 0

    def forget(self) -> None:
        """Clear the types for conversion, because a class was registered."""
        self._for_converting.clear()
        self._changes += 1

    def for_decoding(self, kind: Any) -> Any:
        """Return the type for msgspec to decode, usually the declared type. Raises TypeError if there is none."""
        return self._kept(self._for_decoding, kind, instances=False)

    def converter(self, kind: Any) -> Callable[[Any], Any]:
        """Return a function that does :meth:`convert` for one type without a lookup each time."""
        made, wanted = -1, kind

        def convert(value: Any) -> Any:
            nonlocal made, wanted
            if made != self._changes:
                made, wanted = self._changes, self._kept(self._for_converting, kind, instances=True)
            return self._converted(value, wanted, kind)

        return convert

    def convert(self, value: Any, kind: Any) -> Any:
        """Convert a decoded value to its declared type. Raises msgspec.ValidationError if it does not fit."""
        if kind is Any:
            return value
        return self._converted(value, self._kept(self._for_converting, kind, instances=True), kind)

    @staticmethod
    def _converted(value: Any, wanted: Any, kind: Any) -> Any:
        try:
            try:
                return _convert(value, wanted)
            except msgspec.ValidationError:
                plain = references.without_objects(arrays.without_scalars(value))
                if plain is value:
                    raise
                value = plain
                return _convert(value, wanted)
        except msgspec.ValidationError as error:
            raise mismatch(readable(error, kind, value), value) from None

    def _kept(self, kept: dict[Any, Any], kind: Any, *, instances: bool) -> Any:
        try:
            return kept[kind]
        except KeyError:
            pass
        except TypeError:  # A part of the type cannot be hashed.
            return self._translate(kind, instances)
        defaults.complete(kind)
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        translated = kept[kind] = self._translate(kind, instances)
        return translated

    def _translate(self, kind: Any, instances: bool) -> Any:
        origin, args = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            inner = self._translate(args[0], instances)
            return kind if inner is args[0] else typing.Annotated[inner, *args[1:]]
        if origin in UNIONS:
            return self._translate_union(kind, args, instances)
        if origin in CONTAINERS and args:
            inside = tuple(each if each is Ellipsis else self._translate(each, instances) for each in args)
            same = all(a is b for a, b in zip(inside, args, strict=True))
            return kind if same else types.GenericAlias(origin, inside)
        if origin is not None or not isinstance(kind, type):
            return kind
        if issubclass(kind, enum.Enum) and ((instances and self._can_come(kind)) or not _is_known(kind)):
            return _choice(kind.__name__, lambda value: _member(kind, value))
        if instances and (
            (self._can_come(kind) and fields.names_of(kind) is not None) or references.is_allowed_instance(kind)
        ):
            return _choice(kind.__name__, lambda value: self._instance(kind, value))
        return kind

    def _translate_union(self, kind: Any, args: tuple[Any, ...], instances: bool) -> Any:
        members = [each for each in args if each is not type(None)]
        translated = [self._translate(each, instances) for each in members]
        if all(a is b for a, b in zip(members, translated, strict=True)) and _is_known(kind):
            return kind
        optional = len(members) < len(args)
        if len(members) == 1:
            return union([translated[0], None])
        ours = [each for each in translated if isinstance(each, _Choice) or _is_custom(each)]
        if not ours:
            return kind
        others = [each for each in translated if each not in ours]
        rest = union(others) if others else None
        if rest is not None:
            msgspec.msgpack.Decoder(rest)  # Raises TypeError if msgspec cannot combine these.
        name = str(kind).replace("typing.", "")
        made = _choice(name, lambda value: _one_of(name, ours, rest, value))
        return union([made, None]) if optional else made

    def _can_come(self, kind: type) -> bool:
        """Return True if an instance can arrive as itself instead of as a map."""
        return self._pickled or registry.is_covered(kind)

    def _instance(self, kind: type, value: Any) -> Any:
        """Return an instance that arrived as one, with checked fields if registered; or build one from a map."""
        if not isinstance(value, kind):
            return _inner_convert(value, kind)
        entry = registry.entry_of(type(value))
        if entry is not None and entry.fields:
            self._check_fields(value, entry)
        return value

    def _check_fields(self, value: Any, entry: registry.Entry) -> None:
        try:
            hints = type_hints(entry.cls)
        except Exception:  # For example a NameError, for a name imported only by type checkers.
            return
        for name in entry.fields:
            if name in hints and hasattr(value, name):
                try:
                    self.convert(getattr(value, name), hints[name])
                except msgspec.ValidationError as error:
                    raise nested(error, f".{name}") from None
                except TypeError:  # msgspec does not support the type: leave the value unchanged.
                    continue


def _convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, builtin_types=_BUILTIN, dec_hook=dec_hook)
    except ArithmeticError as error:  # For example a Decimal that does not fit a float.
        raise msgspec.ValidationError(f"a number does not fit: {error}") from None
    except TypeError as error:  # For example a list as an element of a set.
        raise msgspec.ValidationError(f"Expected something else: {error}") from None


def _inner_convert(value: Any, kind: Any) -> Any:
    """Convert within a hook, with an error that the outer conversion completes."""
    try:
        return _convert(value, kind)
    except msgspec.ValidationError as error:
        raise nested(error) from None


def _one_of(name: str, ours: list[Any], rest: Any, value: Any) -> Any:
    """Convert to a union: try the types that msgspec does not know, then the others together."""
    for each in ours:
        try:
            return _convert(value, each)
        except msgspec.ValidationError:
            continue
    if rest is not None:
        try:
            return _convert(value, rest)
        except msgspec.ValidationError as error:
            if split(str(error))[1]:  # The value is of one of these types, with an invalid part.
                raise nested(error) from None
    raise ValueError(f"Expected `{name}`, got `{type(value).__name__}`")


def _member(kind: type[enum.Enum], value: Any) -> enum.Enum:
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except (ValueError, TypeError):
        raise ValueError(f"Invalid enum value {value!r:.100}") from None


def _is_known(kind: Any) -> bool:
    """Return True if msgspec supports a type."""
    try:
        msgspec.msgpack.Decoder(kind)
    except TypeError:
        return False
    return True


def _is_custom(kind: Any) -> bool:
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return True
