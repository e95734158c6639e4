"""Declared types that the core knows: MessagePack's own, memoryviews, NumPy's arrays, and containers of them."""

from __future__ import annotations

import sys
import typing
from typing import Any, Final, get_args, get_origin

from shmrpc import _core
from shmrpc.values.aliases import UNIONS
from shmrpc.values.convert import declared_array, is_dtype
from shmrpc.values.extension import imported

#: The core's name for each type of single values.
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
#: A container without the types of what is in it.
_BARE: Final[dict[Any, Any]] = {list: list[Any], tuple: tuple[Any, ...], dict: dict[Any, Any]}
#: The order of the bytes in a number.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
#: The dtypes of the arrays that the core knows, as they travel.
_NUMBERS: Final = [
    *("|b1", "|i1", "|u1"),
    *(_ORDER + text for text in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")),
]
#: Deeper ones are not worth it.
_MAX_DEPTH: Final = 8


def expected(kind: Any, depth: int = 0) -> _core.Expected | None:
    """What the core is to read for a declared type; None if it does not know the type."""
    if depth == _MAX_DEPTH:
        return None
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    scalars: list[str] = []
    containers: list[Any] = []
    for each in get_args(kind) if get_origin(kind) in UNIONS else (kind,):
        try:
            scalars.append(_SCALARS[each])
        except (KeyError, TypeError):  # TypeError: something in it cannot be hashed.
            containers.append(each)
    if not containers:
        return _core.Expected(scalars)
    if len(containers) == 1 and _is_array(containers[0]):
        return _array(scalars, containers[0])
    if len(containers) > 1 or "any" in scalars:
        return None
    return _container(scalars, _BARE.get(containers[0], containers[0]), depth + 1)


def _is_array(kind: Any) -> bool:
    return (get_origin(kind) or kind) is imported("numpy.ndarray")


def _array(scalars: list[str], kind: Any) -> _core.Expected | None:
    axes, elements = declared_array(kind)
    if axes is not None or "any" in scalars:
        return None
    np: Any = sys.modules["numpy"]
    fitting = [text for text in _NUMBERS if any(is_dtype(np, np.dtype(text), each) for each in elements)]
    return _core.Expected([*scalars, "ndarray"], dtypes=fitting if elements else None)


def _container(scalars: list[str], kind: Any, depth: int) -> _core.Expected | None:
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and args[-1:] != (Ellipsis,):
        items = [item for each in args if (item := expected(each, depth)) is not None]
        return _core.Expected(scalars, items=items) if len(items) == len(args) else None
    if origin not in (list, tuple, dict) or not args:
        return None
    inner = expected(args[0], depth)
    if origin is dict:
        values = expected(args[1], depth)
        return None if inner is None or values is None else _core.Expected(scalars, keys=inner, values=values)
    return None if inner is None else _core.Expected(scalars, each=inner, is_tuple=origin is tuple)
