"""rpyc over a UNIX socket, with a thread of the server for each client.

rpyc passes numbers and bytes as values, and lists and dicts as references, each look at which is a call back. Those
go as bytes of msgspec's, which is faster than ``obtain``: that is a call back as well, and then pickle.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream
from rpyc.utils.factory import unix_connect
from rpyc.utils.server import ThreadedServer

from benchmark import work
from benchmark.processes import Rendezvous

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
#: A thread waits for as long as it takes, without a timer for each call.
_CONFIG: Final = {"sync_request_timeout": None}
#: One-way calls that are under way at most: their answers have to be taken.
_AHEAD: Final = 64


def _tune() -> None:
    """Switch off the options for slow networks: compressing everything over 3 KB, and sending 64 KB at a time."""
    Channel.COMPRESSION_THRESHOLD = 1 << 62
    SocketStream.MAX_IO_CHUNK = 1 << 20


class _Service(rpyc.Service):  # type: ignore[misc]
    """Each connection has its own."""

    def __init__(self) -> None:
        self._taken = work.MessageTally()

    def exposed_add(self, a: int, b: int) -> int:
        return work.add(a, b)

    def exposed_echo(self, value: Any) -> Any:
        return work.echo(value)

    def exposed_echo_encoded(self, encoded: bytes) -> bytes:
        return _encode(work.echo(_decode(encoded)))

    def exposed_take(self, message: bytes) -> None:
        self._taken.take(message)

    def exposed_taken(self) -> tuple[int, ...]:
        return tuple(self._taken.taken())


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    _tune()
    server = ThreadedServer(_Service, socket_path=place.socket(), protocol_config=_CONFIG)
    server._listen()
    ready()
    server.start()


class _Client:
    def __init__(self, root: Any) -> None:
        # To look up a function is a call: they are looked up once.
        self.add, self._echo, self._echo_encoded = root.add, root.echo, root.echo_encoded
        self._take, self._taken = rpyc.async_(root.take), root.taken

    def echo(self, value: Any) -> Any:
        return self._echo(value) if isinstance(value, bytes) else _decode(self._echo_encoded(_encode(value)))

    def bulk(self, data: bytes, messages: int) -> None:
        take, waiting = self._take, deque[Any]()
        for _ in range(messages):
            waiting.append(take(data))
            if len(waiting) == _AHEAD:
                waiting.popleft().wait()
        assert self._taken() == (messages, messages * data[-1])


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    _tune()
    with unix_connect(place.socket(), config=_CONFIG) as connection:
        yield _Client(connection.root)
