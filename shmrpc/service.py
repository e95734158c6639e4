"""A service: functions that other processes may call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, TypeVar, overload

from shmrpc.protocol.frames import Shape
from shmrpc.signature import Signature
from shmrpc.transport.shm.place import check_name

_F = TypeVar("_F", bound=Callable[..., Any])

#: Where an endpoint's function runs: in the server's loop, in a thread, or in another process.
RunIn = Literal["loop", "thread", "process"]
#: Makes the context that a server lives in; its value is ``current_call().state``.
Lifespan = Callable[["Service"], AbstractAsyncContextManager[Any]]

_MARK: Final = "__shmrpc_endpoint__"


@dataclasses.dataclass(frozen=True)
class _Options:
    """What ``@endpoint(...)`` was told."""

    name: str | None = None
    run_in: RunIn = "loop"


class Endpoint:
    """A function under the name by which it is called."""

    def __init__(self, service: str, name: str, function: Callable[..., Any], run_in: RunIn) -> None:
        self.name = name
        self.function = function
        self.run_in: RunIn = run_in
        self.signature = Signature(f"{service}.{name}", function)
        #: Whether it is an ``async def`` that gives one result.
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._check_run_in(service)

    @property
    def shape(self) -> Shape:
        """Which of its sides are streams."""
        return Shape(self.signature.streams, self.signature.input_places)

    def _check_run_in(self, service: str) -> None:
        what = f"endpoint '{service}.{self.name}'"
        if self.run_in not in ("loop", "thread", "process"):
            raise ValueError(f"{what}: run_in must be 'loop', 'thread' or 'process', not {self.run_in!r}")
        if self.run_in == "loop":
            return
        if self.is_coroutine or inspect.isasyncgenfunction(self.function) or self.signature.inputs:
            raise TypeError(f"{what}: run_in={self.run_in!r} is for a plain def; what awaits runs in the loop")
        if self.run_in == "process" and self.signature.writable:
            raise TypeError(f"{what}: a Writable parameter is written here; use run_in='loop' or 'thread'")
        if self.run_in == "process" and self.signature.streams:
            raise TypeError(f"{what}: a generator cannot run in another process; use run_in='thread'")


class Group:
    """Endpoints under a common prefix; made by :meth:`Service.group`."""

    def __init__(self, service: Service, prefix: str) -> None:
        self._service = service
        self._prefix = prefix

    @overload
    def endpoint(self, function: _F, /) -> _F: ...
    @overload
    def endpoint(self, /, *, name: str | None = None, run_in: RunIn = "loop") -> Callable[[_F], _F]: ...
    def endpoint(self, function: Any = None, /, *, name: str | None = None, run_in: RunIn = "loop") -> Any:
        """Makes a function an endpoint, under its own name or ``name``. The function is returned unchanged.

        A plain function runs in the server's loop and holds it meanwhile: keep it short, or say
        ``run_in="thread"``, or ``run_in="process"`` for one that computes (it and its arguments are pickled
        to a process of the server's own). An ``async def`` runs in the loop and may await. A generator,
        async or plain, streams what it yields. A parameter annotated ``AsyncIterator[T]`` takes a stream from
        the caller. Annotated parameters are validated; others take what MessagePack carries. Context
        variables that an ``async def`` sets are its call's own; a plain function must reset its.

        Raises TypeError for what cannot be an endpoint, ValueError for a name that is taken or cannot be one.
        """
        if function is None:
            return lambda function: self.endpoint_of(function, _Options(name, run_in))
        return self.endpoint_of(function, _Options(name, run_in))

    def endpoint_of(self, function: _F, options: _Options) -> _F:
        """Adds one endpoint."""
        if not callable(function):
            raise TypeError(f"endpoint of {self._service.name!r}: expected a function, got {function!r}")
        name = options.name or str(getattr(function, "__name__", ""))
        if not _is_name(name):
            raise ValueError(
                f"endpoint name {name!r}: expected an identifier without a leading underscore; "
                "give one with @service.endpoint(name=...)"
            )
        name = self._prefix + name
        taken = self._service.endpoints
        if name in taken or any(other.startswith(f"{name}.") for other in taken):
            raise ValueError(f"service {self._service.name!r} has an endpoint or a group {name!r} already")
        if any(name.startswith(f"{other}.") for other in taken):
            raise ValueError(f"endpoint name {name!r}: its prefix is an endpoint of {self._service.name!r} already")
        taken[name] = Endpoint(self._service.name, name, function, options.run_in)
        return function

    def group(self, prefix: str) -> Group:
        """A group of endpoints: those of ``service.group("math")`` are called as ``client.math.add(1, 2)``."""
        if not all(map(_is_name, prefix.split("."))):
            raise ValueError(f"prefix {prefix!r}: expected identifiers without a leading underscore, joined by dots")
        return Group(self._service, f"{self._prefix}{prefix}.")

    def include(self, source: object, /, *, prefix: str = "") -> None:
        """Adds what ``source`` offers, under ``prefix`` if there is one.

        ``source`` is an object whose class marks methods with ``@shmrpc.endpoint``: its state is then the
        service's. Or it is another Service: its endpoints as they are now, but not its lifespan.

        Raises TypeError if it offers nothing, ValueError for a name that is taken.
        """
        target = self.group(prefix) if prefix else self
        offered = list(_offered(source))
        if not offered:
            hint = f": make one, as in include({source.__name__}())" if isinstance(source, type) else ""
            raise TypeError(f"include() expected an object with methods marked @shmrpc.endpoint, got {source!r}{hint}")
        for name, function, run_in in offered:
            inner, _, last = name.rpartition(".")
            group = target.group(inner) if inner else target
            group.endpoint_of(function, _Options(last, run_in))


class Service(Group):
    """Functions that other processes may call, under one name.

    ``name``: 1 to 64 of ``A-Z a-z 0-9 . _ -``, a letter or digit first and last. ``lifespan`` is called with
    the service when a server starts and gives an async context manager that it lives in: what that yields is
    ``current_call().state`` in the handlers.

    >>> calculator = Service("calculator")
    >>> @calculator.endpoint
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)  # The function stays what it was.
    3
    """

    def __init__(self, name: str, *, lifespan: Lifespan | None = None) -> None:
        super().__init__(self, "")
        self.name = check_name(name)
        self.lifespan = lifespan
        self.endpoints: dict[str, Endpoint] = {}

    def __repr__(self) -> str:
        return f"Service({self.name!r}, endpoints={list(self.endpoints)})"


@overload
def endpoint(function: _F, /) -> _F: ...
@overload
def endpoint(*, name: str | None = None, run_in: RunIn = "loop") -> Callable[[_F], _F]: ...
def endpoint(function: Any = None, /, *, name: str | None = None, run_in: RunIn = "loop") -> Any:
    """Marks a method as an endpoint, for :meth:`Service.include` of an instance.

    The options are those of :meth:`Service.endpoint`.
    """

    def mark(function: _F) -> _F:
        setattr(function, _MARK, _Options(name, run_in))
        return function

    return mark if function is None else mark(function)


def _offered(source: object) -> Iterator[tuple[str, Callable[..., Any], RunIn]]:
    """Name, function and place of each endpoint that an object has."""
    if isinstance(source, Service):
        for each in source.endpoints.values():
            yield each.name, each.function, each.run_in
    elif not isinstance(source, type):
        for attribute in dir(type(source)):
            static = inspect.getattr_static(type(source), attribute)
            options = getattr(getattr(static, "__func__", static), _MARK, None)
            if isinstance(options, _Options):
                yield options.name or attribute, getattr(source, attribute), options.run_in


def _is_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")
