"""The objects that a pickled function refers to, and changes of them since the function was pickled."""

from __future__ import annotations

import enum
import functools
import logging
import types
from typing import Any, Final

from shmrpc.pools.transfer.main_module import MAIN, ByValuePickler, is_at

#: Types of values that never change.
_CONSTANTS: Final = (
    types.NoneType,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    types.EllipsisType,
    types.NotImplementedType,
)
#: Types of values that are sent by their names.
_SENT_BY_NAME: Final = (types.ModuleType, logging.Logger)
#: Marker of a variable without a value.
_UNSET: Final = object()


class Referents:
    """The objects that a function refers to: its variables, the variables of functions among them, and so on."""

    def __init__(self, function: Any, by_value: ByValuePickler) -> None:
        self._by_value = by_value
        #: Variables as a namespace and a name, or a cell and ""; and their values.
        self._variables: list[tuple[Any, str, Any]] = []
        #: Functions, and the code, defaults and attributes of each.
        self._functions: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        #: True if a comparison of identities can show that nothing has changed.
        self._is_constant = True
        self._visited: set[int] = set()
        self._add(function)
        if not self._is_constant:  # The function is pickled for each call, so no comparison is needed.
            self._variables.clear()
            self._functions.clear()
        self._visited.clear()

    def are_unchanged(self) -> bool:
        """Return True if no object has changed since. After False, only a new pickle shows if one has changed."""
        return (
            self._is_constant
            and all(_read_variable(scope, name) is value for scope, name, value in self._variables)
            and all(_are_identical(_parts(function), parts) for function, parts in self._functions)
        )

    def _add(self, value: Any) -> None:
        """Add a value and its parts. A value that may change in place clears ``_is_constant``."""
        kind = type(value)
        if (
            kind in _CONSTANTS
            or isinstance(value, _SENT_BY_NAME)
            or id(value) in self._visited
            or not self._is_constant
        ):
            return
        self._visited.add(id(value))
        if kind is types.FunctionType and not self._is_sent_by_name(value):
            self._add_function(value)
        elif kind in (tuple, frozenset):
            for each in value:
                self._add(each)
        elif kind is functools.partial:
            for each in (value.func, *value.args, *value.keywords.values()):
                self._add(each)
        elif isinstance(value, enum.Enum):
            self._add(kind)
        elif not self._is_sent_by_name(value):
            self._is_constant = False

    def _add_function(self, function: types.FunctionType) -> None:
        """Add a function, its defaults, attributes and variables."""
        self._functions.append((function, _parts(function)))
        for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(each)
        if function.__dict__:
            for each in function.__dict__.values():
                self._add(each)
        variables = [(function.__globals__, name) for name in _names(function.__code__)]
        for scope, name in [*variables, *((cell, "") for cell in function.__closure__ or ())]:
            value = _read_variable(scope, name)
            self._variables.append((scope, name, value))
            if value is not _UNSET:
                self._add(value)

    def _is_sent_by_name(self, value: Any) -> bool:
        """Return True for a function or a class that workers find by its name."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
            return True
        if not isinstance(module, str) or not isinstance(name, str):
            return False
        return self._by_value.has_by_name(value) if module == MAIN else is_at(module, name, value)


def _read_variable(scope: Any, name: str) -> Any:
    """Return the value of a variable in a namespace or a cell; return a marker if it has none."""
    if name:
        return scope.get(name, _UNSET)
    try:
        return scope.cell_contents
    except ValueError:
        return _UNSET


def _are_identical(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Return True if two tuples contain the same objects in the same order."""
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def _parts(function: types.FunctionType) -> tuple[Any, ...]:
    """Return the code, defaults and attributes of a function."""
    named, others = function.__kwdefaults__ or {}, function.__dict__
    return function.__code__, *(function.__defaults__ or ()), *named, *named.values(), *others, *others.values()


@functools.lru_cache(1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that the code, and the code of functions within it, may use as globals."""
    names = [*code.co_names]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            names += _names(each)
    return tuple(dict.fromkeys(names))
