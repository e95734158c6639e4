"""Packets in shared memory as a published study has them, by ``study.c``: under a mutex of three kinds, or without."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from benchmark.processes import Rendezvous
from benchmark.queue_work import End, Part, Way
from benchmark.study_work import Batch, native, reading
from benchmark.subjects import Loop

_KINDS: Final = ("one packet", "mutex", "adaptive", "robust")


class _Ring:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous, kind: int, ring: int) -> None:
        self.place, self._kind, self._ring = place, kind, ring

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        ring, functions = self._ring, native()
        if part.side == "get":
            yield End(get=reading(lambda position: functions.ring_receive(ring, part.number, position)))
            return
        # All readers are there, and none reads.
        functions.ring_reset(ring, self._kind, part.readers)
        send = functions.ring_send

        def put(batch: Batch) -> None:
            send(ring, batch.address, batch.size)

        yield End(put)


@contextlib.contextmanager
def _connect(place: Rendezvous, kind: str) -> Iterator[Way]:
    """Yield a ring that processes inherit which are forked."""
    functions = native()
    ring = functions.ring_open()
    try:
        yield _Ring(place, _KINDS.index(kind), ring)
    finally:
        functions.ring_close(ring)


_Connect = Callable[[Rendezvous], AbstractContextManager[Way]]
connect_one_packet: _Connect = functools.partial(_connect, kind="one packet")
connect_mutex: _Connect = functools.partial(_connect, kind="mutex")
connect_adaptive: _Connect = functools.partial(_connect, kind="adaptive")
connect_robust: _Connect = functools.partial(_connect, kind="robust")
