"""The values that an Enum or a Literal allows, wherever in a type it stands."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import inspect as mi

_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_ITEMS: Final = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType, mi.CollectionType)
_CLASSES: Final = (mi.StructType, mi.DataclassType, mi.TypedDictType, mi.NamedTupleType)
#: More are not listed.
_MOST: Final = 20


def choices_text(kind: Any, path: str) -> str:
    """What is allowed at a path such as ``.colours[0]`` in a value of this type; "" if that cannot be told."""
    try:
        info = mi.EnumType(kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else mi.type_info(kind)
    except Exception:  # A type that msgspec cannot have as a whole.
        return ""
    values = list(dict.fromkeys(map(repr, _choices(info, _STEP.findall(path)))))
    if len(values) > _MOST:
        return f"{', '.join(values[:_MOST])} or one of {len(values) - _MOST} more"
    return " or ".join(filter(None, (", ".join(values[:-1]), *values[-1:])))


def _choices(info: Any, steps: Sequence[tuple[str, str]]) -> Iterator[Any]:
    if isinstance(info, mi.UnionType):
        for each in info.types:
            yield from _choices(each, steps)
    elif not steps:
        if isinstance(info, mi.EnumType):
            yield from (each.value for each in info.cls)
        elif isinstance(info, mi.LiteralType):
            yield from info.values
    else:
        for part in _parts(info, *steps[0]):
            yield from _choices(part, steps[1:])


def _parts(info: Any, name: str, index: str) -> list[Any]:
    """The types of what stands at one step of a path."""
    if isinstance(info, _CLASSES):
        place = int(index) if index.isdigit() else -1
        return [field.type for number, field in enumerate(info.fields) if name == field.encode_name or place == number]
    if isinstance(info, mi.TupleType):
        return list(info.item_types[int(index) : int(index) + 1]) if index.isdigit() else []
    if isinstance(info, mi.DictType):
        return [info.value_type]
    return [info.item_type] if isinstance(info, _ITEMS) else []
