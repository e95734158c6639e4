"""The types of values as a client has them that knows none of the server's classes.

Each type has two texts, in Python's own notation. What *arrives* is what MessagePack decodes to: a UUID is
text, a set a list, a dataclass a dict. What the server *accepts* is wider: a UUID or its text, any array for a
list. A class whose values travel as a map becomes a TypedDict, one that travels as an array or as a plain
value an alias; :class:`PlainTypes` keeps their definitions.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect as mi

from shmrpc.introspection.type_facts import (
    ARRAYS,
    CLASSES,
    ClassKind,
    class_kind,
    classes_in,
    declared_types,
    field_default,
    holds_itself,
    is_always_there,
    is_array,
    parts,
)
from shmrpc.introspection.type_names import type_name

_BYTES: Final = (mi.BytesType, mi.ByteArrayType, mi.MemoryViewType)
#: What travels as text, and the class of the values that are sent so.
_TEXTS: Final[dict[type[mi.Type], str]] = {
    mi.DateType: "datetime.date",
    mi.TimeType: "datetime.time",
    mi.TimeDeltaType: "datetime.timedelta",
}
#: Names that stand for something else where the texts are read.
_RESERVED: Final = {
    *dir(builtins),
    *("AbstractSet", "Any", "AsyncGenerator", "AsyncIterable", "EndpointGroup", "Generator", "Iterable", "Literal"),
    *("Mapping", "NotRequired", "ReadOnly", "Sequence", "TypeAlias", "TypedDict"),
    *("datetime", "decimal", "msgspec", "shmrpc", "uuid"),
}


class FieldDescription(msgspec.Struct, frozen=True):
    """A field of a class whose values travel."""

    #: As it travels.
    name: str
    #: As it is declared.
    type: str
    #: What arrives, and what may be sent, without the server's classes.
    gives: str
    accepts: str
    #: Whether a value sent to the server must have it, and whether one that arrives always does.
    required: bool = True
    always: bool = True
    default: str | None = None


class TypeDescription(msgspec.Struct, frozen=True):
    """A class whose values travel."""

    #: As its source has it.
    type: str
    #: What it is called in the texts of types that arrive, and of those that may be sent.
    name: str
    input_name: str
    kind: ClassKind
    #: Of one that travels as a map or an array.
    fields: list[FieldDescription] = []
    #: For one that travels as an array or as a plain value: what that is.
    gives: str | None = None
    accepts: str | None = None
    #: Whether it occurs in what arrives, and in what may be sent.
    received: bool = True
    sent: bool = True


@dataclasses.dataclass
class _Class:
    """A class that was met, and where."""

    info: Any
    name: str
    input_name: str
    sent: bool = False
    received: bool = False
    #: Its tag tells it from the other members of a union.
    tag_needed: bool = False


class PlainTypes:
    """The texts of types, and the definitions of the classes in them.

    ``received`` are types of what arrives at the client, ``sent`` of what it may send.
    """

    def __init__(self, received: Iterable[Any], sent: Iterable[Any]) -> None:
        self._infos: dict[Any, mi.Type] = {}
        self._classes: dict[Any, _Class] = {}
        self._names: set[str] = set(_RESERVED)
        for kind in received:
            self._meet(self._info(kind), sent=False)
        for kind in sent:
            self._meet(self._info(kind), sent=True)
        self._tell_inputs_apart()

    def gives(self, kind: Any) -> str:
        """What arrives where a server sends this type."""
        return _union(self._given(self._info(kind)))

    def accepts(self, kind: Any) -> str:
        """What may be sent where a server takes this type."""
        return _union(self._taken(self._info(kind)))

    def definitions(self) -> list[TypeDescription]:
        """The classes in these types, in the order in which they were met."""
        return [self._define(each) for each in self._classes.values()]

    def _info(self, kind: Any) -> mi.Type:
        """What a type consists of."""
        key = _key(kind)
        info = self._infos.get(key)
        if info is None:
            try:
                info = mi.type_info(kind)
            except Exception:  # It was valid once: by now a name in an annotation may stand for something else.
                info = mi.AnyType()
            self._infos[key] = info
        return info

    def _meet(self, info: Any, *, sent: bool) -> None:
        """Notes the classes in a type, and gives them names."""
        if isinstance(info, CLASSES):
            known = self._classes.get(info.cls)
            if known is None:
                name = self._new_name(type_name(info.cls))
                known = self._classes[info.cls] = _Class(info, name, name)
            elif known.sent if sent else known.received:
                return
            known.sent, known.received = known.sent or sent, known.received or not sent
            for field in () if isinstance(info, mi.EnumType) else info.fields:
                self._meet(field.type, sent=sent)
            return
        for part in parts(info):
            self._meet(part, sent=sent)
        structs = [part for part in parts(info) if isinstance(part, mi.StructType)]
        if isinstance(info, mi.UnionType) and len(structs) > 1:
            for part in structs:
                self._classes[part.cls].tag_needed = True

    def _new_name(self, name: str) -> str:
        base = name = re.sub(r"\W+", "_", name).strip("_") or "Type"
        number = 1
        while name in self._names:
            number += 1
            name = f"{base}{number}"
        self._names.add(name)
        return name

    def _tell_inputs_apart(self) -> None:
        """Gives a second name to each class that may be sent in other forms than it arrives in."""
        both = [each for each in self._classes.values() if each.sent and each.received]
        differing = {each.name for each in both if _differs(self._define(each))}
        uses = {each.name: {self._classes[i.cls].name for i in classes_in(each.info)} for each in both}
        while more := {name for name, used in uses.items() if name not in differing and used & differing}:
            differing |= more
        for each in both:
            if each.name in differing:
                each.input_name = self._new_name(f"{each.name}Input")

    def _define(self, each: _Class) -> TypeDescription:
        info = each.info
        names, places = (type_name(info.cls), each.name, each.input_name), (each.received, each.sent)
        if isinstance(info, mi.EnumType):
            values = _values(info.cls)
            return TypeDescription(*names, "enum", [], values, values, *places)
        declared = declared_types(info.cls)
        fields = [*self._tag(each), *(self._field(info, field, declared.get(field.name, Any)) for field in info.fields)]
        gives = accepts = None
        if is_array(info):
            gives = _list_of([*_tag_text(info), *(_union(self._given(field.type)) for field in info.fields)])
            accepts = _union(self._taken_array(info))
        return TypeDescription(*names, class_kind(info), fields, gives, accepts, *places)

    def _field(self, info: Any, field: mi.Field, declared: Any) -> FieldDescription:
        return FieldDescription(
            field.encode_name,
            type_name(declared),
            _union(self._given(field.type)),
            _union(self._taken(field.type)),
            field.required,
            is_always_there(info, field, declared),
            field_default(field),
        )

    def _tag(self, each: _Class) -> list[FieldDescription]:
        text = "".join(_tag_text(each.info))
        if not text or is_array(each.info):
            return []
        return [FieldDescription(each.info.tag_field, text, text, text, each.tag_needed)]

    def _given(self, info: Any, *, as_key: bool = False) -> list[str]:
        """What arrives, as alternatives. An array that is a key of a map arrives as a tuple."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self._given(part, as_key=as_key)]
            case mi.EnumType():
                return [self._classes[info.cls].name]
            case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
                if as_key and is_array(info):
                    if holds_itself(info):
                        return ["tuple[Any, ...]"]
                    items = [*_tag_text(info), *(_union(self._given(f.type, as_key=True)) for f in info.fields)]
                    return [f"tuple[{', '.join(items) or '()'}]"]
                return [self._classes[info.cls].name]
            case mi.TupleType():
                items = [_union(self._given(part, as_key=as_key)) for part in info.item_types]
                return [f"tuple[{', '.join(items) or '()'}]" if as_key else _list_of(items)]
            case mi.DictType():
                key, value = self._given(info.key_type, as_key=True), self._given(info.value_type)
                return [f"dict[{_union(key)}, {_union(value)}]"]
            case mi.DateTimeType():
                # With a zone it is a timestamp, without one it is text.
                return [*["datetime.datetime"] * (info.tz is not False), *["str"] * (info.tz is not True)]
            case mi.UUIDType() | mi.DecimalType():
                return ["str"]
        if isinstance(info, ARRAYS):
            item = _union(self._given(info.item_type, as_key=as_key))
            return [f"tuple[{item}, ...]" if as_key else f"list[{item}]"]
        if isinstance(info, _BYTES):
            return ["bytes"]
        return ["str"] if type(info) in _TEXTS else _simple(info)

    def _taken(self, info: Any, *, as_key: bool = False) -> list[str]:
        """What may be sent, as alternatives. An array that is a key of a map must be one that has a hash."""
        match info:
            case mi.UnionType():
                return [text for part in info.types for text in self._taken(part, as_key=as_key)]
            case mi.EnumType():
                return [self._classes[info.cls].input_name]
            case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
                if as_key and is_array(info):
                    return ["tuple[Any, ...]"] if holds_itself(info) else self._taken_array(info, as_key=True)
                return [self._classes[info.cls].input_name]
            case mi.TupleType():
                items = [_union(self._taken(part, as_key=as_key)) for part in info.item_types]
                return _tuples([], items, len(items), as_key=as_key)
            case mi.DictType():
                # Mapping is invariant in its key, so each kind of key has its own.
                value = _union(self._taken(info.value_type))
                return [f"Mapping[{key}, {value}]" for key in self._taken(info.key_type, as_key=True)]
            case mi.DateTimeType():
                return ["datetime.datetime", "str"]
            case mi.UUIDType():
                return ["uuid.UUID", "str", "bytes"]
            case mi.DecimalType():
                return ["decimal.Decimal", "str", "float"]
        if isinstance(info, ARRAYS):
            item = _union(self._taken(info.item_type, as_key=as_key))
            return [f"tuple[{item}, ...]", f"frozenset[{item}]"] if as_key else _arrays(item)
        if isinstance(info, _BYTES):
            return ["bytes"] if as_key else ["bytes", "bytearray", "memoryview"]
        return [_TEXTS[type(info)], "str"] if type(info) in _TEXTS else _simple(info)

    def _taken_array(self, info: Any, *, as_key: bool = False) -> list[str]:
        """What may be sent for a class that travels as an array: its last fields may be left out."""
        items = [_union(self._taken(field.type, as_key=as_key)) for field in info.fields]
        return _tuples(_tag_text(info), items, sum(field.required for field in info.fields), as_key=as_key)


