"""pyzmq's XPUB and SUB over ``ipc://``, with msgspec, so that nothing is dropped: a batch is a message.

With XPUB_NODROP a publisher waits while one of its readers is at its high-water mark. It begins when it has heard of
the subscription of each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import zmq

from benchmark.processes import Rendezvous
from benchmark.queue_work import ELEMENTS, OVER, TO_ALL, Arrays, End, Part, Way, missing_side
from benchmark.subjects import Loop

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
#: Milliseconds until a reader tries again to connect.
_RETRY: Final = 5


class _Publishing:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        with zmq.Context() as context:
            if part.side == "get":
                with context.socket(zmq.SUB) as sub:
                    sub.setsockopt(zmq.RECONNECT_IVL, _RETRY)  # The reader is there before the publisher.
                    sub.connect(self._address)
                    sub.subscribe(b"")
                    yield _reading(sub)
            else:
                with context.socket(zmq.XPUB) as pub:
                    pub.setsockopt(zmq.XPUB_NODROP, 1)
                    pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # Otherwise it reports only the first subscription.
                    pub.bind(self._address)
                    for _ in range(part.readers):
                        pub.recv()
                    yield _writing(pub)

    @property
    def _address(self) -> str:
        return f"ipc://{self.place.socket()}"


def _writing(pub: zmq.Socket[bytes]) -> End:
    send = pub.send

    def put(item: Any) -> None:
        send(_encode(item))

    def arrays() -> Arrays:
        import numpy as np  # Only the loads of arrays need it.

        def put_array(number: int) -> None:
            # Sent from its own memory.
            pub.send(np.full(ELEMENTS, number, "u8").data, copy=False)

        return put_array, missing_side

    return End(put, put, end=lambda: put(OVER), arrays={TO_ALL: arrays})


def _reading(sub: zmq.Socket[bytes]) -> End:
    receive = sub.recv

    def get(_: int = 1) -> Any:
        return _decode(receive())

    def arrays() -> Arrays:
        import numpy as np

        def get_array() -> int:
            return int(np.frombuffer(sub.recv(copy=False).buffer, "u8").sum())

        return missing_side, get_array

    return End(get=get, get_many=get, arrays={TO_ALL: arrays})


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the sockets."""
    yield _Publishing(place)
