"""A service: functions that other processes may call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import keyword
import pickle
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, TypeVar, overload

from shmrpc.errors import LocalProtocolError
from shmrpc.host.runtime_dir import check_name
from shmrpc.service.interceptors import Interceptor, check_interceptors
from shmrpc.service.signature import Signature
from shmrpc.wire.frames import Shape

_F = TypeVar("_F", bound=Callable[..., Any])

#: Where an endpoint's function runs: in the server's loop, in a thread, or in another process.
RunIn = Literal["loop", "thread", "process"]
#: Makes the context that a server lives in; its value is ``current_call().state``.
Lifespan = Callable[["Service"], AbstractAsyncContextManager[Any]]

#: Calls of a service that may be in threads at once. They wait more than they compute: CPUs are no measure.
DEFAULT_THREADS: Final = 40
_MARK: Final = "__shmrpc_endpoint__"
#: The methods of both clients: an attribute of theirs is no endpoint.
CLIENT_METHODS: Final = frozenset(
    {
        "batch", "buffer", "call", "close", "connect", "describe", "empty", "map", "notify", "open", "resume",
        "send_batch", "stop", "unbind", "wait_for_ready", "with_options",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Options:
    """What ``@endpoint(...)`` was told."""

    name: str | None = None
    run_in: RunIn = "loop"
    threads: int | None = None
    #: Those of the service that it is included from.
    interceptors: tuple[Interceptor, ...] = ()


class Endpoint:
    """A function under the name by which it is called."""

    def __init__(self, service: str, name: str, function: Callable[..., Any], options: _Options) -> None:
        self.name = name
        self.function = function = _called(function)
        self.run_in: RunIn = options.run_in
        #: Of its own; None: it shares those of its service.
        self.threads = options.threads
        #: Inside those of its service.
        self.interceptors = options.interceptors
        self.signature = Signature(service, name, function)
        #: Whether it is an ``async def`` that gives one result.
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._check_run_in(service)

    @property
    def shape(self) -> Shape:
        """Which of its sides are streams."""
        return Shape(self.signature.streams, tuple(self.signature.input_places.items()))

    def _check_run_in(self, service: str) -> None:
        what = f"endpoint '{service}.{self.name}'"
        if self.run_in not in ("loop", "thread", "process"):
            raise ValueError(f"{what}: run_in must be 'loop', 'thread' or 'process', not {self.run_in!r}")
        if self.threads is not None:
            if self.run_in != "thread":
                raise TypeError(f"{what}: threads= is for run_in='thread', not for run_in={self.run_in!r}")
            _check_threads(what, self.threads)
        if self.run_in == "loop":
            return
        if self.is_coroutine or inspect.isasyncgenfunction(self.function) or self.signature.inputs:
            raise TypeError(f"{what}: run_in={self.run_in!r} is for a plain def; what awaits runs in the loop")
        if self.run_in == "process" and self.signature.writable:
            raise TypeError(f"{what}: a Writable parameter is written here; use run_in='loop' or 'thread'")
        if self.run_in == "process" and self.signature.streams:
            raise TypeError(f"{what}: a generator cannot run in another process; use run_in='thread'")
        if self.run_in == "process" and inspect.isfunction(self.function) and "<locals>" in self.function.__qualname__:
            raise TypeError(
                f"{what}: run_in='process' finds the function by its module and its name, and "
                f"{self.function.__qualname__} is within a function; define it at the top of a module (if a decorator "
                "made it, let that use functools.wraps), or use run_in='thread'"
            )

    def check_reachable(self, service: str) -> None:
        """TypeError if it is to run in a process where it cannot be found: its module must be loaded by now."""
        if self.run_in != "process":
            return
        try:
            pickle.dumps(self.function)
        except Exception as error:  # It may be somebody's code.
            raise TypeError(
                f"endpoint '{service}.{self.name}': run_in='process' finds the function by its module and its name, "
                f"and that fails: {error}; make the outermost decorator of a function at the top of a module the "
                "endpoint's (of a method, the object must be one that can be pickled), or use run_in='thread'"
            ) from None


class Group:
    """Endpoints under a common prefix; made by :meth:`Service.group`."""

    def __init__(self, service: Service, prefix: str) -> None:
        self._service = service
        self._prefix = prefix

    @overload
    def endpoint(self, function: _F, /) -> _F: ...
    @overload
    def endpoint(
        self, /, *, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None
    ) -> Callable[[_F], _F]: ...
    def endpoint(
        self, function: Any = None, /, *, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None
    ) -> Any:
        """Makes a function an endpoint, under its own name or ``name``. The function is returned unchanged.

        A plain function runs in the server's loop and holds it meanwhile: keep it short, or say
        ``run_in="thread"``, or ``run_in="process"`` for one that computes (it and its arguments are pickled
        to a process of the server's own). ``threads``: how many calls of it may be in threads at once, which are then
        its own and not its service's. An ``async def`` runs in the loop and may await. A generator,
        async or plain, streams what it yields. A parameter annotated ``AsyncIterator[T]`` takes a stream from
        the caller. Annotated parameters are validated; others take what MessagePack carries. Context
        variables that a handler sets are its call's own.

        A client offers it as an attribute, unless its name is that of a method there, such as ``close``, or a
        keyword: then only ``client.call("close")`` calls it, and a UserWarning says so here.

        Raises TypeError for what cannot be an endpoint, such as a method, which needs its object (mark it with
        :func:`shmrpc.endpoint`), or one with a default that its type refuses; ValueError for a name that is taken or
        cannot be one; LocalProtocolError while the service is being served.
        """
        if function is None:
            return lambda function: self.endpoint_of(function, _Options(name, run_in, threads))
        return self.endpoint_of(function, _Options(name, run_in, threads))

    def endpoint_of(self, function: _F, options: _Options) -> _F:
        """Adds one endpoint."""
        self._service.check_open()
        _check_function(self._service.name, function)
        name = getattr(function, "__name__", "") if options.name is None else options.name
        if not _is_name(name):
            raise ValueError(
                f"endpoint name {name!r}: expected an identifier without a leading underscore; "
                "give one with @service.endpoint(name=...)"
            )
        name = self._prefix + name
        taken = self._service.endpoints
        if name in taken or any(other.startswith(f"{name}.") for other in taken):
            raise ValueError(
                f"service {self._service.name!r} has an endpoint or a group {name!r} already{_wrapper_hint(function)}"
            )
        if any(name.startswith(f"{other}.") for other in taken):
            raise ValueError(f"endpoint name {name!r}: its prefix is an endpoint of {self._service.name!r} already")
        taken[name] = Endpoint(self._service.name, name, function, options)
        _warn_of_name(name)
        return function

    def group(self, prefix: str) -> Group:
        """A group of endpoints: those of ``service.group("math")`` are called as ``client.math.add(1, 2)``."""
        if not isinstance(prefix, str) or not all(map(_is_name, prefix.split("."))):
            raise ValueError(f"prefix {prefix!r}: expected identifiers without a leading underscore, joined by dots")
        return Group(self._service, f"{self._prefix}{prefix}.")

    def include(self, source: object, /, *, prefix: str = "") -> None:
        """Adds what ``source`` offers, under ``prefix`` if there is one.

        ``source`` is an object whose class marks methods with ``@shmrpc.endpoint``: its state is then the
        service's. Or it is another Service: its endpoints as they are now, each inside that service's interceptors,
        but not its lifespan.

        Raises TypeError if it offers nothing, or has marked what cannot be an endpoint, ValueError for a name that is
        taken, LocalProtocolError while the service is being served.
        """
        target = self.group(prefix) if prefix else self
        offered = list(_offered(source))
        if not offered:
            hint = f": make one, as in include({source.__name__}())" if isinstance(source, type) else ""
            raise TypeError(f"include() expected an object with methods marked @shmrpc.endpoint, got {source!r}{hint}")
        for function, options in offered:
            inner, _, last = str(options.name).rpartition(".")
            group = target.group(inner) if inner else target
            group.endpoint_of(function, dataclasses.replace(options, name=last))


class Service(Group):
    """Functions that other processes may call, under one name.

    ``name``: 1 to 64 of ``A-Z a-z 0-9 . _ -``, a letter or digit first and last. ``lifespan`` is called with
    the service when a server starts and gives an async context manager that it lives in: what that yields is
    ``current_call().state`` in the handlers. ``interceptors`` stand around each call of the service, wherever it is
    served, inside those of the server; see :mod:`shmrpc.service.interceptors`. Raises TypeError for what is none.
    ``threads``: how many calls of its endpoints with ``run_in="thread"`` may be in threads at once; others wait.

    >>> calculator = Service("calculator")
    >>> @calculator.endpoint
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)  # The function stays what it was.
    3
    """

    def __init__(
        self,
        name: str,
        *,
        lifespan: Lifespan | None = None,
        interceptors: Sequence[Interceptor] = (),
        threads: int = DEFAULT_THREADS,
    ) -> None:
        super().__init__(self, "")
        self.name = check_name(name)
        _check_threads(f"service {name!r}", threads)
        self.threads = threads
        self.interceptors: tuple[Interceptor, ...] = check_interceptors(interceptors)
        if lifespan is not None:
            _check_lifespan(self.name, lifespan)
        self.lifespan = lifespan
        self.endpoints: dict[str, Endpoint] = {}
        #: Those of this process that are serving it.
        self.servers: weakref.WeakSet[object] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Service({self.name!r}, endpoints={list(self.endpoints)})"

    def check_reachable(self) -> None:
        """TypeError if an endpoint is to run in a process, and cannot be found there: its module is loaded by now."""
        for endpoint in self.endpoints.values():
            endpoint.check_reachable(self.name)

    def check_open(self) -> None:
        """LocalProtocolError while it is being served: clients have been told its endpoints."""
        if self.servers:
            raise LocalProtocolError(
                f"service {self.name!r} is being served, so that its endpoints are fixed: add them before serve()"
            )


@overload
def endpoint(function: _F, /) -> _F: ...
@overload
def endpoint(*, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None) -> Callable[[_F], _F]: ...
def endpoint(
    function: Any = None, /, *, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None
) -> Any:
    """Marks a method as an endpoint, for :meth:`Service.include` of an instance.

    The options are those of :meth:`Service.endpoint`. It may stand above or below ``@staticmethod`` and
    ``@classmethod``. A class that overrides a marked method marks its own.

    Raises TypeError for what is no method.
    """

    def mark(function: _F) -> _F:
        _check_method(function)
        setattr(function, _MARK, _Options(name, run_in, threads))
        return function

    return mark if function is None else mark(function)


def _check_threads(what: str, threads: Any) -> None:
    """TypeError or ValueError for what is no number of threads."""
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"{what}: threads: expected a number, got {threads!r}")
    if threads < 1:
        raise ValueError(f"{what}: threads: expected 1 or more, got {threads}")


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself of what is called like one, so that its types are seen, and whether it is async."""
    if isinstance(function, staticmethod):
        return function.__func__
    by_itself = isinstance(function, functools.partial) or inspect.isroutine(function)
    return function if by_itself else getattr(function, "__call__", function)  # noqa: B004 (its own method)