def _simple(info: Any) -> list[str]:
    """What travels as it is."""
    match info:
        case mi.NoneType():
            return ["None"]
        case mi.BoolType():
            return ["bool"]
        case mi.IntType():
            return ["int"]
        case mi.FloatType():
            return ["float"]
        case mi.StrType():
            return ["str"]
        case mi.LiteralType():
            return [f"Literal[{', '.join(map(repr, info.values))}]"]
        case mi.ExtType():
            return ["msgspec.msgpack.Ext"]
        case _:
            return ["Any"]


def _differs(definition: TypeDescription) -> bool:
    """Whether what may be sent is written otherwise than what arrives."""
    return definition.gives != definition.accepts or any(
        field.gives != field.accepts or field.required != field.always for field in definition.fields
    )


def _tag_text(info: Any) -> list[str]:
    tag = info.tag if isinstance(info, mi.StructType) else None
    return [] if tag is None else [f"Literal[{tag!r}]"]


def _values(cls: type[enum.Enum]) -> str:
    if issubclass(cls, enum.Flag) or not len(cls):
        return "int"
    return f"Literal[{', '.join(repr(member.value) for member in cls)}]"


def _union(alternatives: Iterable[str]) -> str:
    unique = list(dict.fromkeys(alternatives))
    return "Any" if "Any" in unique else " | ".join(unique)


def _list_of(items: Iterable[str]) -> str:
    return f"list[{_union(items) or 'Any'}]"


def _arrays(item: str) -> list[str]:
    """An array of these. A str is a Sequence too, of str, as bytes is one of int: they are none here."""
    if item in ("Any", "str", "int"):
        return [f"list[{item}]", f"tuple[{item}, ...]", f"set[{item}]", f"frozenset[{item}]"]
    return [f"Sequence[{item}]", f"AbstractSet[{item}]"]


def _tuples(before: list[str], items: list[str], required: int, *, as_key: bool = False) -> list[str]:
    """Tuples with these items, from the required ones on; or a list, whose items cannot be told apart."""
    lengths = range(required, len(items) + 1)
    tuples = [f"tuple[{', '.join([*before, *items[:length]]) or '()'}]" for length in lengths]
    return tuples if as_key else [*tuples, _list_of([*before, *items])]


def _key(kind: Any) -> Any:
    """What a type is found by: there are annotations that cannot be hashed."""
    try:
        hash(kind)
    except TypeError:
        return id(kind)
    return kind
