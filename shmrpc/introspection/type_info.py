"""Structure of types, as ``msgspec.inspect`` gives it, with the parts that it leaves out.

msgspec rejects a union of an array with another type, takes a Sequence for a list, and drops the dtype of an array.
Here a ``CustomType`` has the declared type, ``NDArray[np.float32]``, not ``ndarray``.
"""

from __future__ import annotations

import collections.abc
import enum
import typing
from typing import Annotated, Any, Final, NewType, TypeVar, get_args, get_origin

import msgspec
from msgspec import inspect as mi

from shmrpc.introspection.type_facts import CLASSES, declared_types
from shmrpc.values.aliases import UNIONS

_WRAPPERS: Final = (typing.Required, typing.NotRequired, typing.Final)
_MAPS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ARRAYS: Final[dict[Any, Any]] = {
    list: mi.ListType,
    set: mi.SetType,
    frozenset: mi.FrozenSetType,
    collections.abc.MutableSet: mi.SetType,
}
#: Names of abstract types in the texts of types.
_ABSTRACT: Final[dict[Any, str]] = {
    collections.abc.Collection: "Collection",
    collections.abc.Sequence: "Sequence",
    collections.abc.MutableSequence: "MutableSequence",
    collections.abc.Set: "AbstractSet",
}


class AbstractType(mi.CollectionType, kw_only=True):
    """Type that several classes implement; an instance arrives as the class that the server has."""

    name: str


class TypeReader:
    """Reader of the structure of types. Reads each class once."""

    def __init__(self) -> None:
        self._classes: dict[Any, Any] = {}

    def read(self, kind: Any) -> Any:
        """Return the structure of a type as ``msgspec.inspect`` describes it; ``AnyType`` if it is unknown.

        Leaves out the constraints of ``Annotated``, except ``tz`` of a datetime, and UNSET in a union.
        """
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return _apply_zone(self.read(args[0]), args[1:])
        if origin in _WRAPPERS:
            return self.read(args[0])
        if isinstance(kind, NewType):
            return self.read(kind.__supertype__)
        if origin in UNIONS:
            parts = [self.read(each) for each in args if each is not msgspec.UnsetType]
            return parts[0] if len(parts) == 1 else mi.UnionType(tuple(parts))
        if (origin or kind) in _ABSTRACT:
            return AbstractType(self.read(args[0] if args else Any), name=_ABSTRACT[origin or kind])
        if args and origin in _ARRAYS:
            return _ARRAYS[origin](self.read(args[0]))
        if args and origin in _MAPS:
            return mi.DictType(*map(self.read, args))
        if args and origin is tuple:
            many = len(args) == 2 and args[1] is ...
            return mi.VarTupleType(self.read(args[0])) if many else mi.TupleType(tuple(map(self.read, args)))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return mi.EnumType(kind)
        return self._read_other(kind)

    def _read_other(self, kind: Any) -> Any:
        """Return the structure of a type that needs no special treatment by :meth:`read`, such as a class."""
        try:
            if kind in self._classes:
                return self._classes[kind]
            info = mi.type_info(kind)
        except Exception:  # A name in an annotation may have changed its meaning.
            return mi.AnyType()
        if isinstance(info, mi.CustomType):
            return mi.CustomType(kind)
        if isinstance(info, CLASSES) and not isinstance(info, mi.EnumType):
            self._classes[kind] = info
            declared = declared_types(info.cls)
            info.fields = tuple(self._read_field(field, declared.get(field.name)) for field in info.fields)
        return info

    def _read_field(self, field: mi.Field, declared: Any) -> mi.Field:
        """Return a field whose type is read from its declaration.

        The same field if it has no declaration, or one with a type parameter.
        """
        if declared is None or isinstance(declared, TypeVar) or getattr(declared, "__parameters__", None):
            return field  # Only msgspec knows the type of a base class's parameter.
        return msgspec.structs.replace(field, type=self.read(declared))


def _apply_zone(info: Any, metadata: tuple[Any, ...]) -> Any:
    """Return a datetime type with the constraint ``tz`` of its metadata; any other type, also a time, unchanged."""
    zones = [each.tz for each in metadata if isinstance(each, msgspec.Meta) and each.tz is not None]
    return mi.DateTimeType(zones[-1]) if zones and isinstance(info, mi.DateTimeType) else info
