"""Texts of classes that msgspec does not know: Python's own, NumPy's and other libraries'."""

from __future__ import annotations

import datetime
import enum
import pathlib
import sys
import types
import zoneinfo
from typing import Any, Final, get_origin

from shmrpc.values import registry
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.extension import Extension, imported
from shmrpc.values.standard import ZONE
from shmrpc.values.type_repr import class_text, union_text

_ZONES: Final = (datetime.tzinfo, datetime.timezone, zoneinfo.ZoneInfo)
#: Classes whose instances can be sent. A str names a class of a library, as in an extension.
_BASES: Final[tuple[type | str, ...]] = (
    *(float, int, str, list, dict),
    *(pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    *(kind for extension in ALL_EXTENSIONS if extension.code != ZONE for kind in extension.writers),
)
#: Types of the values that a Literal can hold.
_LITERAL: Final = (int, str, bytes, bool, types.NoneType)


def received_texts(kind: Any) -> list[str]:
    """Return the texts of the types that arrive for an instance of a class; "Any" if it is unknown or registered."""
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or registry.entry_of(cls) is not None:
        return ["Any"]
    arriving = _received_class(cls)
    return ["Any"] if arriving is None else [class_text(kind if arriving is cls else arriving)]


def sent_texts(kind: Any) -> list[str]:
    """Return the texts of the types whose values a caller may send for a class.

    A float may be sent for a complex number, and a str for a path. Returns "Any" if the class is unknown or registered,
    or if its instances arrive as another class.
    """
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or registry.entry_of(cls) is not None:
        return ["Any"]
    if cls is complex:
        return ["complex", "float"]
    arriving = _received_class(cls)
    if issubclass(cls, pathlib.PurePath):
        same = arriving is cls or (arriving is pathlib.Path and isinstance(pathlib.Path(), cls))
        return [class_text(arriving), "str"] if same else ["str"]
    return [class_text(kind)] if arriving is cls else ["Any"]


def enum_text(cls: type[enum.Enum]) -> str:
    """Return the text of the type of an enum's values, which travel in place of the members.

    Returns "int" for a flag or an empty enum; otherwise a Literal of the values that it can hold, and the types of the
    others.
    """
    if issubclass(cls, enum.Flag) or not len(cls):
        return "int"
    values = [member.value for member in cls]
    named = ", ".join(repr(value) for value in values if type(value) in _LITERAL)
    others = [text for value in values if type(value) not in _LITERAL for text in received_texts(type(value))]
    return union_text([*([f"Literal[{named}]"] if named else []), *others])


def _received_class(cls: type) -> type | None:
    """Return the class as which an instance of ``cls`` arrives; None if it is unknown or cannot be sent."""
    bases = [base if isinstance(base, type) else imported(base) for base in _BASES]
    if cls in _ZONES or cls in bases or issubclass(cls, getattr(sys.modules.get("numpy"), "generic", ())):
        return cls
    if not any(extension.covers(cls) and _names_base_of(extension, cls) for extension in ALL_EXTENSIONS):
        return None
    return next((base for base in bases if base is not None and issubclass(cls, base)), None)


def _names_base_of(extension: Extension, cls: type) -> bool:
    """Return True if an extension has a writer for ``cls`` or a base class of it."""
    named = (kind if isinstance(kind, type) else imported(kind) for kind in extension.writers)
    return any(base is not None and issubclass(cls, base) for base in named)
