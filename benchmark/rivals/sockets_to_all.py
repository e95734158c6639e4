"""UNIX sockets and TCP, written for topics: one write to each reader, of a frame that is made once.

A batch, or a message that is published alone, is a frame by msgspec. Both sides block: who publishes waits while one of
the sockets is full.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmark.processes import Rendezvous
from benchmark.queue_work import ELEMENTS, OVER, TO_ALL, Arrays, End, Part, Way, missing_side
from benchmark.rivals.asyncio_protocol import MSGSPEC, Frames
from benchmark.subjects import Loop

#: Bytes that are asked for on both sides of a connection, and that are read at once.
BUFFERED: Final = 1 << 20
_LOCAL: Final = "127.0.0.1"


class _Sockets:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous, kind: socket.AddressFamily) -> None:
        self.place, self._kind = place, kind

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        if part.side == "get":
            with listening(self.place, self._kind, part.number) as listener, contextlib.ExitStack() as stack:
                # The publisher comes later than this reader.
                yield _reading(functools.cache(lambda: stack.enter_context(accepted(listener))))
        else:
            with contextlib.ExitStack() as stack:
                peers = [connected(self.place, self._kind, number) for number in range(part.readers)]
                yield _writing([stack.enter_context(peer) for peer in peers])


def listening(place: Rendezvous, kind: socket.AddressFamily, number: int) -> socket.socket:
    """Where the reader of that number can be connected to."""
    listener, path = socket.socket(kind), Path(place.socket(f"reader-{number}"))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFERED)
    path.unlink(missing_ok=True)
    if kind == socket.AF_UNIX:
        listener.bind(str(path))
    else:
        listener.bind((_LOCAL, 0))
        path.write_text(str(listener.getsockname()[1]))
    listener.listen()
    return listener


def accepted(listener: socket.socket) -> socket.socket:
    """Return the connection to who publishes."""
    return listener.accept()[0]


def connected(place: Rendezvous, kind: socket.AddressFamily, number: int) -> socket.socket:
    """Return a connection to the reader of that number."""
    peer, path = socket.socket(kind), place.socket(f"reader-{number}")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)
    peer.connect(path if kind == socket.AF_UNIX else (_LOCAL, int(Path(path).read_text())))
    if kind != socket.AF_UNIX:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _writing(peers: list[socket.socket]) -> End:
    frame_of, sends = Frames(MSGSPEC).frame, [peer.sendall for peer in peers]

    def put(item: Any) -> None:
        frame = frame_of(item)
        for send in sends:
            send(frame)

    def arrays() -> Arrays:
        import numpy as np  # Only the loads of arrays need it.

        array = np.empty(ELEMENTS, "u8")

        def put_array(number: int) -> None:
            array.fill(number)
            for send in sends:
                send(array.data)

        return put_array, missing_side

    return End(put, put, end=lambda: put(OVER), arrays={TO_ALL: arrays})


def _reading(connection: Callable[[], socket.socket]) -> End:
    come, frames = deque[Any](), Frames(MSGSPEC)
    frames.message_received = come.append  # type: ignore[method-assign, assignment]

    def get(_: int = 1) -> Any:
        while not come:
            data = connection().recv(BUFFERED)
            if not data:
                raise EOFError("who publishes is gone")
            frames.data_received(data)
        return come.popleft()

    def arrays() -> Arrays:
        import numpy as np

        array = np.empty(ELEMENTS, "u8")

        def get_array() -> int:
            if connection().recv_into(array.data, 0, socket.MSG_WAITALL) < array.nbytes:
                raise EOFError("who publishes is gone")
            return int(array.sum())

        return missing_side, get_array

    return End(get=get, get_many=get, arrays={TO_ALL: arrays})


@contextlib.contextmanager
def connect_unix(place: Rendezvous) -> Iterator[Way]:
    """UNIX sockets."""
    yield _Sockets(place, socket.AF_UNIX)


@contextlib.contextmanager
def connect_tcp(place: Rendezvous) -> Iterator[Way]:
    """TCP."""
    yield _Sockets(place, socket.AF_INET)
