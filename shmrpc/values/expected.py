"""Native decoders for declared types: MessagePack's own, memoryviews, NumPy arrays and containers of them."""

from __future__ import annotations

import sys
import typing
from typing import Any, Final, get_args, get_origin

from shmrpc import _core
from shmrpc.values.aliases import UNIONS
from shmrpc.values.convert import declared_array, is_dtype
from shmrpc.values.extension import imported

#: Name of each scalar type in the core.
_SCALARS: Final[dict[Any, str]] = {
    None: "None",
    type(None): "None",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    memoryview: "memoryview",
    Any: "any",
}
#: Full types of containers declared without item types.
_BARE: Final[dict[Any, Any]] = {list: list[Any], tuple: tuple[Any, ...], dict: dict[Any, Any]}
#: Byte order of the machine, in dtypes.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
#: Dtypes of the arrays that the core decodes, as they are encoded.
_NUMBERS: Final = [
    *("|b1", "|i1", "|u1"),
    *(_ORDER + text for text in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")),
]
#: Largest depth of containers that the core decodes.
_MAX_DEPTH: Final = 8


def expected(kind: Any, depth: int = 0) -> _core.ExpectedType | None:
    """Return the native decoder for a declared type, or None if the core does not support the type.

    ``depth`` is the number of containers around the type.
    """
    if depth == _MAX_DEPTH:
        return None
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    scalars: list[str] = []
    containers: list[Any] = []
    for each in get_args(kind) if get_origin(kind) in UNIONS else (kind,):
        try:
            scalars.append(_SCALARS[each])
        except (KeyError, TypeError):  # TypeError: a part of the type cannot be hashed.
            containers.append(each)
    if not containers:
        return _core.ExpectedType(scalars)
    if len(containers) == 1 and _is_array(containers[0]):
        return _expect_array(scalars, containers[0])
    if len(containers) > 1 or "any" in scalars:
        return None
    container = containers[0]
    if isinstance(container, type):  # Other types need not be hashable.
        container = _BARE.get(container, container)
    return _expect_container(scalars, container, depth + 1)


def _is_array(kind: Any) -> bool:
    """Return True for NumPy's ndarray, also with type arguments; False without NumPy imported."""
    return (get_origin(kind) or kind) is imported("numpy.ndarray")


def _expect_array(scalars: list[str], kind: Any) -> _core.ExpectedType | None:
    """Return the native decoder for a union of scalars and an array type; None if the core does not support it."""
    axes, elements = declared_array(kind)
    if axes is not None or "any" in scalars:
        return None
    np: Any = sys.modules["numpy"]
    dtypes = [text for text in _NUMBERS if any(is_dtype(np, np.dtype(text), each) for each in elements)]
    return _core.ExpectedType([*scalars, "ndarray"], dtypes=dtypes if elements else None)


def _expect_container(scalars: list[str], kind: Any, depth: int) -> _core.ExpectedType | None:
    """Return the native decoder for a union of scalars and a container; None if the core does not support it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and args[-1:] != (Ellipsis,):
        items = [item for each in args if (item := expected(each, depth)) is not None]
        return _core.ExpectedType(scalars, items=items) if len(items) == len(args) else None
    if origin not in (list, tuple, dict) or not args:
        return None
    inner = expected(args[0], depth)
    if origin is dict:
        values = expected(args[1], depth)
        return None if inner is None or values is None else _core.ExpectedType(scalars, keys=inner, values=values)
    return None if inner is None else _core.ExpectedType(scalars, each=inner, is_tuple=origin is tuple)
