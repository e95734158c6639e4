"""Rivals that fail in every way that a run has to survive, and one that does not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

from benchmark.processes import Rendezvous


class _Client:
    def __init__(self, add: Callable[[int, int], int]) -> None:
        self.add = add


@contextlib.contextmanager
def _client(add: Callable[[int, int], int]) -> Iterator[_Client]:
    yield _Client(add)


def connect(place: Rendezvous) -> Any:
    """Return a client that works."""
    return _client(lambda a, b: a + b)


def connect_failing(place: Rendezvous) -> Any:
    """Return a client that raises when it is called."""

    def add(a: int, b: int) -> int:
        raise ValueError("no sum today\nand more of that")

    return _client(add)


def connect_refused(place: Rendezvous) -> Any:
    """Raise the error of a connection without a server."""
    raise ConnectionRefusedError("no server listens")


def connect_dying(place: Rendezvous) -> Any:
    """Return a client whose process ends when it is called."""
    return _client(lambda a, b: os._exit(3))


def connect_hanging(place: Rendezvous) -> Any:
    """Return a client that gets no reply."""

    def add(a: int, b: int) -> int:
        time.sleep(600)
        return a + b

    return _client(add)


@contextlib.contextmanager
def connect_lonely(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client of the server that dies."""
    with connection.Client(place.socket(), "AF_UNIX") as server:

        def add(a: int, b: int) -> int:
            server.send((a, b))
            return int(server.recv())

        yield _Client(add)


def serve_dying(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve until the first call, which ends the process."""
    with connection.Listener(place.socket(), "AF_UNIX") as listener:
        ready()
        listener.accept().recv()
        os._exit(3)


def serve_failing(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Raise the error of a server that cannot start."""
    raise OSError("no room for a server")


def serve_ending(place: Rendezvous, ready: Callable[[], None]) -> None:
    """End the process before the server is ready."""
    os._exit(3)