def _check_function(service: str, function: Any) -> None:
    """TypeError for what cannot be an endpoint of a service."""
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
            f"{what} a {type(function).__name__}, which is of a class; "
            "mark methods with @shmrpc.endpoint, and offer those of an object: service.include(MyClass())"
        )
    if not callable(function):
        raise TypeError(f"{what} {function!r}")
    owner = _class_of(function)
    if owner and _takes_self(function):
        raise TypeError(
            f"{what} the method {owner}.{function.__name__}, which needs an object for its {_takes_self(function)!r}; "
            f"mark it with @shmrpc.endpoint, and offer the methods of an object: service.include({owner}())"
        )


def _check_method(function: Any) -> None:
    """TypeError for what cannot be marked as an endpoint of an object."""
    if isinstance(function, type):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got the class {function.__qualname__}; mark its methods")
    if isinstance(function, (property, functools.cached_property)):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got a {type(function).__name__}; make it a method")
    if not isinstance(function, (staticmethod, classmethod)) and not callable(function):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got {function!r}")
    if isinstance(function, types.FunctionType) and not _class_of(function) and not _takes_self(function):
        raise TypeError(
            f"@shmrpc.endpoint marks methods, and {function.__qualname__}() is none: "
            "for a function it is @service.endpoint, of the service that offers it"
        )


