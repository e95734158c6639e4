"""Declared types as they are: what ``type Name = ...`` names, wherever it stands, in place of the name.

NumPy's ``NDArray`` is such an alias, too, on CPython 3.12 and later.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

#: What `get_origin` says of a union, as ``Union[A, B]`` and as ``A | B``.
UNIONS: Final = (typing.Union, types.UnionType)


def type_hints(of: Any) -> dict[str, Any]:
    """The types that a function or a class declares, without aliases. Raises NameError as `typing.get_type_hints`."""
    return {name: without_aliases(hint) for name, hint in typing.get_type_hints(of, include_extras=True).items()}


def without_aliases(kind: Any) -> Any:
    """The very same type if there is no alias in it. Where one comes again within itself is Any: no codec has such."""
    return _without(kind, ())


def with_parameters(kind: Any, given: Mapping[Any, Any]) -> Any:
    """A type in which these stand for its type parameters."""
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    return kind[tuple(given.get(each, each) for each in parameters)] if parameters else kind


def union(kinds: Iterable[Any]) -> Any:
    """The type of what is of any of these."""
    return functools.reduce(operator.or_, kinds)


def _without(kind: Any, within: tuple[Any, ...]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    alias = origin if _is_alias(origin) else kind
    if _is_alias(alias):
        if alias in within:
            return Any
        meant = with_parameters(alias.__value__, dict(zip(alias.__type_params__, args, strict=False)))
        return _without(meant, (*within, alias))
    if origin is typing.Annotated:
        inner = _without(args[0], within)
        return kind if inner is args[0] else typing.Annotated[inner, *args[1:]]
    if not args or origin is typing.Literal:
        return kind
    inside = tuple(_without(each, within) for each in args)
    if all(new is old for new, old in zip(inside, args, strict=True)):
        return kind
    if origin in UNIONS:
        return union(inside)
    return origin[inside]


def _is_alias(kind: Any) -> bool:
    return type(kind).__name__ == "TypeAliasType"  # Of typing, or of typing_extensions.
