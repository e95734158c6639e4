"""Declared types without aliases, such as ``type Name = ...``.

On CPython 3.12 and later, NumPy's ``NDArray`` is such an alias, too.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

#: Results of ``get_origin`` for ``Union[A, B]`` and for ``A | B``.
UNIONS: Final = (typing.Union, types.UnionType)


def type_hints(of: Any) -> dict[str, Any]:
    """Return the declared types of a function or a class by name, without aliases, with the metadata of ``Annotated``.

    The result of a function is under ``return``. Raises as `typing.get_type_hints` does.
    """
    return {name: without_aliases(hint) for name, hint in typing.get_type_hints(of, include_extras=True).items()}


def with_parameters(kind: Any, given: Mapping[Any, Any]) -> Any:
    """Return a type with its type parameters replaced by the types in ``given``; the others stay."""
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    return kind[tuple(given.get(each, each) for each in parameters)] if parameters else kind


def union(kinds: Iterable[Any]) -> Any:
    """Return the union of one or more types. Raises TypeError for none."""
    return functools.reduce(operator.or_, kinds)


def without_aliases(kind: Any, within: tuple[Any, ...] = ()) -> Any:
    """Return a type without aliases; the same object if it has none. An alias within itself becomes Any.

    ``within``: the aliases around the type. Raises the errors of evaluating an alias, such as NameError.
    """
    origin, args = get_origin(kind), get_args(kind)
    alias = origin if _is_alias(origin) else kind
    if _is_alias(alias):
        if alias in within:
            return Any
        meant = with_parameters(alias.__value__, dict(zip(alias.__type_params__, args, strict=False)))
        return without_aliases(meant, (*within, alias))
    if origin is typing.Annotated:
        inner = without_aliases(args[0], within)
        return kind if inner is args[0] else typing.Annotated[inner, *args[1:]]
    if not args or origin is typing.Literal:
        return kind
    inside = tuple(without_aliases(each, within) for each in args)
    if all(new is old for new, old in zip(inside, args, strict=True)):
        return kind
    if origin in UNIONS:
        return union(inside)
    return origin[inside]


def _is_alias(kind: Any) -> bool:
    """Return True for an alias declared by ``type Name = ...``, without its type arguments."""
    return type(kind).__name__ == "TypeAliasType"  # The class of typing, or of typing_extensions.
