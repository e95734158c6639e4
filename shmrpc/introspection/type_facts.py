"""Facts about types and about fields of classes that ``msgspec.inspect`` does not give.

``info`` is always a type as ``msgspec.inspect`` describes it.
"""

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
#: Form of a type: sent to the server, received unchanged, or received as plain MessagePack, as fields of a class may be
#: that is not registered: there a set is a list, and a UUID is text.
Form = Literal["sent", "received", "plain"]

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
    """Return the types directly within a type, such as the item type of a list; none for a class."""
    match info:
        case mi.UnionType():
            return info.types
        case mi.TupleType():
            return info.item_types
        case mi.DictType():
            return (info.key_type, info.value_type)
    return (info.item_type,) if isinstance(info, ARRAYS) else ()


def classes_in(info: Any) -> Iterable[Any]:
    """Yield the classes that occur in the types of the fields of a class, but not the classes within those.

    May yield a class more than once.
    """
    rest = [] if isinstance(info, mi.EnumType) else [field.type for field in info.fields]
    while rest:
        part = rest.pop()
        if isinstance(part, CLASSES):
            yield part
        else:
            rest.extend(parts(part))


def is_recursive(info: Any) -> bool:
    """Return True if a class occurs in the types of its own fields, at any depth."""
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
    """Return True if instances of a class travel as arrays."""
    return isinstance(info, mi.NamedTupleType) or (isinstance(info, mi.StructType) and info.array_like)


def tag_texts(info: Any) -> list[str]:
    """Return the text of the type of a Struct's tag in a list; an empty list for a class without a tag."""
    tag = info.tag if isinstance(info, mi.StructType) else None
    return [] if tag is None else [f"Literal[{tag!r}]"]


def registered_name(info: Any) -> str | None:
    """Return the name under which a class is registered, or None."""
    entry = registry.entry_of(get_origin(info.cls) or info.cls)
    return None if entry is None else entry.name


def is_registered(info: Any) -> bool:
    """Return True if a class is registered: the fields of its instances then travel by name."""
    return registered_name(info) is not None


def is_opaque(info: Any) -> bool:
    """Return True if a class is registered with converters: only a client that has registered it, too, can read it."""
    return isinstance(registry.entry_of(get_origin(info.cls) or info.cls), registry.Custom)


def inherits_form(info: Any) -> bool:
    """Return True if the fields of a class take the form of the class, as those of a TypedDict do."""
    return isinstance(info, mi.TypedDictType | mi.NamedTupleType) and not is_registered(info)


def field_form(info: Any, field: mi.Field, form: Form) -> Form:
    """Return the form that a field takes if its class takes ``form``."""
    if form == "sent" or inherits_form(info):
        return form
    loose = fields.loose_names(get_origin(info.cls) or info.cls, (field.name,))
    return "received" if is_registered(info) or field.name in loose else "plain"


def class_kind(info: Any) -> ClassKind:
    """Return the kind of a class, such as "dataclass"."""
    return _KINDS[type(info)]


def is_always_present(info: Any, field: mi.Field, declared: Any) -> bool:
    """Return True if every instance that arrives has this field. ``declared`` is the declared type of the field."""
    if isinstance(info, mi.TypedDictType):
        return field.required
    cls = get_origin(info.cls) or info.cls
    if isinstance(info, mi.StructType):
        if cls.__struct_config__.omit_defaults and not field.required and not is_registered(info):
            return False
    elif isinstance(info, mi.DataclassType):
        known = getattr(cls, "__dataclass_fields__", {}).get(field.name)
        if known is not None and not _is_encoded(cls, known, registered=is_registered(info)):
            return False
    return msgspec.UnsetType not in (declared, *get_args(declared))


def _is_encoded(cls: Any, known: dataclasses.Field[Any], *, registered: bool) -> bool:
    """Return True if every instance of a dataclass has a field when it is encoded."""
    if registered:
        return known.init or hasattr(cls, known.name)
    return known.init and not _is_class_attribute(cls, known.name)


def _is_class_attribute(cls: Any, name: str) -> bool:
    """Return True if the default of a field is an attribute of the class, which a decoded instance may lack."""
    slot = types.MemberDescriptorType
    return hasattr(cls, name) and not isinstance(inspect.getattr_static(cls, name), slot)


def field_default(field: mi.Field) -> str | None:
    """Return the default of a field as source code; None without a default."""
    if field.default is not msgspec.NODEFAULT:
        return format_default(field.default)
    if field.default_factory is msgspec.NODEFAULT:
        return None
    if field.default_factory in (list, dict):
        return repr(field.default_factory())
    return f"{getattr(field.default_factory, '__name__', '...')}()"


def format_default(value: Any) -> str:
    """Return a default as source code; a repr over 80 characters is shortened. Raises nothing if the repr fails."""
    try:
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        text = repr(value)
    except Exception as error:  # A failing __repr__ must not prevent the description.
        return f"<{type(value).__qualname__}, whose __repr__ raised {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def declared_types(cls: Any) -> dict[str, Any]:
    """Return the declared types of the fields of a class by name; for ``Box[int]``, with int for the type parameter.

    Returns an empty dict if an annotation cannot be resolved.
    """
    origin = get_origin(cls)
    try:
        hints = type_hints(origin or cls)
    except Exception:  # A name in an annotation may have changed its meaning.
        return {}
    if origin is None:
        return hints
    given = dict(zip(origin.__parameters__, get_args(cls), strict=False))
    return {name: with_parameters(hint, given) for name, hint in hints.items()}
