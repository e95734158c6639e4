"""The published experiment: one process sends objects of 50 bytes in batches, and each of the others checks them all.

An object begins with its number. They are numbered on one side and looked at on the other by the same functions of
``study.c``, whatever they go through, so that it is not Python that is measured, which has one call for a batch on each
side.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from benchmark.compiled import library
from benchmark.processes import Caller
from benchmark.queue_crew import Crew, Duty
from benchmark.queue_loads import Done, Watch
from benchmark.queue_work import Part, Way
from benchmark.results import Result

#: Bytes of an object.
OBJECT: Final = 50
#: Results of a check of objects: all right, the end, or another object than the next one.
_RIGHT, _OVER = range(2)

_now = time.perf_counter_ns


class Native(NamedTuple):
    """The functions of ``study.c``."""

    fill: Callable[[int, int, int], None]
    #: Looks at bytes from a position of the stream on, and moves it.
    check: Callable[[int | bytes, int, Any], int]
    ring_open: Callable[[], int]
    ring_reset: Callable[[int, int, int], None]
    ring_send: Callable[[int, int, int], None]
    ring_receive: Callable[[int, int, Any], int]
    ring_close: Callable[[int], None]


def native() -> Native:
    """Build and loads them."""
    loaded, place, size, number = library("study.c"), ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
    position = ctypes.POINTER(ctypes.c_uint64)
    arguments: dict[str, tuple[Any, ...]] = {
        "fill": (place, size, size),
        "check": (place, size, position),
        "ring_open": (),
        "ring_reset": (place, number, number),
        "ring_send": (place, place, size),
        "ring_receive": (place, number, position),
        "ring_close": (place,),
    }
    for name, types in arguments.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = types, ctypes.c_int
    loaded.ring_open.restype = place
    return Native(*(getattr(loaded, name) for name in Native._fields))


def address_of(memory: Any) -> int:
    """Where a buffer lies that can be written."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Batch:
    """A batch of objects, in memory that is used for each of them again."""

    def __init__(self, size: int) -> None:
        self.bytes, self.size = bytearray(size), size
        self.address, self._fill = address_of(self.bytes), native().fill

    def fill(self, number: int) -> None:
        """Numbers its objects from that number on."""
        self._fill(self.address, self.size, number)

    @classmethod
    def end(cls) -> Batch:
        """Return one object, which is the end."""
        made = cls(OBJECT)
        made.bytes[:] = b"\xff" * OBJECT
        return made


def reading(look: Callable[[Any], int]) -> Callable[[], int | None]:
    """Return a function for a reader, which returns the number of bytes at the end, and None before.

    ``look`` waits for some bytes and checks them from a position on.
    """
    position = ctypes.c_uint64()
    reference = ctypes.byref(position)

    def get() -> int | None:
        found = look(reference)
        if found == _RIGHT:
            return None
        if found != _OVER:
            raise ValueError(f"what came as object {position.value // OBJECT} is another")
        return position.value

    return get


def _send(duty: Duty, *, size: int, seconds: float) -> None:
    put, batch = duty.end.put, Batch(size)
    duty.begin()
    watch = Watch()
    until = watch.start + int(seconds * 1e9)
    for number in itertools.count():
        batch.fill(number * size // OBJECT)
        put(batch)
        if _now() > until:
            break
    duty.tell(watch.done(batches=number + 1))
    put(Batch.end())
    duty.tell("ended")


def _receive(duty: Duty) -> tuple[Done, int]:
    get = duty.end.get
    duty.begin()
    watch = Watch()
    while (total := get()) is None:
        pass
    return watch.done(), total


def rate(caller: Caller, *, seconds: float, readers: int, size: int) -> Result:
    """Objects from the first that is sent to when each reader has looked at the last; counted once."""
    way: Way = caller.client
    with Crew() as crew:
        receiving = crew.add(way, [Part("get", number, 1, readers, raw=True) for number in range(readers)], _receive)
        sending = crew.add(way, [Part("put", 0, 1, readers, raw=True)], _send, size=size, seconds=seconds)
        crew.begin()
        (sent,) = crew.hear(sending, seconds)
        crew.end(sending)
        received: list[tuple[Done, int]] = crew.hear(receiving, 0.0)
        crew.part()
    for _, total in received:
        if total != sent.batches * size:
            raise ValueError(f"{sent.batches * size} bytes were sent, and a reader has got {total}")
    took, cpu = max(done.end for done, _ in received) - sent.start, sent.cpu + sum(done.cpu for done, _ in received)
    total = sent.batches * size
    return Result(total // OBJECT, took / 1e9, cpu=cpu, extra={"GB/s": total / took})
