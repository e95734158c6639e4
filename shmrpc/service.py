"""A service: functions that other processes may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from shmrpc.signature import Signature
from shmrpc.transport.shm.rendezvous import check_name

_F = TypeVar("_F", bound=Callable[..., Any])


class Endpoint:
    """A function under the name by which it is called."""

    def __init__(self, service: str, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.signature = Signature(f"{service}.{name}", function)


class Service:
    """Functions that other processes may call, under one name.

    ``name``: 1 to 64 of ``A-Z a-z 0-9 . _ -``, a letter or digit first and last.

    >>> calculator = Service("calculator")
    >>> @calculator.endpoint
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)  # The function stays what it was.
    3
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self.endpoints: dict[str, Endpoint] = {}

    def __repr__(self) -> str:
        return f"Service({self.name!r}, endpoints={list(self.endpoints)})"

    @overload
    def endpoint(self, function: _F, /) -> _F: ...
    @overload
    def endpoint(self, /, *, name: str) -> Callable[[_F], _F]: ...
    def endpoint(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Makes a function an endpoint, under its own name or ``name``. The function is returned unchanged.

        A plain function runs in the server's loop and holds it meanwhile: keep it short. An ``async def`` runs
        there too and may await. Annotated parameters are validated; others take what MessagePack carries.
        Context variables that an ``async def`` sets are its call's own; a plain function must reset its.

        Raises TypeError for what cannot be an endpoint, ValueError for a name that is taken or cannot be one.
        """
        if function is None:
            return lambda function: self._add(function, name)
        self._add(function, name)
        return function

    def _add(self, function: _F, name: str | None) -> _F:
        if not callable(function):
            raise TypeError(f"endpoint of {self.name!r}: expected a function, got {function!r}")
        name = name or str(getattr(function, "__name__", ""))
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(
                f"endpoint name {name!r}: expected an identifier without a leading underscore; "
                "give one with @service.endpoint(name=...)"
            )
        if name in self.endpoints:
            raise ValueError(f"service {self.name!r} has an endpoint {name!r} already")
        self.endpoints[name] = Endpoint(self.name, name, function)
        return function
