"""What msgspec knows of a type and of the fields of a class."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as mi

ClassKind = Literal["dataclass", "struct", "typed dict", "named tuple", "enum"]

_MAP_CLASSES: Final = (mi.StructType, mi.DataclassType, mi.TypedDictType)
CLASSES: Final = (*_MAP_CLASSES, mi.NamedTupleType, mi.EnumType)
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


def class_kind(info: Any) -> ClassKind:
    """What kind of class it is, if it is no enum."""
    match info:
        case mi.StructType():
            return "struct"
        case mi.TypedDictType():
            return "typed dict"
        case mi.NamedTupleType():
            return "named tuple"
        case _:
            return "dataclass"


def is_always_there(info: Any, field: mi.Field, declared: Any) -> bool:
    """Whether every value that arrives has this field."""
    if isinstance(info, mi.TypedDictType):
        return field.required
    if isinstance(info, mi.StructType):
        config = (get_origin(info.cls) or info.cls).__struct_config__
        if config.omit_defaults and not field.required:
            return False
    elif isinstance(info, mi.DataclassType):
        cls = get_origin(info.cls) or info.cls
        known = getattr(cls, "__dataclass_fields__", {}).get(field.name)
        if known is not None and (not known.init or _stands_in_class(cls, field.name)):
            return False
    return msgspec.UnsetType not in (declared, *get_args(declared))


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
        hints = get_type_hints(origin or cls, include_extras=True)
    except Exception:  # As in PlainTypes: a name may stand for something else by now.
        return {}
    if origin is None:
        return hints
    given = dict(zip(origin.__parameters__, get_args(cls), strict=False))
    return {name: _with_parameters(hint, given) for name, hint in hints.items()}


def _with_parameters(hint: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(each, each) for each in parameters)] if parameters else hint
