"""A service: functions that other processes may call."""

from __future__ import annotations

import inspect
import keyword
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, overload

import msgspec

from shmrpc.basics.checks import check_count
from shmrpc.errors import LocalProtocolError
from shmrpc.host.runtime_dir import check_name
from shmrpc.service.endpoints import Endpoint, EndpointOptions, RunIn, check_function
from shmrpc.service.interceptors import Interceptor, check_interceptors, check_takes_one_argument
from shmrpc.service.marks import iter_marked

_F = TypeVar("_F", bound=Callable[..., Any])

#: Returns the context manager within which a server runs; its value is ``current_call().state``.
Lifespan = Callable[["Service"], AbstractAsyncContextManager[Any]]

#: Maximum number of calls of a service in threads. Not the number of CPUs, because handlers wait more than they
#: compute.
DEFAULT_THREADS: Final = 40
#: Names of the methods of both clients, which hide endpoints of the same name.
CLIENT_METHODS: Final = frozenset(
    {
        "address", "batch", "buffer", "call", "close", "connect", "describe", "empty", "map", "notify", "open",
        "resume", "stop", "wait_for_ready", "with_options",
    }
)  # fmt: skip


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
        """Make a function an endpoint, under its own name or ``name``. Returns the function unchanged.

        A plain function runs in the server's event loop and blocks it: keep it short, or choose ``run_in="thread"``, or
        ``run_in="process"`` for computations. In another process, the arguments are pickled, and the function is
        imported by its name: decorators must use ``functools.wraps``, and the object of a method must be picklable.
        ``threads``: number of threads for this endpoint alone, instead of the service's threads.

        An ``async def`` runs in the event loop and may await. A generator, async or plain, streams the items that it
        yields. A parameter annotated ``AsyncIterator[T]`` takes a stream from the caller. Annotated parameters are
        validated; others accept all that MessagePack supports. Context variables that a handler sets belong to its
        call.

        Clients offer the endpoint as an attribute. If its name is a keyword or that of a client's method, such as
        ``close``, only ``client.call("close")`` reaches it; a UserWarning points it out.

        Raises TypeError for an object that cannot be an endpoint, such as a method without its object (mark it with
        :func:`shmrpc.endpoint`), a function with a default of the wrong type or with annotations that cannot be
        resolved or sent, and options that do not fit it; ValueError for an invalid or taken name or an invalid option;
        LocalProtocolError while the service is being served.
        """
        if function is None:
            return lambda function: self.add_endpoint(function, EndpointOptions(name, run_in, threads))
        return self.add_endpoint(function, EndpointOptions(name, run_in, threads))

    def add_endpoint(self, function: _F, options: EndpointOptions) -> _F:
        """Add a function as an endpoint, and return the function. Raises and warns as :meth:`endpoint` does."""
        self._service.check_open()
        check_function(self._service.name, function)
        name = getattr(function, "__name__", "") if options.name is None else options.name
        if not _is_valid_name(name):
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
        """Return a group for endpoints under a prefix: clients call ``client.math.add(1, 2)`` after ``group("math")``.

        Raises ValueError for an invalid prefix.
        """
        if not isinstance(prefix, str) or not all(map(_is_valid_name, prefix.split("."))):
            raise ValueError(f"prefix {prefix!r}: expected identifiers without a leading underscore, joined by dots")
        return Group(self._service, f"{self._prefix}{prefix}.")

    def include(self, source: object, /, *, prefix: str = "") -> None:
        """Add the endpoints of ``source``, under ``prefix`` if there is one.

        ``source`` is an object whose class marks methods with ``@shmrpc.endpoint``; the endpoints share its state. Or
        ``source`` is another Service: its present endpoints are added with its interceptors, but without its lifespan
        and its ``threads``.

        Raises TypeError if the source has no endpoints, or marks an object that cannot be one, ValueError for an
        invalid prefix or a taken name, LocalProtocolError while the service is being served. After an error, none of
        the endpoints is added.
        """
        target = self.group(prefix) if prefix else self
        offered = list(_iter_endpoints(source) if isinstance(source, Service) else iter_marked(source))
        if not offered:
            hint = f": make one, as in include({source.__name__}())" if isinstance(source, type) else ""
            raise TypeError(f"include() expected an object with methods marked @shmrpc.endpoint, got {source!r}{hint}")
        endpoints = self._service.endpoints
        before = set(endpoints)
        try:
            for function, options in offered:
                inner, _, last = str(options.name).rpartition(".")
                group = target.group(inner) if inner else target
                group.add_endpoint(function, msgspec.structs.replace(options, name=last))
        except BaseException:
            for name in endpoints.keys() - before:
                del endpoints[name]
            raise


