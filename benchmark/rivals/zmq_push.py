"""pyzmq's PUSH and PULL over ``ipc://``, with msgspec: a batch is a message.

Each reader has an address, and each writer a socket for each of them, so that it can say to each that it has ended;
it deals out messages in turns and passes over who has no room, as a PUSH socket with several peers does.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import zmq

from benchmark.processes import Rendezvous
from benchmark.queue_work import COPIED, ELEMENTS, OVER, Arrays, End, Part, Way, countdown, missing_side
from benchmark.subjects import Loop

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def _dealing(sockets: list[zmq.Socket[bytes]]) -> Callable[[bytes], object]:
    if len(sockets) == 1:
        only: Callable[[bytes], object] = sockets[0].send
        return only
    turns = itertools.cycle(sockets)

    def send(data: bytes) -> None:
        for _ in sockets:
            with contextlib.suppress(zmq.Again):
                next(turns).send(data, zmq.NOBLOCK)
                return
        next(turns).send(data)

    return send


class _Pushing:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        with zmq.Context() as context, contextlib.ExitStack() as stack:

            def socket(kind: int) -> zmq.Socket[bytes]:
                return stack.enter_context(context.socket(kind))

            if part.side == "get":
                pull = socket(zmq.PULL)
                pull.bind(self._address(part.number))
                yield _reading(pull, part)
            else:
                pushes = [socket(zmq.PUSH) for _ in range(part.readers)]
                for number, push in enumerate(pushes):
                    push.connect(self._address(number))
                yield _writing(pushes)

    def _address(self, reader: int) -> str:
        return f"ipc://{self.place.socket(f'reader-{reader}')}"


def _writing(pushes: list[zmq.Socket[bytes]]) -> End:
    send = _dealing(pushes)

    def put(item: Any) -> None:
        send(_encode(item))

    def end() -> None:
        for push in pushes:
            push.send(_encode(OVER))

    def arrays() -> Arrays:
        import numpy as np  # Only the loads of arrays need it.

        def put_array(number: int) -> None:
            # Sent from its own memory.
            pushes[0].send(np.full(ELEMENTS, number, "u8").data, copy=False)

        return put_array, missing_side

    return End(put, put, end=end, arrays={COPIED: arrays})


def _reading(pull: zmq.Socket[bytes], part: Part) -> End:
    receive = pull.recv

    def get(_: int = 1) -> Any:
        return _decode(receive())

    def arrays() -> Arrays:
        import numpy as np

        def get_array() -> int:
            return int(np.frombuffer(pull.recv(copy=False).buffer, "u8").sum())

        return missing_side, get_array

    return End(get=get, get_many=get, is_over=countdown(part), arrays={COPIED: arrays})


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the sockets."""
    yield _Pushing(place)
