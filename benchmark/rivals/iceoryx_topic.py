"""iceoryx2: samples that are published to all readers, with msgspec; a batch is a sample.

A publisher that waits for room now and then gives up all the same, when some readers have got a sample and others have
not. So each sample begins with its number: it is sent again, and who has it already passes it over. As in
:mod:`benchmark.rivals.iceoryx`, readers look again and again and never sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import iceoryx2 as iox2
import msgspec

from benchmark.processes import Rendezvous
from benchmark.queue_work import ELEMENTS, OVER, TO_ALL, Arrays, End, Part, Way, missing_side
from benchmark.rivals.iceoryx import BYTES, as_bytes, grows, node_of, remove, send, sought
from benchmark.subjects import Loop

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_NUMBER: Final = struct.Struct("<Q")
#: Samples that may wait for a reader, and how many of those there may be.
_BUFFERED: Final = 16
_READERS: Final = 8


class _Publishing:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        service = (
            node_of(self.place)
            .service_builder(iox2.ServiceName.new("messages"))
            .publish_subscribe(BYTES)
            .max_publishers(1)
            .max_subscribers(_READERS)
            .enable_safe_overflow(False)  # The publisher waits for room: no sample is lost.
            .subscriber_max_buffer_size(_BUFFERED)
            .open_or_create()
        )
        if part.side == "get":
            port = service.subscriber_builder().create()
            yield _reading(port)
        else:
            waits = iox2.BackpressureStrategy.RetryUntilDelivered
            port = grows(service.publisher_builder().backpressure_strategy(waits))
            yield _writing(port, part.readers)
        port.delete()


def _writing(publisher: Any, readers: int) -> End:
    numbers, loan_slice = itertools.count(), publisher.loan_slice_uninit

    def put(item: Any) -> None:
        data = _NUMBER.pack(next(numbers)) + _encode(item)
        while send(loan_slice(len(data)), data) < readers:
            pass

    def arrays() -> Arrays:
        import numpy as np  # Only the loads of arrays need it.

        array_of = ctypes.c_uint64 * (1 + ELEMENTS)

        def put_array(number: int) -> None:
            sent, sample = 0, next(numbers)
            while sent < readers:
                loan = loan_slice((1 + ELEMENTS) * 8)
                array = np.ctypeslib.as_array(array_of.from_address(loan.payload_ptr))
                array[0] = sample
                array[1:].fill(number)
                sent = loan.assume_init().send()

        return put_array, missing_side

    return End(put, put, end=lambda: put(OVER), arrays={TO_ALL: arrays})


def _reading(subscriber: Any) -> End:
    receive, numbers = subscriber.receive, itertools.count()

    def sample(read: Callable[[memoryview], Any]) -> Any:
        number = next(numbers)
        while True:
            found = sought(receive)
            view = as_bytes(found)
            came = _NUMBER.unpack_from(view)[0]
            result = read(view) if came == number else None
            del view
            found.delete()
            if came == number:
                return result
            if came > number:
                raise ValueError(f"sample {number} is lost")

    def get(_: int = 1) -> Any:
        return sample(lambda view: _decode(view[_NUMBER.size :]))

    def arrays() -> Arrays:
        import numpy as np

        def total(view: memoryview) -> int:
            return int(np.frombuffer(view, "u8")[1:].sum())

        return missing_side, lambda: sample(total)

    return End(get=get, get_many=get, arrays={TO_ALL: arrays})


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the services. What processes have left that were killed is removed at the end."""
    try:
        yield _Publishing(place)
    finally:
        remove(place)
