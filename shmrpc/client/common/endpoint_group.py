"""Endpoints with a common prefix as an attribute of a client: ``client.math.add``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class _Client(Protocol):
    """The methods of :class:`BaseClient` that a group uses."""

    def _resolve_member(self, name: str, /) -> Any: ...

    def _names_under(self, prefix: str, /) -> Iterable[str]: ...


class EndpointGroup:
    """The endpoints with a common prefix, such as ``client.math`` for the endpoints ``math.…``."""

    def __init__(self, client: _Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<endpoints {self._prefix}.* of {self._client!r}>"

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._client._names_under(f"{self._prefix}.")]

    def __getattr__(self, name: str) -> Any:
        """Return an endpoint or a group below this one, and cache it. Raises EndpointNotFound, an AttributeError."""
        if name.startswith("_"):
            raise AttributeError(name)
        member = self._client._resolve_member(f"{self._prefix}.{name}")
        self.__dict__[name] = member  # Later lookups bypass __getattr__.
        return member
