"""The objects that a pickled function refers to, and whether they have changed since it was pickled."""

from __future__ import annotations

import enum
import functools
import logging
import types
from typing import Any, Final

from shmrpc.pools.transfer.main_module import MAIN, ByValue, is_at

#: Values that never change.
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
#: The same for those that are sent by their names.
_NAMED: Final = (types.ModuleType, logging.Logger)
#: In the place of a variable that has no value.
_UNSET: Final = object()


class Referents:
    """The variables of a function, of the functions that these name, and so on."""

    def __init__(self, function: Any, by_value: ByValue) -> None:
        self._by_value = by_value
        #: The variables by where they are: a namespace and a name, or a cell and ""; and their values.
        self._variables: list[tuple[Any, str, Any]] = []
        #: The functions, and what each had for code and defaults.
        self._functions: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        #: True if a comparison of identities shows that nothing has changed.
        self._is_constant = True
        self._met: set[int] = set()
        self._add(function)
        if not self._is_constant:  # They are pickled each time, so nothing of them is kept.
            self._variables.clear()
            self._functions.clear()
        self._met.clear()

    def are_same(self) -> bool:
        """Return True if nothing has changed. After False, only a new pickle shows if something has."""
        return (
            self._is_constant
            and all(_value(place, name) is value for place, name, value in self._variables)
            and all(_are_same(_parts(function), parts) for function, parts in self._functions)
        )

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in _CONSTANTS or isinstance(value, _NAMED) or id(value) in self._met or not self._is_constant:
            return
        self._met.add(id(value))
        if kind is types.FunctionType and not self._is_found(value):
            self._add_function(value)
        elif kind in (tuple, frozenset):
            for each in value:
                self._add(each)
        elif kind is functools.partial:
            for each in (value.func, *value.args, *value.keywords.values()):
                self._add(each)
        elif isinstance(value, enum.Enum):
            self._add(kind)
        elif not self._is_found(value):
            self._is_constant = False

    def _add_function(self, function: types.FunctionType) -> None:
        self._functions.append((function, _parts(function)))
        for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(each)
        if function.__dict__:
            for each in function.__dict__.values():
                self._add(each)
        places = [(function.__globals__, name) for name in _names(function.__code__)]
        for place, name in [*places, *((cell, "") for cell in function.__closure__ or ())]:
            value = _value(place, name)
            self._variables.append((place, name, value))
            if value is not _UNSET:
                self._add(value)

    def _is_found(self, value: Any) -> bool:
        """Return True for a function or a class that workers find by its name."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
            return True
        if not isinstance(module, str) or not isinstance(name, str):
            return False
        return self._by_value.has(value) if module == MAIN else is_at(module, name, value)


def _value(place: Any, name: str) -> Any:
    if name:
        return place.get(name, _UNSET)
    try:
        return place.cell_contents
    except ValueError:
        return _UNSET


def _are_same(these: tuple[Any, ...], those: tuple[Any, ...]) -> bool:
    return len(these) == len(those) and all(one is other for one, other in zip(these, those, strict=True))


def _parts(function: types.FunctionType) -> tuple[Any, ...]:
    """Return the code, defaults and attributes of a function."""
    named, others = function.__kwdefaults__ or {}, function.__dict__
    return function.__code__, *(function.__defaults__ or ()), *named, *named.values(), *others, *others.values()


@functools.lru_cache(1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that the code, and those of functions in it, may have as global ones."""
    names = [*code.co_names]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            names += _names(each)
    return tuple(dict.fromkeys(names))