def _class_of(function: Any) -> str:
    """The class in whose body a plain function was defined; "" if in none."""
    if not isinstance(function, types.FunctionType):
        return ""
    *_, owner, _name = ["", "", *function.__qualname__.split(".")]
    return "" if owner == "<locals>" else owner


def _takes_self(function: types.FunctionType) -> str:
    """What a function calls the object that it is a method of; "" if it is none."""
    first = function.__code__.co_varnames[: min(1, function.__code__.co_argcount)]
    return first[0] if first and first[0] in ("self", "cls") else ""


def _wrapper_hint(function: Any) -> str:
    inner = "<locals>" in getattr(function, "__qualname__", "")
    return "; if a decorator made this function, let it use functools.wraps, or give a name=" if inner else ""


def _warn_of_name(name: str) -> None:
    """Warns of an endpoint that is no attribute of a client."""
    hidden = next((part for part in name.split(".") if keyword.iskeyword(part)), None)
    first = name.partition(".")[0]
    if hidden is None and first not in CLIENT_METHODS:
        return
    why = f"{first!r} is a method of clients" if hidden is None else f"{hidden!r} is a keyword of Python"
    warnings.warn(f"endpoint {name!r}: {why}, so that only client.call({name!r}, ...) calls it", stacklevel=4)


