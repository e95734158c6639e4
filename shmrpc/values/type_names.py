"""Names of types for people, as in source code."""

from __future__ import annotations

import sys
import typing
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from shmrpc.values.aliases import UNIONS
from shmrpc.values.sharing import WRITABLE
from shmrpc.values.type_repr import LIBRARIES, class_text, public_name

#: Modules that are left out before the name of a type.
_SILENT: Final = {"builtins", "typing", "typing_extensions", "collections.abc", "types"}


def type_name(kind: Any) -> str:
    """Return the name of a type as in source code, with the module if it is Python's or a known library's."""
    if kind is None or kind is type(None):
        return "None"
    if kind is ...:
        return "..."
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [repr(each).replace("msgspec.", "") for each in arguments[1:] if isinstance(each, msgspec.Meta)]
        name = type_name(arguments[0])
        if WRITABLE in arguments[1:]:
            name = f"Writable[{name}]"
        return f"Annotated[{', '.join([name, *limits])}]" if limits else name
    if origin in UNIONS:
        return " | ".join(type_name(each) for each in arguments if each is not msgspec.UnsetType)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (typing.Required, typing.NotRequired):
        return type_name(arguments[0])
    if origin is not None and getattr(origin, "__module__", "") == "numpy":
        return class_text(kind)
    if origin is not None:
        return f"{_plain_name(origin)}[{', '.join(map(type_name, arguments)) or '()'}]"
    return _plain_name(kind)


def _plain_name(kind: Any) -> str:
    """Return the name of a type without its type arguments."""
    name = getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None)
    if not isinstance(name, str):
        return str(kind).replace("typing.", "")
    module = getattr(kind, "__module__", "builtins")
    if isinstance(kind, type) and module in sys.stdlib_module_names and module not in _SILENT:
        return f"{module}.{name}"
    if module.partition(".")[0] in LIBRARIES:
        return public_name(kind) or name
    return name.rpartition("<locals>.")[2]
