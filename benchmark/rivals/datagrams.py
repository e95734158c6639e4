"""Datagrams as signals: over UDP within the host, and over local sockets."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmark.processes import Rendezvous
from benchmark.sharing import Trip, answer, words

_LOCAL = "127.0.0.1"


def _serve(bound: socket.socket, place: Rendezvous, ready: Callable[[], None]) -> None:
    """Answer the sender of the first datagram."""
    with bound, words(place) as shared:
        ready()
        _, client = bound.recvfrom(1, socket.MSG_PEEK)
        bound.connect(client)
        answer(functools.partial(bound.send, b"x"), functools.partial(bound.recv, 1), shared)


@contextlib.contextmanager
def _connected(client: socket.socket, server: Any, place: Rendezvous) -> Iterator[Trip]:
    with client, words(place) as shared:
        client.connect(server)
        yield Trip(functools.partial(client.send, b"x"), functools.partial(client.recv, 1), shared)


def serve_udp(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve the other side of a round trip, at a port that is written into a file."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind((_LOCAL, 0))
    Path(place.socket("port")).write_text(str(bound.getsockname()[1]))
    _serve(bound, place, ready)


def connect_udp(place: Rendezvous) -> Any:
    """Signals by UDP."""
    port = int(Path(place.socket("port")).read_text())
    return _connected(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), (_LOCAL, port), place)


def serve_unix(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Serve the other side of a round trip."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(place.socket())
    _serve(bound, place, ready)


def connect_unix(place: Rendezvous) -> Any:
    """Signals by local sockets."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(place.socket(f"client-{os.getpid()}"))
    return _connected(client, place.socket(), place)
