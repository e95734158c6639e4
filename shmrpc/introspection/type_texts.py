"""Types in Python's notation, as a client without the server's classes has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect as mi

from shmrpc.introspection import foreign
from shmrpc.introspection.type_facts import (
    ARRAYS,
    CLASSES,
    Place,
    holds_itself,
    is_array,
    is_opaque,
    is_registered,
    parts,
    place_of,
    tag_of,
)
from shmrpc.introspection.type_info import AbstractType
from shmrpc.values.notation import list_of, tuple_of, union

_BYTES: Final = (mi.BytesType, mi.ByteArrayType, mi.MemoryViewType)
_ANY_BYTES: Final = "bytes | bytearray | memoryview"
#: The texts, by place, of types without parts. Any other is Any.
_LEAVES: Final[dict[type[mi.Type], dict[Place, str]]] = {
    **{
        kind: dict.fromkeys(("received", "plain", "sent"), text)
        for kind, text in {
            mi.NoneType: "None",
            mi.BoolType: "bool",
            mi.IntType: "int",
            mi.FloatType: "float",
            mi.StrType: "str",
            mi.ExtType: "msgspec.msgpack.Ext",
        }.items()
    },
    **{
        kind: {"received": received, "plain": plain, "sent": sent}
        for kind, received, plain, sent in (
            (mi.BytesType, "bytes", "bytes", _ANY_BYTES),
            (mi.ByteArrayType, "bytearray", "bytes", _ANY_BYTES),
            (mi.MemoryViewType, "memoryview", "bytes", _ANY_BYTES),
            (mi.DateTimeType, "datetime.datetime", "datetime.datetime | str", "datetime.datetime | str"),
            (mi.DateType, "datetime.date", "str", "datetime.date | str"),
            (mi.TimeType, "datetime.time", "str", "datetime.time | str"),
            (mi.TimeDeltaType, "datetime.timedelta", "str", "datetime.timedelta | str"),
            (mi.UUIDType, "uuid.UUID", "str", "uuid.UUID | str | bytes"),
            (mi.DecimalType, "decimal.Decimal", "str", "decimal.Decimal | str | float"),
        )
    },
}


class TypeTexts:
    """The texts of types, each as alternatives. ``name_of``: what a class is called in a place."""

    def __init__(self, name_of: Callable[[Any, Place], str]) -> None:
        self._name_of = name_of

    def texts(self, info: Any, place: Place, *, as_key: bool = False) -> list[str]:
        """What a type is in a place. A key of a map must be hashable: arrays become tuples."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self.texts(part, place, as_key=as_key)]
            case mi.CustomType():
                return foreign.sent(info.cls) if place == "sent" else foreign.received(info.cls)
            case mi.LiteralType():
                return [f"Literal[{', '.join(map(repr, info.values))}]"]
            case mi.DictType():
                keys = self.texts(info.key_type, place, as_key=True)
                value = union(self.texts(info.value_type, place))
                if place == "sent":  # Mapping is invariant in its key, so each kind of key has its own.
                    return [f"Mapping[{key}, {value}]" for key in keys]
                return [f"dict[{union(keys)}, {value}]"]
            case mi.TupleType():
                items = [union(self.texts(part, place, as_key=as_key)) for part in info.item_types]
                as_tuple = [tuple_of(items)] if place != "plain" or as_key else []
                return [*as_tuple, list_of(items)] if place != "received" and not as_key else as_tuple
            case mi.DateTimeType() if place == "plain" and info.tz is not None:
                return ["datetime.datetime" if info.tz else "str"]  # With a zone it is a timestamp.
        if isinstance(info, CLASSES):
            return self._class(info, place, as_key=as_key)
        if isinstance(info, ARRAYS):
            return self._items(info, place, as_key=as_key)
        if isinstance(info, _BYTES) and as_key and place == "sent":
            return ["bytes"]
        return _LEAVES[type(info)][place].split(" | ") if type(info) in _LEAVES else ["Any"]

    def fields(self, info: Any, place: Place, *, as_key: bool = False) -> list[str]:
        """What each field of a class is, when the class stands in a place."""
        return [union(self.texts(each.type, place_of(info, each, place), as_key=as_key)) for each in info.fields]

    def array(self, info: Any, place: Place, *, as_key: bool = False) -> list[str]:
        """What a class that travels as an array is in a place. When sending, the last fields may be left out."""
        before, items = tag_of(info), self.fields(info, place, as_key=as_key)
        least = sum(field.required for field in info.fields) if place == "sent" else len(items)
        tuples = [tuple_of([*before, *items[:length]]) for length in range(least, len(items) + 1)]
        if as_key or _stays_tuple(info, place):
            return tuples
        return [*(tuples if place == "sent" else []), list_of([*before, *items])]

    def _class(self, info: Any, place: Place, *, as_key: bool) -> list[str]:
        if place != "sent" and is_opaque(info):
            return ["Any"]
        by_name = place != "sent" and (is_registered(info) or _stays_tuple(info, place))
        if as_key and is_array(info) and not by_name:
            return ["tuple[Any, ...]"] if holds_itself(info) else self.array(info, place, as_key=True)
        return [self._name_of(info.cls, place)]

    def _items(self, info: Any, place: Place, *, as_key: bool) -> list[str]:
        """What a type with any number of items of one type is in a place."""
        item = union(self.texts(info.item_type, place, as_key=as_key))
        if place == "sent":
            return [f"tuple[{item}, ...]", f"frozenset[{item}]"] if as_key else _arrays(item)
        if place == "plain":
            return [f"tuple[{item}, ...]" if as_key else f"list[{item}]"]
        match info:
            case mi.VarTupleType():
                return [f"tuple[{item}, ...]"]
            case mi.SetType():
                return self._set("set", info.item_type)
            case mi.FrozenSetType():
                return self._set("frozenset", info.item_type)
            case AbstractType(name="AbstractSet"):
                return self._set("AbstractSet", info.item_type)
        return [f"{info.name if isinstance(info, AbstractType) else 'list'}[{item}]"]

    def _set(self, name: str, item: Any) -> list[str]:
        """A set, or a list if some element arrives unhashable, as a frozen dataclass does, which becomes a dict."""
        alternatives = item.types if isinstance(item, mi.UnionType) else (item,)
        hashable = [each for each in alternatives if _is_hashable(each)]
        texts = [f"{name}[{union(text for each in hashable for text in self.texts(each, 'received'))}]"]
        if len(hashable) == len(alternatives):
            return texts
        return [*(texts if hashable else []), f"list[{union(self.texts(item, 'received'))}]"]


def _arrays(item: str) -> list[str]:
    """What may be sent as an array. Where Sequence would let a str or bytes pass as one, it is spelled out."""
    if item in ("Any", "str", "int"):
        return [f"list[{item}]", f"tuple[{item}, ...]", f"set[{item}]", f"frozenset[{item}]"]
    return [f"Sequence[{item}]", f"AbstractSet[{item}]"]


def _stays_tuple(info: Any, place: Place) -> bool:
    """Whether a class arrives as a tuple."""
    return isinstance(info, mi.NamedTupleType) and place == "received"


def _is_hashable(info: Any) -> bool:
    """Whether an instance that is hashable at the sender still is when it arrives."""
    if isinstance(info, mi.NamedTupleType):
        if is_registered(info) or holds_itself(info):
            return False
        return all(_is_hashable(each.type) for each in info.fields)
    if isinstance(info, CLASSES) and not isinstance(info, mi.EnumType):
        return is_opaque(info)
    return not isinstance(info, mi.DictType | mi.ListType) and all(map(_is_hashable, parts(info)))