def _check_lifespan(service: str, lifespan: Any) -> None:
    """TypeError for what gives no async context manager."""
    what = f"lifespan of {service!r}: expected a function of the service that gives an async context manager"
    if not callable(lifespan):
        raise TypeError(f"{what}, got {lifespan!r}")
    if inspect.isasyncgenfunction(lifespan):
        raise TypeError(f"{what}, got an async generator function: decorate it with contextlib.asynccontextmanager")
    if inspect.iscoroutinefunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise TypeError(f"{what}: make it an async def that yields once, decorated with contextlib.asynccontextmanager")
    try:
        signature = inspect.signature(lifespan)
    except (ValueError, TypeError):  # Python does not tell.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(f"{what}, called as lifespan(service): {error}") from None


def _offered(source: object) -> Iterator[tuple[Callable[..., Any], _Options]]:
    """Each endpoint that an object has."""
    if isinstance(source, Service):
        for each in source.endpoints.values():
            yield (
                each.function,
                _Options(each.name, each.run_in, each.threads, (*source.interceptors, *each.interceptors)),
            )
    elif not isinstance(source, type):
        for attribute in dir(type(source)):
            options = _mark_of(type(source), attribute)
            if options is not None:
                name = attribute if options.name is None else options.name
                yield getattr(source, attribute), dataclasses.replace(options, name=name)


def _mark_of(cls: type, attribute: str) -> _Options | None:
    """What ``@endpoint`` was told of a member of a class; nothing is evaluated, as a property would be.

    TypeError if the mark would be lost: on a property, or on a method that is overridden by one without.
    """
    static = inspect.getattr_static(cls, attribute, None)
    options = _own_mark(static)
    if options is not None:
        return options
    if isinstance(static, (property, functools.cached_property)):
        getter = static.fget if isinstance(static, property) else static.func
        if _own_mark(getter) is not None:
            raise TypeError(
                f"{cls.__qualname__}.{attribute} is marked @shmrpc.endpoint, and is a property: make it a method"
            )
    for base in cls.__mro__[1:]:
        if callable(static) and _own_mark(base.__dict__.get(attribute)) is not None:
            raise TypeError(
                f"{cls.__qualname__}.{attribute} overrides an endpoint of {base.__qualname__} and is none itself: "
                "mark it with @shmrpc.endpoint too"
            )
    return None


def _own_mark(static: Any) -> _Options | None:
    inner = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
    for each in (static, inner):
        options = getattr(each, "__dict__", {}).get(_MARK)
        if isinstance(options, _Options):
            return options
    return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")
