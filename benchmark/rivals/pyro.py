"""Pyro5 over a UNIX socket, with msgpack and a thread of the server for each client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import Pyro5.api

from benchmark import work
from benchmark.processes import Rendezvous

_OBJECT: Final = "work"
#: Clients at once: each takes a thread of the pool for as long as it is connected.
_CLIENTS: Final = 1000
#: Bytes of messages that go as one batch.
_GATHER: Final = 1 << 20


def _tune() -> None:
    Pyro5.config.SERIALIZER = "msgpack"
    Pyro5.config.THREADPOOL_SIZE = _CLIENTS


@Pyro5.api.expose
@Pyro5.api.behavior(instance_mode="session")
class Work:
    """Each connection has its own."""

    def __init__(self) -> None:
        self._taken = work.MessageTally()

    def add(self, a: int, b: int) -> int:
        """Return the small call."""
        return work.add(a, b)

    def echo(self, value: Any) -> Any:
        """Return the large call."""
        return work.echo(value)

    def take(self, message: bytes) -> None:
        """Receive a message that has no reply."""
        self._taken.take(message)

    def taken(self) -> list[int]:
        """Return the number and the sum of the messages since the last call."""
        return self._taken.taken()


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    _tune()
    with Pyro5.api.Daemon(unixsocket=place.socket()) as daemon:
        daemon.register(Work, _OBJECT)
        ready()
        daemon.requestLoop()


class _Client:
    def __init__(self, proxy: Any) -> None:
        # A proxy makes a new callable each time that a function is looked up.
        self.add, self.echo, self._taken = proxy.add, proxy.echo, proxy.taken
        self._proxy = proxy

    def bulk(self, data: bytes, messages: int) -> None:
        # A one-way call takes a thread of the server's, but a one-way batch is done where it comes in, in its order.
        batch, at_once = Pyro5.api.BatchProxy(self._proxy), max(1, _GATHER // len(data))
        for start in range(0, messages, at_once):
            for _ in range(min(at_once, messages - start)):
                batch.take(data)
            batch(oneway=True)
        assert self._taken() == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    _tune()
    with Pyro5.api.Proxy(f"PYRO:{_OBJECT}@./u:{place.socket()}") as proxy:
        proxy._pyroBind()
        yield _Client(proxy)
