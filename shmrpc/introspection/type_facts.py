"""What msgspec knows of a type and of the fields of a class."""

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

_KINDS: Final[dict[type[mi.Type], ClassKind]] = {
    mi.DataclassType: "dataclass",
    mi.StructType: "struct",
    mi.TypedDictType: "typed dict",
    mi.NamedTupleType: "named tuple",
    mi.EnumType: "enum",
}
CLASSES: Final[Any] = tuple(_KINDS)
ARRAYS: Final = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType, mi.CollectionType)


def parts(info: Any) -> Sequence[Any]:
    """The types within a type that is no class."""
    match info:
        case mi.UnionType():
            return info.types
        case mi.TupleType():
            return info.item_types
        case mi.DictType():
            return (info.key_type, info.value_type)
    return (info.item_type,) if isinstance(info, ARRAYS) else ()


def classes_in(info: Any) -> Iterable[Any]:
    """The classes of the fields of a class, also within other types."""
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
    """The text of what tells a Struct from others in a union; nothing for a class that has no tag."""
    tag = info.tag if isinstance(info, mi.StructType) else None
    return [] if tag is None else [f"Literal[{tag!r}]"]


def registered_name(info: Any) -> str | None:
    """The name under which a class is registered; None if it is not."""
    entry = registry.entry_of(get_origin(info.cls) or info.cls)
    return None if entry is None else entry.name


def is_registered(info: Any) -> bool:
    """Whether a class is: then the fields of an instance travel by their names, whatever kind of class it is."""
    return registered_name(info) is not None


def arrives_untold(info: Any) -> bool:
    """Whether a class is registered with functions of its own: then nobody else can read its instances."""
    return isinstance(registry.entry_of(get_origin(info.cls) or info.cls), registry.Custom)


def depends_on_place(info: Any) -> bool:
    """Whether the fields of a class are plain MessagePack where the class itself is, and only there."""
    return isinstance(info, mi.TypedDictType | mi.NamedTupleType) and not is_registered(info)


def is_plain(info: Any, field: mi.Field, *, within: bool) -> bool:
    """Whether a field of a class travels as plain MessagePack. ``within``: whether the class itself does."""
    if depends_on_place(info):
        return within
    cls = get_origin(info.cls) or info.cls
    return not is_registered(info) and field.name not in fields.loose_names(cls, (field.name,))


def class_kind(info: Any) -> ClassKind:
    """What kind of class it is."""
    return _KINDS[type(info)]


def is_always_there(info: Any, field: mi.Field, declared: Any) -> bool:
    """Whether every value that arrives has this field."""
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
    """Whether every object of a dataclass has a field, as it is looked for where it is sent."""
    if registered:
        return known.init or hasattr(cls, known.name)
    return known.init and not _stands_in_class(cls, known.name)


def _stands_in_class(cls: Any, name: str) -> bool:
    """Whether a field's default is an attribute of the class: an object made by decoding then has none of its own."""
    slot = types.MemberDescriptorType
    return hasattr(cls, name) and not isinstance(inspect.getattr_static(cls, name), slot)


def field_default(field: mi.Field) -> str | None:
    """A field's default as its source may have it; None if it has none."""
    if field.default is not msgspec.NODEFAULT:
        return default_text(field.default)
    if field.default_factory is msgspec.NODEFAULT:
        return None
    if field.default_factory in (list, dict):
        return repr(field.default_factory())
    return f"{getattr(field.default_factory, '__name__', '...')}()"


def default_text(value: Any) -> str:
    """A default as its source may have it, shortened."""
    try:
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        text = repr(value)
    except Exception as error:  # A default whose repr fails must not hide the rest.
        return f"<{type(value).__qualname__}, whose __repr__ raised {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def declared_types(cls: Any) -> dict[str, Any]:
    """The types of a class's fields; those of ``Box[int]`` with int in the place of the parameter."""
    origin = get_origin(cls)
    try:
        hints = type_hints(origin or cls)
    except Exception:  # As in PlainTypes: a name may stand for something else by now.
        return {}
    if origin is None:
        return hints
    given = dict(zip(origin.__parameters__, get_args(cls), strict=False))
    return {name: with_parameters(hint, given) for name, hint in hints.items()}
