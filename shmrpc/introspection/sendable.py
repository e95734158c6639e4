"""What arrives where a server sends a type, at a client that has none of the server's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect as mi

from shmrpc.introspection import foreign
from shmrpc.introspection.type_facts import (
    ARRAYS,
    CLASSES,
    arrives_untold,
    holds_itself,
    is_array,
    is_plain,
    is_registered,
    parts,
    simple,
    tag_of,
)
from shmrpc.introspection.type_info import AbstractType
from shmrpc.values.notation import list_of, tuple_of, union

#: What plain MessagePack has as text.
_TEXTS: Final = (mi.DateType, mi.TimeType, mi.TimeDeltaType, mi.UUIDType, mi.DecimalType)
_BYTES: Final = (mi.BytesType, mi.ByteArrayType, mi.MemoryViewType)
_THEMSELVES: Final[dict[type[mi.Type], str]] = {
    mi.ByteArrayType: "bytearray",
    mi.BytesType: "bytes",
    mi.MemoryViewType: "memoryview",
    mi.DateTimeType: "datetime.datetime",
    mi.DateType: "datetime.date",
    mi.TimeType: "datetime.time",
    mi.TimeDeltaType: "datetime.timedelta",
    mi.DecimalType: "decimal.Decimal",
    mi.UUIDType: "uuid.UUID",
}


class Sendable:
    """The texts of what arrives, each as alternatives.

    Values arrive as what they are. Those in a field of a class that is not registered may have become *plain*
    MessagePack on the way, in which a set is a list, and a UUID text.
    """

    def __init__(self, name_of: Callable[[Any, bool], str]) -> None:
        """``name_of``: what a class is called where it arrives as it does, or in plain MessagePack."""
        self._name_of = name_of

    def texts(self, info: Any, *, plain: bool = False, as_key: bool = False) -> list[str]:
        """What arrives. An array of MessagePack's own that is a key of a map arrives as a tuple."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self.texts(part, plain=plain, as_key=as_key)]
            case mi.CustomType():
                return foreign.given(info.cls)
            case mi.DictType():
                key = self.texts(info.key_type, plain=plain, as_key=True)
                return [f"dict[{union(key)}, {union(self.texts(info.value_type, plain=plain))}]"]
        if isinstance(info, CLASSES):
            return self._class(info, plain=plain, as_key=as_key)
        return self._plain(info, as_key=as_key) if plain else self._itself(info, as_key=as_key)

    def fields(self, info: Any, *, plain: bool) -> list[str]:
        """What arrives in each field of a class."""
        return [union(self.texts(each.type, plain=is_plain(info, each, within=plain))) for each in info.fields]

    def array(self, info: Any, *, plain: bool) -> str:
        """What arrives for a class that travels as an array: a NamedTuple as what it is."""
        items = self.fields(info, plain=plain)
        return tuple_of(items) if _is_tuple(info, plain=plain) else list_of([*tag_of(info), *items])

    def _class(self, info: Any, *, plain: bool, as_key: bool) -> list[str]:
        if arrives_untold(info):
            return ["Any"]
        own_array = is_array(info) and not is_registered(info) and not _is_tuple(info, plain=plain)
        if as_key and own_array:
            if holds_itself(info):
                return ["tuple[Any, ...]"]
            items = [
                union(self.texts(each.type, plain=is_plain(info, each, within=plain), as_key=True))
                for each in info.fields
            ]
            return [tuple_of([*tag_of(info), *items])]
        return [self._name_of(info.cls, plain)]

    def _itself(self, info: Any, *, as_key: bool) -> list[str]:
        match info:
            case AbstractType(name="AbstractSet"):
                return self._set("AbstractSet", info.item_type)
            case mi.SetType():
                return self._set("set", info.item_type)
            case mi.FrozenSetType():
                return self._set("frozenset", info.item_type)
            case mi.TupleType():
                return [tuple_of(union(self.texts(part, as_key=as_key)) for part in info.item_types)]
            case mi.VarTupleType():
                return [f"tuple[{union(self.texts(info.item_type, as_key=as_key))}, ...]"]
        if isinstance(info, ARRAYS):
            name = info.name if isinstance(info, AbstractType) else "list"
            return [f"{name}[{union(self.texts(info.item_type))}]"]
        return [_THEMSELVES[type(info)]] if type(info) in _THEMSELVES else simple(info)

    def _plain(self, info: Any, *, as_key: bool) -> list[str]:
        if isinstance(info, mi.TupleType):
            items = [union(self.texts(part, plain=True, as_key=as_key)) for part in info.item_types]
            return [tuple_of(items) if as_key else list_of(items)]
        if isinstance(info, ARRAYS):
            item = union(self.texts(info.item_type, plain=True, as_key=as_key))
            return [f"tuple[{item}, ...]" if as_key else f"list[{item}]"]
        if isinstance(info, mi.DateTimeType):
            # With a zone it is a timestamp, without one it is text.
            return [*["datetime.datetime"] * (info.tz is not False), *["str"] * (info.tz is not True)]
        if isinstance(info, _BYTES):
            return ["bytes"]
        return ["str"] if isinstance(info, _TEXTS) else simple(info)

    def _set(self, name: str, item: Any) -> list[str]:
        """A list if there is an element that cannot be in a set: a frozen dataclass has become a dict."""
        alternatives = item.types if isinstance(item, mi.UnionType) else (item,)
        hashable = [each for each in alternatives if _is_hashable(each)]
        texts = [f"{name}[{union(text for each in hashable for text in self.texts(each))}]"] if hashable else []
        if len(hashable) < len(alternatives):
            texts.append(f"list[{union(self.texts(item))}]")
        return texts


def _is_tuple(info: Any, *, plain: bool) -> bool:
    return isinstance(info, mi.NamedTupleType) and not plain


def _is_hashable(info: Any) -> bool:
    """Whether what arrives has a hash, where the value at the sender has one."""
    if isinstance(info, mi.NamedTupleType):
        if is_registered(info) or holds_itself(info):
            return False
        return all(_is_hashable(each.type) for each in info.fields)
    if isinstance(info, CLASSES) and not isinstance(info, mi.EnumType):
        return arrives_untold(info)
    return not isinstance(info, mi.DictType | mi.ListType) and all(map(_is_hashable, parts(info)))
