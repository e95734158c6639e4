"""multiprocessing's Connection, as ``Pipe`` makes them, with a thread of the server for each client."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener
from typing import Any

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo


def _answer(connection: Connection) -> None:
    taken = MessageTally()
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": taken.taken}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name, arguments = connection.recv()
            if name == "take":
                taken.take(*arguments)
            else:
                connection.send(functions[name](*arguments))


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    with Listener(place.socket(), "AF_UNIX", backlog=128) as listener:
        ready()
        while True:
            threading.Thread(target=_answer, args=(listener.accept(),), daemon=True).start()


class _Client:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        return self._connection.recv()

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)

    def bulk(self, data: bytes, messages: int) -> None:
        for _ in range(messages):
            self._connection.send(("take", (data,)))
        assert self._call("taken") == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    with multiprocessing.connection.Client(place.socket(), "AF_UNIX") as connection:
        yield _Client(connection)