class Service(Group):
    """Functions that other processes may call, under one name.

    ``name``: 1 to 64 of ``A-Z a-z 0-9 . _ -``, with a letter or digit at both ends and no two dots together.
    ``lifespan`` is called with the service when a server starts, and returns an async context manager within which the
    server runs; the yielded value is ``current_call().state`` in the handlers. ``interceptors`` wrap each call of the
    service, on every server, inside those of the server; see :mod:`shmrpc.service.interceptors`. ``threads``: maximum
    number of calls of endpoints with ``run_in="thread"`` in threads at the same time; others wait. Raises TypeError for
    an invalid lifespan or interceptor, ValueError or TypeError for an invalid name or ``threads`` below 1.

    >>> calculator = Service("calculator")
    >>> @calculator.endpoint
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)  # The function is unchanged.
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
        check_count(f"service {name!r}: threads", threads, 1)
        self.threads = threads
        self.interceptors: tuple[Interceptor, ...] = check_interceptors(interceptors)
        if lifespan is not None:
            _check_lifespan(self.name, lifespan)
        self.lifespan = lifespan
        self.endpoints: dict[str, Endpoint] = {}
        #: Servers of this process that serve it.
        self.servers: weakref.WeakSet[object] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Service({self.name!r}, endpoints={list(self.endpoints)})"

    def check_reachable(self) -> None:
        """Raise TypeError if an endpoint must run in another process that cannot import it."""
        for endpoint in self.endpoints.values():
            endpoint.check_reachable()

    def check_open(self) -> None:
        """Raise LocalProtocolError while the service is being served, because its clients know its endpoints."""
        if self.servers:
            raise LocalProtocolError(f"service {self.name!r} is being served: add its endpoints before serve()")


def _wrapper_hint(function: Any) -> str:
    """Return a hint about decorators for a function that was defined within another; "" for any other function."""
    inner = "<locals>" in getattr(function, "__qualname__", "")
    return "; if a decorator made this function, let it use functools.wraps, or give a name=" if inner else ""


def _warn_of_name(name: str) -> None:
    """Issue a UserWarning if clients cannot offer an endpoint of this name as an attribute."""
    hidden = next((part for part in name.split(".") if keyword.iskeyword(part)), None)
    first = name.partition(".")[0]
    if hidden is None and first not in CLIENT_METHODS:
        return
    why = f"{first!r} is a method of clients" if hidden is None else f"{hidden!r} is a keyword of Python"
    warnings.warn(f"endpoint {name!r}: {why}, so that only client.call({name!r}, ...) calls it", stacklevel=4)


def _check_lifespan(service: str, lifespan: Any) -> None:
    """Raise TypeError unless the object is a function that can return an async context manager for a service."""
    what = f"lifespan of {service!r}: expected a function of the service that returns an async context manager"
    if not callable(lifespan):
        raise TypeError(f"{what}, got {lifespan!r}")
    if inspect.isasyncgenfunction(lifespan):
        raise TypeError(f"{what}, got an async generator function: decorate it with contextlib.asynccontextmanager")
    if inspect.iscoroutinefunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise TypeError(f"{what}: make it an async def that yields once, decorated with contextlib.asynccontextmanager")
    check_takes_one_argument(what, lifespan, "lifespan(service)")


def _iter_endpoints(service: Service) -> Iterator[tuple[Callable[..., Any], EndpointOptions]]:
    """Yield the endpoints of another service, each with that service's interceptors."""
    for each in service.endpoints.values():
        interceptors = (*service.interceptors, *each.interceptors)
        yield each.function, EndpointOptions(each.name, each.run_in, each.threads, interceptors)


def _is_valid_name(name: object) -> bool:
    """Return True for a str that is an identifier without a leading underscore; a keyword is one, too."""
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")
