"""The functions that workers run: each is sent once to each worker, and has a number from then on."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pickle
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from shmrpc.errors import EncodeError

#: Functions that a pool knows at a time: of more, those that it has met last.
_KEPT: Final = 512
#: A module and a name in it, and a pickle for a worker that does not find it there; or the pickle alone.
Reference = tuple[str, str, bytes] | bytes


class Function:
    """A function as its pool knows it."""

    __slots__ = ("__weakref__", "function", "is_async", "name", "number", "reference", "seconds", "submitted")

    def __init__(self, number: int, function: Callable[..., Any]) -> None:
        self.number, self.function = number, function
        self.name = getattr(function, "__qualname__", None) or repr(function)
        self.is_async = inspect.iscoroutinefunction(_unwrapped(function))
        self.reference = reference_of(function)
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

    def of(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
        """The function to run, and its arguments: the object of a method is one, since it may change between calls."""
        try:
            known = self._known.get(function)
            if known is not None and known.function is function:
                return known, args
        except TypeError:  # It has no hash.
            pass
        return self._found(function, args)

    def _found(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
        """The same for one that is not known, is a method, or has no hash."""
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
            known = self._known[key] = Function(next(self._numbers), function)
            weakref.finalize(known, self._dropped, known.number).atexit = False
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known, args


def call_method(target: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of an object that has come to the worker with the task."""
    return getattr(target, name)(*args, **kwargs)


def reference_of(function: Callable[..., Any]) -> Reference:
    """By what a worker gets a function: its module and its name, if it is found there; else a pickle.

    Raises EncodeError for one that cannot be pickled.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _is_at(module, name, function):
        return _pickled(function)
    # The program itself is imported by workers as multiprocessing does it, without what it guards by its name.
    return module, name, _pickled(function) if module == "__main__" else b""


def find(reference: Reference) -> Callable[..., Any]:
    """The function, in a worker. Raises what importing its module raises, or reading its pickle."""
    if isinstance(reference, bytes):
        return pickle.loads(reference)  # type: ignore[no-any-return]
    module, name, pickled = reference
    try:
        return _find(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except AttributeError:
        if not pickled:
            raise
    return pickle.loads(pickled)  # type: ignore[no-any-return]


def _pickled(function: Callable[..., Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # It takes a while, and most functions need none.

    try:
        return cloudpickle.dumps(function)  # type: ignore[no-any-return]
    except Exception as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise EncodeError(
            f"{name}() cannot be sent to a worker: it cannot be imported there, and a pickle of it and of what it "
            f"refers to cannot be made: {type(error).__name__}: {error}"
        ) from error


def _is_at(module: str, name: str, function: Callable[..., Any]) -> bool:
    try:
        return _find(sys.modules[module], name) is function
    except (KeyError, AttributeError):
        return False


def _find(module: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), module)
