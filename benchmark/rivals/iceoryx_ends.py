"""iceoryx2: samples that are published to one reader each, with msgspec; a batch is a sample.

What is published goes to all subscribers, so each reader has a service of its own, and writers deal out in turns. As in
:mod:`benchmark.rivals.iceoryx`, readers look again and again and never sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from typing import Any, Final

import iceoryx2 as iox2
import msgspec

from benchmark.processes import Rendezvous
from benchmark.queue_work import ELEMENTS, IN_PLACE, OVER, Arrays, End, Part, Way, countdown, missing_side
from benchmark.rivals.iceoryx import BYTES, as_bytes, grows, node_of, remove, send, sought
from benchmark.subjects import Loop

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
#: Samples that may wait for a reader.
_BUFFERED: Final = 16
_WRITERS: Final = 16


class _Publishing:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        node = node_of(self.place)
        with contextlib.ExitStack() as stack:

            def kept(made: Any) -> Any:
                stack.callback(made.delete)
                return made

            if part.side == "get":
                subscriber = kept(_service(node, part.number).subscriber_builder().create())
                yield _reading(subscriber, part)
            else:
                services = [_service(node, number) for number in range(part.readers)]
                yield _writing([kept(grows(service.publisher_builder())) for service in services])


def _service(node: Any, reader: int) -> Any:
    return (
        node.service_builder(iox2.ServiceName.new(f"reader-{reader}"))
        .publish_subscribe(BYTES)
        .max_publishers(_WRITERS)
        .max_subscribers(1)
        .enable_safe_overflow(False)  # The publisher waits for room: no sample is lost.
        .subscriber_max_buffer_size(_BUFFERED)
        .open_or_create()
    )


def _publish(publisher: Any, data: bytes) -> None:
    # The publisher sometimes gives up although it is configured to wait, and reports a sample without a receiver.
    while not send(publisher.loan_slice_uninit(len(data)), data):
        pass


def _writing(publishers: list[Any]) -> End:
    turns = itertools.cycle(publishers)

    def put(item: Any) -> None:
        _publish(next(turns), _encode(item))

    def end() -> None:
        for publisher in publishers:
            _publish(publisher, _encode(OVER))

    def arrays() -> Arrays:
        import numpy as np  # Only the loads of arrays need it.

        array_of, loan_slice = ctypes.c_uint64 * ELEMENTS, publishers[0].loan_slice_uninit

        def put_array(number: int) -> None:
            sent = 0
            while not sent:
                loan = loan_slice(ELEMENTS * 8)
                np.ctypeslib.as_array(array_of.from_address(loan.payload_ptr)).fill(number)
                sent = loan.assume_init().send()

        return put_array, missing_side

    return End(put, put, end=end, arrays={IN_PLACE: arrays})


def _reading(subscriber: Any, part: Part) -> End:
    receive = subscriber.receive

    def get(_: int = 1) -> Any:
        found = sought(receive)
        item = _decode(as_bytes(found))
        found.delete()
        return item

    def arrays() -> Arrays:
        import numpy as np

        def get_array() -> int:
            found = sought(receive)
            total = int(np.frombuffer(as_bytes(found), "u8").sum())
            found.delete()
            return total

        return missing_side, get_array

    return End(get=get, get_many=get, is_over=countdown(part), arrays={IN_PLACE: arrays})


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the services. What processes have left that were killed is removed at the end."""
    try:
        yield _Publishing(place)
    finally:
        remove(place)
