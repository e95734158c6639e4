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
from shmrpc.values.error_text import nested_error, split_path, translate_error
from shmrpc.values.fields import CONTAINERS
from shmrpc.values.foreign_arrays import ForeignArray, explain_mismatch

#: Types that are not converted: msgspec would decode any str as base64.
_BUILTIN: Final = (bytes, bytearray, memoryview)
_MAX_CACHED: Final = 4096


class _StandIn(type):
    """Stand-in for a type that msgspec does not support. :func:`dec_hook` converts values by its ``take``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _make_stand_in(name: str, take: Callable[[Any], Any]) -> _StandIn:
    """Return a stand-in with this name for messages. ``take`` converts a value, or raises ValueError."""
    return _StandIn(name, (), {"take": staticmethod(take)})


def dec_hook(kind: Any, value: Any) -> Any:
    """Convert a value to a declared type that msgspec does not know; msgspec then checks the class of the result.

    Returns a value without a conversion unchanged. Raises ValueError if the value does not fit.
    """
    if type(value) is kind:
        return value
    if isinstance(kind, _StandIn):
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


@functools.lru_cache(_MAX_CACHED)
def declared_array(kind: Any) -> tuple[list[tuple[Any, ...]] | None, tuple[type, ...]]:
    """Return the axes and the element types that a declared array type allows.

    The axes are the allowed lengths of each axis (empty: any length), or None for any number of axes. No element types
    mean any type.
    """
    args = get_args(kind)
    axes = get_args(args[0]) if args and get_origin(args[0]) is tuple else (Ellipsis,)
    lengths = [get_args(axis) if get_origin(axis) is typing.Literal else () for axis in axes]
    scalars = _union_members(get_args(args[1])[0]) if len(args) > 1 and get_args(args[1]) else ()
    some = all(isinstance(each, type) and each is not Any for each in scalars)
    return None if Ellipsis in axes else lengths, scalars if some else ()


def _union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union; any other type alone."""
    return get_args(kind) if get_origin(kind) in UNIONS else (kind,)


def is_dtype(np: Any, dtype: Any, scalar: type) -> bool:
    """Return True if elements of a dtype are of this scalar type of NumPy, perhaps under another name."""
    if issubclass(dtype.type, scalar):
        return True
    # Two integer types of C may have equal dtypes. An abstract class has no dtype.
    return scalar.__module__ == "numpy" and scalar.__name__ in np.sctypeDict and np.dtype(scalar) == dtype


