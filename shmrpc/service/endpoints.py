"""An endpoint: a function and the name by which it is called."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shmrpc.basics.checks import check_count
from shmrpc.service.interceptors import Interceptor
from shmrpc.service.signature import Signature
from shmrpc.wire.frames import Shape

#: Place where an endpoint's function runs: the server's event loop, a thread, or another process.
RunIn = Literal["loop", "thread", "process"]


class EndpointOptions(msgspec.Struct, frozen=True):
    """The options of ``@endpoint(...)``."""

    name: str | None = None
    run_in: RunIn = "loop"
    threads: int | None = None
    #: Interceptors of the service that the endpoint was included from.
    interceptors: tuple[Interceptor, ...] = ()


class Endpoint:
    """A function and the name by which it is called.

    Raises TypeError for a function with a declaration that an endpoint cannot have, and TypeError or ValueError for
    options that do not fit the function.
    """

    def __init__(self, service: str, name: str, function: Callable[..., Any], options: EndpointOptions) -> None:
        self.name = name
        self.function = function = _unwrap_callable(function)
        self.run_in: RunIn = options.run_in
        #: Number of threads of its own; None if it uses the threads of its service.
        self.threads = options.threads
        #: Interceptors of the endpoint, inside those of its service.
        self.interceptors = options.interceptors
        self.signature = Signature(service, name, function)
        #: True for an ``async def`` with a single result.
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._check_run_in()

    @property
    def shape(self) -> Shape:
        """Streams of the endpoint, to the caller and from it."""
        return Shape(self.signature.streams, tuple(self.signature.input_positions.items()))

    def _check_run_in(self) -> None:
        """Raise ValueError or TypeError for options that do not fit the function."""
        what = f"endpoint {self.signature.name!r}"
        if self.run_in not in ("loop", "thread", "process"):
            raise ValueError(f"{what}: run_in must be 'loop', 'thread' or 'process', not {self.run_in!r}")
        if self.threads is not None:
            if self.run_in != "thread":
                raise TypeError(f"{what}: threads= is for run_in='thread', not for run_in={self.run_in!r}")
            check_count(f"{what}: threads", self.threads, 1)
        if self.run_in == "loop":
            return
        if self.is_coroutine or inspect.isasyncgenfunction(self.function) or self.signature.inputs:
            raise TypeError(f"{what}: run_in={self.run_in!r} is for a plain def; an async def runs in the loop")
        if self.run_in == "thread":
            return
        if self.signature.writable:
            raise TypeError(f"{what}: a Writable parameter needs this process; use run_in='loop' or 'thread'")
        if self.signature.streams:
            raise TypeError(f"{what}: a generator cannot run in another process; use run_in='thread'")
        if inspect.isfunction(self.function) and "<locals>" in self.function.__qualname__:
            raise TypeError(
                f"{what}: run_in='process' imports the function by its name, and {self.function.__qualname__} is "
                "within a function: define it at the top of a module, or use run_in='thread'"
            )

    def check_reachable(self) -> None:
        """Raise TypeError if another process must run the function but cannot import it. The module must be loaded."""
        if self.run_in != "process":
            return
        import pickle  # Rarely needed.

        try:
            pickle.dumps(self.function)
        except Exception as error:  # Pickling may run arbitrary code.
            raise TypeError(
                f"endpoint {self.signature.name!r}: run_in='process' pickles the function by its name, and that fails: "
                f"{error}; define it at the top of a module, the endpoint's decorator outermost, or use run_in='thread'"
            ) from None


def _unwrap_callable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a staticmethod, or the ``__call__`` of an object; any other callable unchanged."""
    if isinstance(function, staticmethod):
        return function.__func__
    by_itself = isinstance(function, functools.partial) or inspect.isroutine(function)
    return function if by_itself else getattr(function, "__call__", function)  # noqa: B004 (its own method)


def check_function(service: str, function: Any) -> None:
    """Raise TypeError for an object that cannot be an endpoint of a service."""
    what = f"endpoint of {service!r}: expected a function, got"
    if isinstance(function, str):
        raise TypeError(f"{what} {function!r}; a name is given as @service.endpoint(name={function!r})")
    if isinstance(function, type):
        raise TypeError(
            f"{what} the class {function.__qualname__}; mark its methods with @shmrpc.endpoint, and offer those of an "
            f"object: service.include({function.__name__}())"
        )
    if isinstance(function, (classmethod, property, functools.cached_property)):
        raise TypeError(
            f"{what} a {type(function).__name__}, which belongs to a class; "
            "mark methods with @shmrpc.endpoint, and offer those of an object: service.include(MyClass())"
        )
    if not callable(function):
        raise TypeError(f"{what} {function!r}")
    owner = defining_class(function)
    if owner and self_parameter(function):
        raise TypeError(
            f"{what} the method {owner}.{function.__name__}, which needs an object for its "
            f"{self_parameter(function)!r}; "
            f"mark it with @shmrpc.endpoint, and offer the methods of an object: service.include({owner}())"
        )


def defining_class(function: Any) -> str:
    """Return the name of the class in whose body a plain function was defined; "" if there is none."""
    if not isinstance(function, types.FunctionType):
        return ""
    *_, owner, _name = ["", "", *function.__qualname__.split(".")]
    return "" if owner == "<locals>" else owner


def self_parameter(function: types.FunctionType) -> str:
    """Return the name of a method's first parameter if it is ``self`` or ``cls``; "" otherwise."""
    first = function.__code__.co_varnames[: min(1, function.__code__.co_argcount)]
    return first[0] if first and first[0] in ("self", "cls") else ""
