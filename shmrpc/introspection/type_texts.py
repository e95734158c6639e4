"""Texts of types in Python's notation, for a client without the server's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect as mi

from shmrpc.introspection import known_types
from shmrpc.introspection.type_facts import (
    ARRAYS,
    CLASSES,
    Form,
    field_form,
    is_array,
    is_opaque,
    is_recursive,
    is_registered,
    parts,
    tag_texts,
)
from shmrpc.introspection.type_info import AbstractType
from shmrpc.values.type_repr import list_text, tuple_text, union_text

_BYTES: Final = (mi.BytesType, mi.ByteArrayType, mi.MemoryViewType)
_ANY_BYTES: Final = "bytes | bytearray | memoryview"
#: Texts of types without parts, by form. Any other type is Any.
_LEAVES: Final[dict[type[mi.Type], dict[Form, str]]] = {
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
    """Texts of types, each as a list of a union's members. ``name_of`` returns the name of a class in a form."""

    def __init__(self, name_of: Callable[[Any, Form], str]) -> None:
        self._name_of = name_of

    def texts(self, info: Any, form: Form, *, as_key: bool = False) -> list[str]:
        """Return the texts of a type in a form. In the key of a map, which must be hashable, arrays are tuples."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self.texts(part, form, as_key=as_key)]
            case mi.CustomType():
                return known_types.sent_texts(info.cls) if form == "sent" else known_types.received_texts(info.cls)
            case mi.LiteralType():
                return [f"Literal[{', '.join(map(repr, info.values))}]"]
            case mi.DictType():
                keys = self.texts(info.key_type, form, as_key=True)
                value = union_text(self.texts(info.value_type, form))
                if form == "sent":  # Mapping is invariant in its key type, so each key type has a Mapping.
                    return [f"Mapping[{key}, {value}]" for key in keys]
                return [f"dict[{union_text(keys)}, {value}]"]
            case mi.TupleType():
                items = [union_text(self.texts(part, form, as_key=as_key)) for part in info.item_types]
                as_tuple = [tuple_text(items)] if form != "plain" or as_key else []
                return [*as_tuple, list_text(items)] if form != "received" and not as_key else as_tuple
            case mi.DateTimeType() if form == "plain" and info.tz is not None:
                return ["datetime.datetime" if info.tz else "str"]  # A datetime with a zone is a timestamp.
        if isinstance(info, CLASSES):
            return self._class(info, form, as_key=as_key)
        if isinstance(info, ARRAYS):
            return self._items(info, form, as_key=as_key)
        if isinstance(info, _BYTES) and as_key and form == "sent":
            return ["bytes"]
        return _LEAVES[type(info)][form].split(" | ") if type(info) in _LEAVES else ["Any"]

    def fields(self, info: Any, form: Form, *, as_key: bool = False) -> list[str]:
        """Return the text of each field of a class in a form."""
        return [union_text(self.texts(each.type, field_form(info, each, form), as_key=as_key)) for each in info.fields]

    def array(self, info: Any, form: Form, *, as_key: bool = False) -> list[str]:
        """Return the texts of a class that travels as an array. A sender may leave out the last optional fields."""
        before, items = tag_texts(info), self.fields(info, form, as_key=as_key)
        least = sum(field.required for field in info.fields) if form == "sent" else len(items)
        tuples = [tuple_text([*before, *items[:length]]) for length in range(least, len(items) + 1)]
        if as_key or _stays_tuple(info, form):
            return tuples
        return [*(tuples if form == "sent" else []), list_text([*before, *items])]

    def _class(self, info: Any, form: Form, *, as_key: bool) -> list[str]:
        """Return the texts of a class, usually its name."""
        if form != "sent" and is_opaque(info):
            return ["Any"]
        by_name = form != "sent" and (is_registered(info) or _stays_tuple(info, form))
        if as_key and is_array(info) and not by_name:
            return ["tuple[Any, ...]"] if is_recursive(info) else self.array(info, form, as_key=True)
        return [self._name_of(info.cls, form)]

    def _items(self, info: Any, form: Form, *, as_key: bool) -> list[str]:
        """Return the texts of a collection with any number of items of one type."""
        item = union_text(self.texts(info.item_type, form, as_key=as_key))
        if form == "sent":
            return [f"tuple[{item}, ...]", f"frozenset[{item}]"] if as_key else _arrays(item)
        if form == "plain":
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
        """Return the texts of a set: a set of the elements that arrive hashable, and a list if some do not."""
        alternatives = item.types if isinstance(item, mi.UnionType) else (item,)
        hashable = [each for each in alternatives if _is_hashable(each)]
        texts = [f"{name}[{union_text(text for each in hashable for text in self.texts(each, 'received'))}]"]
        if len(hashable) == len(alternatives):
            return texts
        return [*(texts if hashable else []), f"list[{union_text(self.texts(item, 'received'))}]"]


def _arrays(item: str) -> list[str]:
    """Return the texts of types that may be sent as an array, without Sequence if a str or bytes would pass as one."""
    if item in ("Any", "str", "int"):
        return [f"list[{item}]", f"tuple[{item}, ...]", f"set[{item}]", f"frozenset[{item}]"]
    return [f"Sequence[{item}]", f"AbstractSet[{item}]"]


def _stays_tuple(info: Any, form: Form) -> bool:
    """Return True if an instance of a class arrives as a tuple."""
    return isinstance(info, mi.NamedTupleType) and form == "received"


def _is_hashable(info: Any) -> bool:
    """Return True if an instance that is hashable at the sender is hashable at the receiver, too."""
    if isinstance(info, mi.NamedTupleType):
        if is_registered(info) or is_recursive(info):
            return False
        return all(_is_hashable(each.type) for each in info.fields)
    if isinstance(info, CLASSES) and not isinstance(info, mi.EnumType):
        return is_opaque(info)
    return not isinstance(info, mi.DictType | mi.ListType) and all(map(_is_hashable, parts(info)))