class DeclaredTypes:
    """Cache of the declared types of one codec, translated for msgspec."""

    def __init__(self, *, pickled: bool) -> None:
        """Create the cache. With ``pickled``, instances of any class can arrive, else only of registered classes."""
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
        """Return the type that msgspec decodes to, usually the declared type. Raises TypeError if there is none."""
        return self._cached(self._for_decoding, kind, instances=False)

    def converter(self, kind: Any) -> Callable[[Any], Any]:
        """Return a function that converts values to one type as :meth:`convert` does, with one lookup of the type."""
        made, wanted = -1, kind

        def convert(value: Any) -> Any:
            nonlocal made, wanted
            if made != self._changes:
                made, wanted = self._changes, self._cached(self._for_converting, kind, instances=True)
            return self._convert_to(value, wanted, kind)

        return convert

    def convert(self, value: Any, kind: Any) -> Any:
        """Convert a decoded value to its declared type. Raises msgspec.ValidationError if it does not fit.

        Raises TypeError for a union that msgspec refuses.
        """
        if kind is Any:
            return value
        return self._convert_to(value, self._cached(self._for_converting, kind, instances=True), kind)

    @staticmethod
    def _convert_to(value: Any, wanted: Any, kind: Any) -> Any:
        """Convert a value to ``wanted``, the translation of ``kind``. Raises ValidationError in Python's terms.

        If the value does not fit, tries again with plain values in place of NumPy's scalars and objects of stores.
        """
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
            raise explain_mismatch(translate_error(error, kind, value), value) from None

    def _cached(self, cache: dict[Any, Any], kind: Any, *, instances: bool) -> Any:
        """Return the translation of a type from a cache, or add it, after clearing a full cache.

        Has msgspec set all fields of the dataclasses in a new type. Does not cache a type that cannot be hashed.
        Raises TypeError for a union that msgspec refuses.
        """
        try:
            return cache[kind]
        except KeyError:
            defaults.complete(kind)
        except TypeError:  # A part of the type cannot be hashed.
            defaults.complete(kind)
            return self._translate(kind, instances)
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        translated = cache[kind] = self._translate(kind, instances)
        return translated

    def _translate(self, kind: Any, instances: bool) -> Any:
        """Return a type with stand-ins for the parts that msgspec does not support; the same object if there are none.

        With ``instances``, classes whose instances can arrive as instances get a stand-in, too.
        """
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
        if issubclass(kind, enum.Enum) and ((instances and self._can_arrive(kind)) or not _is_known(kind)):
            return _make_stand_in(kind.__name__, lambda value: _convert_to_enum(kind, value))
        if instances and (
            (self._can_arrive(kind) and fields.names_of(kind) is not None) or references.is_allowed_instance(kind)
        ):
            return _make_stand_in(kind.__name__, lambda value: self._convert_to_instance(kind, value))
        return kind

    def _translate_union(self, kind: Any, args: tuple[Any, ...], instances: bool) -> Any:
        """Return the union if msgspec can convert it as it is; otherwise a stand-in for all its members but None.

        Raises TypeError if msgspec cannot combine the members that need no stand-in.
        """
        members = [each for each in args if each is not type(None)]
        translated = [self._translate(each, instances) for each in members]
        if all(a is b for a, b in zip(members, translated, strict=True)) and _is_known(kind):
            return kind
        optional = len(members) < len(args)
        if len(members) == 1:
            return union([translated[0], None])
        custom = [each for each in translated if isinstance(each, _StandIn) or _uses_dec_hook(each)]
        if not custom:
            return kind
        others = [each for each in translated if each not in custom]
        rest = union(others) if others else None
        if rest is not None:
            msgspec.msgpack.Decoder(rest)  # Raises TypeError if msgspec cannot combine these.
        name = str(kind).replace("typing.", "")
        made = _make_stand_in(name, lambda value: _convert_to_union(name, custom, rest, value))
        return union([made, None]) if optional else made

    def _can_arrive(self, kind: type) -> bool:
        """Return True if an instance of a class can arrive as an instance, not only as a map."""
        return self._pickled or registry.is_covered(kind)

    def _convert_to_instance(self, kind: type, value: Any) -> Any:
        """Return an instance unchanged, after a check of a registered class's fields; build an instance from a map."""
        if not isinstance(value, kind):
            return _convert_within_hook(value, kind)
        entry = registry.entry_of(type(value))
        if entry is not None and entry.fields:
            self._check_fields(value, entry)
        return value

    def _check_fields(self, value: Any, entry: registry.Entry) -> None:
        """Raise ValueError if a field of an instance does not fit its declared type. Changes no field.

        Ignores fields whose declared type cannot be resolved, or is not supported by msgspec.
        """
        try:
            hints = type_hints(entry.cls)
        except Exception:  # For example a NameError, for a name imported only by type checkers.
            return
        for name in entry.fields:
            if name in hints and hasattr(value, name):
                try:
                    self.convert(getattr(value, name), hints[name])
                except msgspec.ValidationError as error:
                    raise nested_error(error, f".{name}") from None
                except TypeError:  # msgspec does not support the type: leave the value unchanged.
                    continue


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value by msgspec. Raises ValidationError, and no other error, if it does not fit."""
    try:
        return msgspec.convert(value, kind, builtin_types=_BUILTIN, dec_hook=dec_hook)
    except ArithmeticError as error:  # For example a Decimal that does not fit a float.
        raise msgspec.ValidationError(f"a number does not fit: {error}") from None
    except TypeError as error:  # For example a list as an element of a set.
        raise msgspec.ValidationError(f"Expected something else: {error}") from None


def _convert_within_hook(value: Any, kind: Any) -> Any:
    """Convert a value within a hook. Raises a ValueError that the outer conversion completes."""
    try:
        return _convert(value, kind)
    except msgspec.ValidationError as error:
        raise nested_error(error) from None


def _convert_to_union(name: str, custom: list[Any], rest: Any, value: Any) -> Any:
    """Convert a value to a union: try the types of ``custom`` in turn, then the union ``rest``. Raises ValueError."""
    for each in custom:
        try:
            return _convert(value, each)
        except msgspec.ValidationError:
            continue
    if rest is not None:
        try:
            return _convert(value, rest)
        except msgspec.ValidationError as error:
            if split_path(str(error))[1]:  # The value is of one of these types, with an invalid part.
                raise nested_error(error) from None
    raise ValueError(f"Expected `{name}`, got `{type(value).__name__}`")


def _convert_to_enum(kind: type[enum.Enum], value: Any) -> enum.Enum:
    """Return a member unchanged, or the member with this value. Raises ValueError."""
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


def _uses_dec_hook(kind: Any) -> bool:
    """Return True if msgspec leaves values of a type to :func:`dec_hook`, or does not support the type."""
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return True
