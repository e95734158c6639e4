"""Lists of the values that an Enum or a Literal allows, for error messages."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import inspect as mi

_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
#: Separates, in a path, a key of a dict with the steps in it from the path to the dict.
KEY_IN: Final = "` in `"
_KEY: Final = ("", "key")
_ITEMS: Final = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType, mi.CollectionType)
_CLASSES: Final = (mi.StructType, mi.DataclassType, mi.TypedDictType, mi.NamedTupleType)
#: Largest number of choices that are listed.
_MOST: Final = 20
#: Marker among the choices for a type that allows other values.
_ANYTHING_ELSE: Final = object()


def choices_text(kind: Any, path: str, *, complete: bool = False) -> str:
    """Return the text of the values that a type allows at a path such as ``.colours[0]``; "" if they are unknown.

    Lists at most 20 values, and counts the rest. With ``complete``, returns "" also if the type allows values other
    than these choices.
    """
    try:
        info = mi.EnumType(kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else mi.type_info(kind)
        found = list(_choices(info, steps(path)))
    except Exception:  # msgspec does not support the type.
        return ""
    if complete and _ANYTHING_ELSE in found:
        return ""
    texts = list(dict.fromkeys(text for text in found if isinstance(text, str)))
    none = [text for text in texts if text == "None"]
    if len(none) == len(texts):
        return ""
    texts = [text for text in texts if text != "None"] + none
    if len(texts) > _MOST:
        return f"{', '.join(texts[:_MOST])} or one of {len(texts) - _MOST} more"
    return " or ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def steps(path: str) -> list[tuple[str, str]]:
    """Return the steps of a path, each as a pair: the name of a field or "", and an index or "".

    The index is ``...`` for any item. The step to a key of a dict is ``("", "key")``.
    """
    *keys, outermost = path.split(KEY_IN)
    found = _STEP.findall(outermost)
    for key in reversed(keys):
        found += [_KEY, *_STEP.findall(key)]
    return found


def _choices(info: Any, steps: Sequence[tuple[str, str]]) -> Iterator[Any]:
    """Yield each choice as text, and _ANYTHING_ELSE for each type that allows other values."""
    if isinstance(info, mi.UnionType):
        for each in info.types:
            yield from _choices(each, steps)
    elif steps:
        for part in _parts(info, *steps[0]):
            yield from _choices(part, steps[1:])
    elif isinstance(info, mi.EnumType):
        yield from map(_member_text, info.cls)
        if issubclass(info.cls, enum.Flag):
            yield "several of these joined by |"
    elif isinstance(info, mi.LiteralType):
        yield from map(repr, info.values)
    else:
        yield "None" if isinstance(info, mi.NoneType) else _ANYTHING_ELSE


def _member_text(member: enum.Enum) -> str:
    """Return the value of a member, with its name unless the value is a str."""
    value = member.value
    return repr(value) if isinstance(value, str) else f"{value!r} ({type(member).__name__}.{member.name})"


def _parts(info: Any, name: str, index: str) -> list[Any]:
    """Return the types at one step of a path."""
    if isinstance(info, _CLASSES):
        place = int(index) if index.isdigit() else -1
        return [field.type for number, field in enumerate(info.fields) if name == field.encode_name or place == number]
    if isinstance(info, mi.TupleType):
        return list(info.item_types[int(index) : int(index) + 1]) if index.isdigit() else []
    if isinstance(info, mi.DictType):
        return [info.key_type if (name, index) == _KEY else info.value_type]
    return [info.item_type] if isinstance(info, _ITEMS) else []
