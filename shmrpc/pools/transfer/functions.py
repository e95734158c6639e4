"""The functions that workers run: each is sent once to each worker, and has a number from then on."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pickle
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from shmrpc.errors import EncodeError
from shmrpc.pools.transfer.main_module import MAIN, ByValue, is_at
from shmrpc.pools.transfer.referents import Referents
from shmrpc.values.pickling import allow_cloudpickle

#: Functions that a pool knows at a time: of more, those that it has met last.
_KEPT: Final = 512
#: A module and a name in it; or two empty texts, a pickle and the buffers beside it.
Reference = tuple[str, str, bytes, list[bytes]]


class Function:
    """A function as its pool knows it."""

    __slots__ = (
        "__weakref__",
        "function",
        "is_async",
        "name",
        "number",
        "reference",
        "referents",
        "seconds",
        "submitted",
    )

    def __init__(self, number: int, function: Callable[..., Any], by_value: Callable[[], ByValue]) -> None:
        self.number, self.function = number, function
        self.name = getattr(function, "__qualname__", None) or repr(function)
        self.is_async = inspect.iscoroutinefunction(_unwrapped(function))
        #: The objects that the function referred to when it was pickled; None if workers find it by name.
        self.referents: Referents | None = None
        self.reference = reference_of(function, by_value)
        if not self.reference[0]:
            self.referents = Referents(function, by_value())
        #: What was submitted of it: tasks of one argument, and others.
        self.submitted: dict[bool, Any] = {}
        #: A moving average of the time that a call takes; None as long as none has ended.
        self.seconds: float | None = None

    def took(self, seconds: float) -> None:
        """Takes note of how long a call took."""
        self.seconds = seconds if self.seconds is None else 0.75 * self.seconds + 0.25 * seconds


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


class Functions:
    """The functions that were given to a pool. ``dropped`` is called when nothing has one any more, in any thread."""

    def __init__(self, dropped: Callable[[int], None]) -> None:
        self._dropped = dropped
        self._numbers = itertools.count(1)
        self._known: OrderedDict[Any, Function] = OrderedDict()
        #: The names that workers have of the program.
        self.names: frozenset[str] = frozenset()
        self._by_value: ByValue | None = None

    def by_value(self) -> ByValue:
        """Return the pickler of functions that workers cannot find."""
        if self._by_value is None or self._by_value.names is not self.names:
            self._by_value = ByValue(self.names)
        return self._by_value

    def of(self, function: Callable[..., Any] | Function, args: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
        """The function to run, and its arguments: the object of a method is one, since it may change between calls."""
        try:
            known = self._known.get(function)
            if known is not None and known.function is function and known.referents is None:
                return known, args
        except TypeError:  # It has no hash.
            pass
        return self._found(function, args)

    def _found(self, function: Any, args: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
        """The same for one that is not known, is a method, is sent by value, or has no hash."""
        if type(function) is Function:  # It was found before.
            return function, args
        key: Any = function
        if isinstance(function, types.MethodType):
            args = (function.__self__, function.__name__, *args)
            function = key = call_method
        try:
            known = self._known.get(key)
        except TypeError:  # It has no hash.
            key = id(function)
            known = self._known.get(key)
        if known is None or known.function is not function:
            if not callable(function):
                raise TypeError(f"expected a function, got {function!r}")
            return self._keep(key, Function(next(self._numbers), function, self.by_value)), args
        if known.referents is not None and not known.referents.are_same():
            renewed = Function(next(self._numbers), function, self.by_value)
            if renewed.reference != known.reference:
                renewed.seconds = known.seconds
                return self._keep(key, renewed), args
        return known, args

    def _keep(self, key: Any, known: Function) -> Function:
        self._known[key] = known
        weakref.finalize(known, self._dropped, known.number).atexit = False
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known


def call_method(target: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of an object that has come to the worker with the task."""
    return getattr(target, name)(*args, **kwargs)


def is_by_name(function: Callable[..., Any]) -> bool:
    """Return True if a module, which may be the program's own, has the function under its name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return isinstance(module, str) and isinstance(name, str) and is_at(module, name, function)


def reference_of(function: Callable[..., Any], by_value: Callable[[], ByValue]) -> Reference:
    """By what a worker gets a function: its module and its name, if it is found there; else a pickle.

    Raises EncodeError for one that cannot be pickled.
    """
    if is_by_name(function) and (function.__module__ != MAIN or by_value().has(function)):
        return function.__module__, function.__qualname__, b"", []
    try:
        return "", "", *by_value().dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise EncodeError(
            f"{name}() cannot be sent to a worker: it cannot be imported there, and a pickle of it and of what it "
            f"refers to cannot be made: {type(error).__name__}: {error}"
        ) from error


def find(reference: Reference) -> Callable[..., Any]:
    """The function, in a worker. Raises what importing its module raises, or reading its pickle."""
    module, name, pickled, buffers = reference
    if module:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))  # type: ignore[return-value]
    allow_cloudpickle()
    # Each buffer is copied into memory that the function may write, as it may its own.
    return pickle.loads(pickled, buffers=map(bytearray, buffers))  # type: ignore[no-any-return]
