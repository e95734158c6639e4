"""What may be sent where a server takes a type, by a client that has none of the server's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect as mi

from shmrpc.introspection import foreign
from shmrpc.introspection.type_facts import ARRAYS, CLASSES, holds_itself, is_array, simple, tag_of
from shmrpc.values.notation import list_of, tuple_of, union

_BYTES: Final = (mi.BytesType, mi.ByteArrayType, mi.MemoryViewType)
_ALTERNATIVES: Final[dict[type[mi.Type], list[str]]] = {
    mi.DateTimeType: ["datetime.datetime", "str"],
    mi.DateType: ["datetime.date", "str"],
    mi.TimeType: ["datetime.time", "str"],
    mi.TimeDeltaType: ["datetime.timedelta", "str"],
    mi.UUIDType: ["uuid.UUID", "str", "bytes"],
    mi.DecimalType: ["decimal.Decimal", "str", "float"],
}


class Accepted:
    """The texts of what may be sent, each as alternatives."""

    def __init__(self, name_of: Callable[[Any], str]) -> None:
        """``name_of``: what a class is called where it may be sent."""
        self._name_of = name_of

    def texts(self, info: Any, *, as_key: bool = False) -> list[str]:
        """What may be sent. An array that is a key of a map must be one that has a hash."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self.texts(part, as_key=as_key)]
            case mi.CustomType():
                return foreign.taken(info.cls)
            case mi.TupleType():
                items = [union(self.texts(part, as_key=as_key)) for part in info.item_types]
                return _tuples([], items, len(items), as_key=as_key)
            case mi.DictType():
                # Mapping is invariant in its key, so each kind of key has its own.
                value = union(self.texts(info.value_type))
                return [f"Mapping[{key}, {value}]" for key in self.texts(info.key_type, as_key=True)]
        if isinstance(info, CLASSES):
            if as_key and is_array(info):
                return ["tuple[Any, ...]"] if holds_itself(info) else self.array(info, as_key=True)
            return [self._name_of(info.cls)]
        if isinstance(info, ARRAYS):
            item = union(self.texts(info.item_type, as_key=as_key))
            return [f"tuple[{item}, ...]", f"frozenset[{item}]"] if as_key else _arrays(item)
        if isinstance(info, _BYTES):
            return ["bytes"] if as_key else ["bytes", "bytearray", "memoryview"]
        return _ALTERNATIVES.get(type(info)) or simple(info)

    def array(self, info: Any, *, as_key: bool = False) -> list[str]:
        """What may be sent for a class that travels as an array: its last fields may be left out."""
        items = [union(self.texts(field.type, as_key=as_key)) for field in info.fields]
        return _tuples(tag_of(info), items, sum(field.required for field in info.fields), as_key=as_key)


def _arrays(item: str) -> list[str]:
    """An array of these. A str is a Sequence too, of str, as bytes is one of int: they are none here."""
    if item in ("Any", "str", "int"):
        return [f"list[{item}]", f"tuple[{item}, ...]", f"set[{item}]", f"frozenset[{item}]"]
    return [f"Sequence[{item}]", f"AbstractSet[{item}]"]


def _tuples(before: list[str], items: list[str], required: int, *, as_key: bool = False) -> list[str]:
    """Tuples with these items, from the required ones on; or a list, whose items cannot be told apart."""
    lengths = range(required, len(items) + 1)
    tuples = [tuple_of([*before, *items[:length]]) for length in lengths]
    return tuples if as_key else [*tuples, list_of([*before, *items])]
