"""UNIX sockets and TCP as a published study has them, in which all that counts are bytes; TCP also with epoll."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

from benchmark.processes import Rendezvous
from benchmark.queue_work import End, Part, Way
from benchmark.rivals.sockets_to_all import BUFFERED, accepted, connected, listening
from benchmark.study_work import Batch, address_of, native, reading
from benchmark.subjects import Loop


class _Sockets:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous, kind: socket.AddressFamily, *, epoll: bool = False) -> None:
        self.place, self._kind, self._epoll = place, kind, epoll

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        with contextlib.ExitStack() as stack:
            if part.side == "get":
                listener = stack.enter_context(listening(self.place, self._kind, part.number))
                # The publisher comes later than this reader.
                connection = functools.cache(lambda: self._prepared(stack.enter_context(accepted(listener))))
                yield End(get=_reading(connection))
            else:
                peers = [
                    stack.enter_context(connected(self.place, self._kind, number)) for number in range(part.readers)
                ]
                yield End(_sending_by_epoll(peers) if self._epoll else _sending(peers))

    def _prepared(self, connection: socket.socket) -> Callable[[bytearray], int]:
        """Receive something."""
        if not self._epoll:
            return connection.recv_into
        connection.setblocking(False)
        poll = select.epoll()
        poll.register(connection, select.EPOLLIN)

        def receive(buffer: bytearray) -> int:
            poll.poll()
            return connection.recv_into(buffer)

        return receive


def _reading(connection: Callable[[], Callable[[bytearray], int]]) -> Callable[[], int | None]:
    buffer, check = bytearray(BUFFERED), native().check
    address = address_of(buffer)

    def look(position: Any) -> int:
        if not (count := connection()(buffer)):
            raise EOFError("who sends is gone")
        return check(address, count, position)

    return reading(look)


def _sending(peers: list[socket.socket]) -> Callable[[Batch], None]:
    sends = [peer.sendall for peer in peers]

    def put(batch: Batch) -> None:
        for send in sends:
            send(batch.bytes)

    return put


def _sending_by_epoll(peers: list[socket.socket]) -> Callable[[Batch], None]:
    poll, by_number = select.epoll(), {peer.fileno(): peer for peer in peers}
    for peer in peers:
        peer.setblocking(False)

    def put(batch: Batch) -> None:
        view, left = memoryview(batch.bytes), {}
        for number, peer in by_number.items():
            if (sent := _sent(peer, view)) < batch.size:
                left[number] = sent
                poll.register(number, select.EPOLLOUT)
        while left:
            for number, _ in poll.poll():
                left[number] += _sent(by_number[number], view[left[number] :])
                if left[number] == batch.size:
                    del left[number]
                    poll.unregister(number)

    return put


def _sent(peer: socket.socket, view: memoryview) -> int:
    """Send bytes, and return how many the socket has taken."""
    try:
        return peer.send(view)
    except BlockingIOError:
        return 0


@contextlib.contextmanager
def connect_unix(place: Rendezvous) -> Iterator[Way]:
    """UNIX sockets."""
    yield _Sockets(place, socket.AF_UNIX)


@contextlib.contextmanager
def connect_tcp(place: Rendezvous) -> Iterator[Way]:
    """TCP."""
    yield _Sockets(place, socket.AF_INET)


@contextlib.contextmanager
def connect_epoll(place: Rendezvous) -> Iterator[Way]:
    """TCP with epoll."""
    yield _Sockets(place, socket.AF_INET, epoll=True)
