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

#: Makes the context that a server lives in; its value is ``current_call().state``.
Lifespan = Callable[["Service"], AbstractAsyncContextManager[Any]]

#: Calls of a service that may be in threads at once. They wait more than they compute: CPUs are no measure.
DEFAULT_THREADS: Final = 40
#: The methods of both clients: an attribute of theirs is no endpoint.
CLIENT_METHODS: Final = frozenset(
    {
        "batch", "buffer", "call", "close", "connect", "describe", "empty", "map", "notify", "open", "place", "resume",
        "stop", "wait_for_ready", "with_options",
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
            return lambda function: self.add_endpoint(function, EndpointOptions(name, run_in, threads))
        return self.add_endpoint(function, EndpointOptions(name, run_in, threads))

    def add_endpoint(self, function: _F, options: EndpointOptions) -> _F:
        """Adds one endpoint."""
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
        """A group of endpoints: those of ``service.group("math")`` are called as ``client.math.add(1, 2)``."""
        if not isinstance(prefix, str) or not all(map(_is_valid_name, prefix.split("."))):
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
        offered = list(_iter_endpoints(source) if isinstance(source, Service) else iter_marked(source))
        if not offered:
            hint = f": make one, as in include({source.__name__}())" if isinstance(source, type) else ""
            raise TypeError(f"include() expected an object with methods marked @shmrpc.endpoint, got {source!r}{hint}")
        for function, options in offered:
            inner, _, last = str(options.name).rpartition(".")
            group = target.group(inner) if inner else target
            group.add_endpoint(function, msgspec.structs.replace(options, name=last))


class Service(Group):
    """Functions that other processes may call, under one name.

    ``name``: 1 to 64 of ``A-Z a-z 0-9 . _ -``, a letter or digit first and last. ``lifespan`` is called with
    the service when a server starts and gives an async context manager that it lives in: what that yields is
    ``current_call().state`` in the handlers. ``interceptors`` wrap each call of the service, wherever it is
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
        check_count(f"service {name!r}: threads", threads, 1)
        self.threads = threads
        self.interceptors: tuple[Interceptor, ...] = check_interceptors(interceptors)
        if lifespan is not None:
            _check_lifespan(self.name, lifespan)
        self.lifespan = lifespan
        self.endpoints: dict[str, Endpoint] = {}
        #: The servers of this process that serve it.
        self.servers: weakref.WeakSet[object] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Service({self.name!r}, endpoints={list(self.endpoints)})"

    def check_reachable(self) -> None:
        """Raises TypeError for an endpoint that runs in another process and could not be found there."""
        for endpoint in self.endpoints.values():
            endpoint.check_reachable()

    def check_open(self) -> None:
        """Raises LocalProtocolError while it is being served: clients have been told its endpoints."""
        if self.servers:
            raise LocalProtocolError(
                f"service {self.name!r} is being served, so that its endpoints are fixed: add them before serve()"
            )


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
    """Raises TypeError for what gives no async context manager."""
    what = f"lifespan of {service!r}: expected a function of the service that gives an async context manager"
    if not callable(lifespan):
        raise TypeError(f"{what}, got {lifespan!r}")
    if inspect.isasyncgenfunction(lifespan):
        raise TypeError(f"{what}, got an async generator function: decorate it with contextlib.asynccontextmanager")
    if inspect.iscoroutinefunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise TypeError(f"{what}: make it an async def that yields once, decorated with contextlib.asynccontextmanager")
    check_takes_one_argument(what, lifespan, "lifespan(service)")


def _iter_endpoints(service: Service) -> Iterator[tuple[Callable[..., Any], EndpointOptions]]:
    """The endpoints of another service, each inside that one's interceptors."""
    for each in service.endpoints.values():
        interceptors = (*service.interceptors, *each.interceptors)
        yield each.function, EndpointOptions(each.name, each.run_in, each.threads, interceptors)


def _is_valid_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")
