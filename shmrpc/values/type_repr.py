"""Types in Python's notation, for descriptions of services."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NewType, get_args, get_origin

from shmrpc.values.aliases import UNIONS

#: Libraries whose classes travel. Texts name classes of no other library, which the reader may not have.
LIBRARIES: Final = ("numpy", "pyarrow", "torch")

#: Parameters that are added to a class without any.
_PARAMETERS: Final[dict[str, str]] = {
    "list": "Any",
    "set": "Any",
    "frozenset": "Any",
    "dict": "Any, Any",
    "tuple": "Any, ...",
    "array.array": "Any",
    "collections.Counter": "Any",
    "collections.OrderedDict": "Any, Any",
    "collections.defaultdict": "Any, Any",
    **dict.fromkeys(["numpy.ndarray", "numpy.matrix", "numpy.memmap", "numpy.rec.recarray"], "Any, Any"),
    "numpy.complexfloating": "Any, Any",
    **dict.fromkeys(
        [f"numpy.{name}" for name in ("number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating")],
        "Any",
    ),
}


def union_text(alternatives: Iterable[str]) -> str:
    """Return the text of a union without duplicates: "Any" if a member is Any, "" if there are no members."""
    unique = list(dict.fromkeys(alternatives))
    return "Any" if "Any" in unique else " | ".join(unique)


def tuple_text(items: Iterable[str]) -> str:
    """Return the text of a tuple with these items."""
    return f"tuple[{', '.join(items) or '()'}]"


def list_text(items: Iterable[str]) -> str:
    """Return the text of a list whose items have one of these types."""
    return f"list[{union_text(items) or 'Any'}]"


def class_text(kind: Any) -> str:
    """Return the text of a type with its parameters; "Any" for a class outside of Python and the known libraries."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return class_text(args[0])
    if isinstance(kind, NewType):
        return class_text(kind.__supertype__)
    if kind is Any or kind is ...:
        return "Any" if kind is Any else "..."
    if kind is None or kind is types.NoneType:
        return "None"
    if origin in UNIONS:
        return union_text(map(class_text, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    name = public_name(origin or kind)
    if name is None:
        return "Any"
    if name == "numpy.ndarray" and len(args) == 2 and (scalar := _scalar_of_any_shape(*args)):
        return f"numpy.typing.NDArray[{scalar}]"
    parameters = ", ".join(map(class_text, args)) if origin else _PARAMETERS.get(name)
    return name if parameters is None else f"{name}[{parameters or '()'}]"


def public_name(cls: object) -> str | None:
    """Return the name of a class with the module to import; None if it is not Python's or a known library's."""
    if not isinstance(cls, type):
        return None
    module, name = cls.__module__.partition(".")[0], cls.__name__
    if module == "builtins":
        return name
    if module not in LIBRARIES and module not in sys.stdlib_module_names:
        return None
    # Libraries seldom define a class in the module from which it is imported.
    if getattr(sys.modules.get(module), name, None) is cls:
        return f"{module}.{name}"
    return f"{cls.__module__}.{name}" if module not in LIBRARIES and cls.__qualname__ == name else None


def _scalar_of_any_shape(shape: Any, dtype: Any) -> str | None:
    """Return the scalar type of an array of any shape; None if the shape is declared, or the dtype is unusual."""
    lengths = get_args(shape) if get_origin(shape) is tuple else (shape, ...)
    if len(lengths) != 2 or lengths[1] is not ... or lengths[0] not in (Any, int):
        return None
    if public_name(get_origin(dtype) or dtype) == "numpy.dtype":
        return class_text(get_args(dtype)[0]) if get_args(dtype) else "Any"
    return "Any" if dtype is Any else None
