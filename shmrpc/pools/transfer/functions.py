"""The functions that workers run. Each is sent once to each worker, and has a number from then on."""

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
from shmrpc.pools.transfer.main_module import MAIN, ByValuePickler, is_at
from shmrpc.pools.transfer.referents import Referents
from shmrpc.values.pickling import allow_cloudpickle

#: Maximum number of functions in a registry, which then drops the oldest one.
_MAX_FUNCTIONS: Final = 512
#: A module and a name in it; or two empty strings, a pickle, and the buffers beside it.
FunctionReference = tuple[str, str, bytes, list[bytes]]


class TaskFunction:
    """A function of a pool, with its number, the reference that workers load, and the duration of its tasks.

    The constructor raises EncodeError as :func:`make_reference` does.
    """

    __slots__ = (
        "__weakref__",
        "function",
        "is_async",
        "name",
        "number",
        "reference",
        "referents",
        "seconds",
        "submit_sources",
    )

    def __init__(self, number: int, function: Callable[..., Any], by_value: Callable[[], ByValuePickler]) -> None:
        self.number, self.function = number, function
        self.name = getattr(function, "__qualname__", None) or repr(function)
        self.is_async = inspect.iscoroutinefunction(_unwrap(function))
        #: Objects that the function referred to when it was pickled; None if workers find it by name.
        self.referents: Referents | None = None
        self.reference = make_reference(function, by_value)
        if not self.reference[0]:
            self.referents = Referents(function, by_value())
        #: Sources of its submitted tasks: True for tasks of one argument, False for others.
        self.submit_sources: dict[bool, Any] = {}
        #: Moving average of the duration of a task, in seconds; None until the first task ends.
        self.seconds: float | None = None

    def record_duration(self, seconds: float) -> None:
        """Include the duration of a task, in seconds, in the moving average."""
        self.seconds = seconds if self.seconds is None else 0.75 * self.seconds + 0.25 * seconds


def _unwrap(function: Any) -> Any:
    """Return the function that a call runs: the one inside partial objects, or the ``__call__`` of a class."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


class FunctionRegistry:
    """The functions that a pool has run.

    ``on_dropped`` is called with the number of a function, in any thread, once nothing refers to the function.
    """

    def __init__(self, on_dropped: Callable[[int], None]) -> None:
        self._on_dropped = on_dropped
        self._numbers = itertools.count(1)
        self._known: OrderedDict[Any, TaskFunction] = OrderedDict()
        #: Names that workers have of the program's own module.
        self.program_names: frozenset[str] = frozenset()
        self._by_value: ByValuePickler | None = None

    def by_value_pickler(self) -> ByValuePickler:
        """Return the pickler of functions that workers cannot find by name."""
        if self._by_value is None or self._by_value.names is not self.program_names:
            self._by_value = ByValuePickler(self.program_names)
        return self._by_value

    def lookup(
        self, function: Callable[..., Any] | TaskFunction, args: tuple[Any, ...]
    ) -> tuple[TaskFunction, tuple[Any, ...]]:
        """Return a function as a registered TaskFunction, and its arguments.

        For a method, return the TaskFunction of :func:`call_method`, and add the object and the name of the method to
        the arguments: the object may change between calls. Raises TypeError for an object that is no function, and
        EncodeError for a function that cannot be sent.
        """
        try:
            known = self._known.get(function)
            if known is not None and known.function is function and known.referents is None:
                return known, args
        except TypeError:  # The function is not hashable.
            pass
        return self._lookup_slow(function, args)

    def _lookup_slow(self, function: Any, args: tuple[Any, ...]) -> tuple[TaskFunction, tuple[Any, ...]]:
        """Look up a function that is new, a method, sent by value, or not hashable: see :meth:`lookup`."""
        if type(function) is TaskFunction:  # The caller has looked up the function.
            return function, args
        key: Any = function
        if isinstance(function, types.MethodType):
            args = (function.__self__, function.__name__, *args)
            function = key = call_method
        try:
            known = self._known.get(key)
        except TypeError:  # The function is not hashable.
            key = id(function)
            known = self._known.get(key)
        if known is None or known.function is not function:
            if not callable(function):
                raise TypeError(f"expected a function, got {function!r}")
            return self._register(key, TaskFunction(next(self._numbers), function, self.by_value_pickler)), args
        if known.referents is not None and not known.referents.are_unchanged():
            renewed = TaskFunction(next(self._numbers), function, self.by_value_pickler)
            if renewed.reference != known.reference:
                renewed.seconds = known.seconds
                return self._register(key, renewed), args
        return known, args

    def _register(self, key: Any, known: TaskFunction) -> TaskFunction:
        """Add a function, and drop the oldest one if there are too many; return the added one."""
        self._known[key] = known
        weakref.finalize(known, self._on_dropped, known.number).atexit = False
        if len(self._known) > _MAX_FUNCTIONS:
            self._known.popitem(last=False)
        return known


def call_method(target: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of an object by its name, in a worker; return its result. Raises what the method raises."""
    return getattr(target, name)(*args, **kwargs)


def is_importable(function: Callable[..., Any]) -> bool:
    """Return True if a module, which may be the program's own, has the function under its name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return isinstance(module, str) and isinstance(name, str) and is_at(module, name, function)


def make_reference(function: Callable[..., Any], by_value: Callable[[], ByValuePickler]) -> FunctionReference:
    """Return a reference by which a worker loads a function: its module and name, or else a pickle.

    Raises EncodeError if the function can neither be imported nor pickled.
    """
    if is_importable(function) and (function.__module__ != MAIN or by_value().has_by_name(function)):
        return function.__module__, function.__qualname__, b"", []
    try:
        return "", "", *by_value().dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise EncodeError(
            f"{name}() cannot be sent to a worker: it can neither be imported there nor be pickled with what it refers "
            f"to: {type(error).__name__}: {error}"
        ) from error


def load_function(reference: FunctionReference) -> Callable[..., Any]:
    """Return the function of a reference, in a worker. Raises what its import or its pickle raises."""
    module, name, pickled, buffers = reference
    if module:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))  # type: ignore[return-value]
    allow_cloudpickle()
    # Copies each buffer, so that the function may write to it, as in the pool's process.
    return pickle.loads(pickled, buffers=map(bytearray, buffers))  # type: ignore[no-any-return]
