"""Facts about types, and about the fields of classes, beyond what ``msgspec.inspect`` says."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import inspect as mi

from shmrpc.values import fields, registry
from shmrpc.values.aliases import type_hints, with_parameters

ClassKind = Literal["dataclass", "struct", "typed dict", "named tuple", "enum"]
#: Where a type stands: in what is sent to the server, in what arrives as it is, and in what arrives as plain
#: MessagePack, as fields of a class that is not registered may: there a set is a list, and a UUID is text.
Place = Literal["sent", "received", "plain"]

CLASSES: Final = (mi.DataclassType, mi.StructType, mi.TypedDictType, mi.NamedTupleType, mi.EnumType)
_KINDS: Final[dict[type[mi.Type], ClassKind]] = {
    mi.DataclassType: "dataclass",
    mi.StructType: "struct",
    mi.TypedDictType: "typed dict",
    mi.NamedTupleType: "named tuple",
    mi.EnumType: "enum",
}
ARRAYS: Final = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType, mi.CollectionType)


def parts(info: Any) -> Sequence[Any]:
    """The types of which a type consists, unless it is a class."""
    match info:
        case mi.UnionType():
            return info.types
        case mi.TupleType():
            return info.item_types
        case mi.DictType():
            return (info.key_type, info.value_type)
    return (info.item_type,) if isinstance(info, ARRAYS) else ()


def classes_in(info: Any) -> Iterable[Any]:
    """The classes in the types of a class's fields."""
    rest = [] if isinstance(info, mi.EnumType) else [field.type for field in info.fields]
    while rest:
        part = rest.pop()
        if isinstance(part, CLASSES):
            yield part
        else:
            rest.extend(parts(part))


def holds_itself(info: Any) -> bool:
    """Whether a class occurs within its own fields."""
    seen, rest = set(), [info]
    while rest:
        for each in classes_in(rest.pop()):
            if each.cls == info.cls:
                return True
            if each.cls not in seen:
                seen.add(each.cls)
                rest.append(each)
    return False


def is_array(info: Any) -> bool:
    """Whether the values of a class travel as arrays."""
    return isinstance(info, mi.NamedTupleType) or (isinstance(info, mi.StructType) and info.array_like)


def tag_of(info: Any) -> list[str]:
    """The type of the tag that tells a Struct from others in a union; empty for a class without a tag."""
    tag = info.tag if isinstance(info, mi.StructType) else None
    return [] if tag is None else [f"Literal[{tag!r}]"]


def registered_name(info: Any) -> str | None:
    """The name under which a class is registered; None if it is not."""
    entry = registry.entry_of(get_origin(info.cls) or info.cls)
    return None if entry is None else entry.name


def is_registered(info: Any) -> bool:
    """Whether a class is registered: the fields of its instances then travel by name, whatever kind of class it is."""
    return registered_name(info) is not None


def is_opaque(info: Any) -> bool:
    """Whether a class is registered with functions of its own: only a client that has it registered can read it."""
    return isinstance(registry.entry_of(get_origin(info.cls) or info.cls), registry.Custom)


def depends_on_place(info: Any) -> bool:
    """Whether the fields of a class are plain MessagePack exactly where the class itself is."""
    return isinstance(info, mi.TypedDictType | mi.NamedTupleType) and not is_registered(info)


def place_of(info: Any, field: mi.Field, place: Place) -> Place:
    """Where a field stands, of a class that stands at ``place``."""
    if place == "sent" or depends_on_place(info):
        return place
    loose = fields.loose_names(get_origin(info.cls) or info.cls, (field.name,))
    return "received" if is_registered(info) or field.name in loose else "plain"


def class_kind(info: Any) -> ClassKind:
    """What kind of class it is."""
    return _KINDS[type(info)]


def is_always_there(info: Any, field: mi.Field, declared: Any) -> bool:
    """Whether every instance that arrives has this field."""
    if isinstance(info, mi.TypedDictType):
        return field.required
    cls = get_origin(info.cls) or info.cls
    if isinstance(info, mi.StructType):
        if cls.__struct_config__.omit_defaults and not field.required and not is_registered(info):
            return False
    elif isinstance(info, mi.DataclassType):
        known = getattr(cls, "__dataclass_fields__", {}).get(field.name)
        if known is not None and not _is_set(cls, known, registered=is_registered(info)):
            return False
    return msgspec.UnsetType not in (declared, *get_args(declared))


def _is_set(cls: Any, known: dataclasses.Field[Any], *, registered: bool) -> bool:
    """Whether every instance of a dataclass has a field where the encoder looks for it."""
    if registered:
        return known.init or hasattr(cls, known.name)
    return known.init and not _stands_in_class(cls, known.name)


def _stands_in_class(cls: Any, name: str) -> bool:
    """Whether a field's default is an attribute of the class, which instances made by decoding do without."""
    slot = types.MemberDescriptorType
    return hasattr(cls, name) and not isinstance(inspect.getattr_static(cls, name), slot)


def field_default(field: mi.Field) -> str | None:
    """A field's default as source code; None if it has none."""
    if field.default is not msgspec.NODEFAULT:
        return default_text(field.default)
    if field.default_factory is msgspec.NODEFAULT:
        return None
    if field.default_factory in (list, dict):
        return repr(field.default_factory())
    return f"{getattr(field.default_factory, '__name__', '...')}()"


def default_text(value: Any) -> str:
    """A default as source code, shortened."""
    try:
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        text = repr(value)
    except Exception as error:  # The rest of the description is useful without it.
        return f"<{type(value).__qualname__}, whose __repr__ raised {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def declared_types(cls: Any) -> dict[str, Any]:
    """The types of a class's fields; for ``Box[int]``, with int in place of the parameter."""
    origin = get_origin(cls)
    try:
        hints = type_hints(origin or cls)
    except Exception:  # A name in an annotation may mean something else by now.
        return {}
    if origin is None:
        return hints
    given = dict(zip(origin.__parameters__, get_args(cls), strict=False))
    return {name: with_parameters(hint, given) for name, hint in hints.items()}
