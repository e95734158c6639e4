"""Classes whose instances travel though msgspec does not know them: Python's own, NumPy's and other libraries'."""

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
from shmrpc.values.notation import class_text, union
from shmrpc.values.standard import ZONE

_ZONES: Final = (datetime.tzinfo, datetime.timezone, zoneinfo.ZoneInfo)
#: The classes whose instances travel. The names stand for classes of libraries, as in an extension.
_BASES: Final[tuple[type | str, ...]] = (
    *(float, int, str, list, dict),
    *(pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    *(kind for extension in ALL_EXTENSIONS if extension.code != ZONE for kind in extension.writers),
)
#: The types of values that a Literal can name.
_LITERAL: Final = (int, str, bytes, bool, types.NoneType)


def received(kind: Any) -> list[str]:
    """What arrives for an instance of a class; Any if the receiver must have registered the class."""
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or registry.entry_of(cls) is not None:
        return ["Any"]
    arriving = _arriving(cls)
    return ["Any"] if arriving is None else [class_text(kind if arriving is cls else arriving)]


def sent(kind: Any) -> list[str]:
    """What may be sent for a class."""
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or registry.entry_of(cls) is not None:
        return ["Any"]
    if cls is complex:
        return ["complex", "float"]
    arriving = _arriving(cls)
    if issubclass(cls, pathlib.PurePath):
        same = arriving is cls or (arriving is pathlib.Path and isinstance(pathlib.Path(), cls))
        return [class_text(arriving), "str"] if same else ["str"]
    return [class_text(kind)] if arriving is cls else ["Any"]


def values_of(cls: type[enum.Enum]) -> str:
    """The values of an enum: what arrives, and what may be sent."""
    if issubclass(cls, enum.Flag) or not len(cls):
        return "int"
    values = [member.value for member in cls]
    named = ", ".join(repr(value) for value in values if type(value) in _LITERAL)
    others = [text for value in values if type(value) not in _LITERAL for text in received(type(value))]
    return union([*([f"Literal[{named}]"] if named else []), *others])


def _arriving(cls: type) -> type | None:
    """The class as whose instance one of this class arrives; None if it is not known, or none is sent."""
    bases = [base if isinstance(base, type) else imported(base) for base in _BASES]
    if cls in _ZONES or cls in bases or issubclass(cls, getattr(sys.modules.get("numpy"), "generic", ())):
        return cls
    if not any(extension.covers(cls) and _names_base_of(extension, cls) for extension in ALL_EXTENSIONS):
        return None
    return next((base for base in bases if base is not None and issubclass(cls, base)), None)


def _names_base_of(extension: Extension, cls: type) -> bool:
    """Return whether an extension writes instances of a class from which this one is derived."""
    named = (kind if isinstance(kind, type) else imported(kind) for kind in extension.writers)
    return any(base is not None and issubclass(cls, base) for base in named)
