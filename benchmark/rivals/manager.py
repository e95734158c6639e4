"""multiprocessing's managers: an object at a UNIX socket, and proxies that know its methods.

All proxies of a thread share its connection, so that there is no way to have many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.managers import BaseManager, BaseProxy
from typing import Any, Final

from benchmark.processes import Rendezvous
from benchmark.work import add, echo


class _Served:
    """The object that is served."""

    def add(self, a: int, b: int) -> int:
        return add(a, b)

    def echo(self, value: Any) -> Any:
        return echo(value)


class _Proxy(BaseProxy):
    """A proxy with its methods written out, so that no client has to ask the server for them."""

    _exposed_ = ("add", "echo")

    def add(self, a: int, b: int) -> Any:
        return self._callmethod("add", (a, b))

    def echo(self, value: Any) -> Any:
        return self._callmethod("echo", (value,))


class _Manager(BaseManager):
    """A manager of that object."""


_SERVED: Final = _Served()


def _served() -> _Served:
    return _SERVED  # Every proxy is one of the same object.


_Manager.register("served", _served, _Proxy)


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    server = _Manager(place.socket()).get_server()
    ready()
    server.serve_forever()


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Proxy]:
    """Yield a client. Its connection is closed with the last proxy that uses it."""
    manager = _Manager(place.socket())
    manager.connect()
    yield manager.served()  # type: ignore[attr-defined]
