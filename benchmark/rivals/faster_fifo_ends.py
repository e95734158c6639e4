"""faster-fifo's queue: ``put_many`` and ``get_many`` for batches, ``put`` and ``get`` for one, with msgspec.

Arrays go through a queue of their own, as their bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from faster_fifo import Queue

from benchmark.processes import Rendezvous
from benchmark.queue_work import COPIED, Arrays, End, Part, Way, baton, copied
from benchmark.subjects import Loop

#: Bytes of items that may wait, and of arrays.
_SIZE: Final = 1 << 20
_ARRAYS: Final = 8 << 20
#: Seconds to wait. Nothing interrupts a wait.
_PATIENCE: Final = 60.0


def _dumped(array: Any) -> bytes:
    data: bytes = array.tobytes()
    return data


def _loaded(view: memoryview) -> Any:
    import numpy as np  # Only the loads of arrays need it.

    return np.frombuffer(view, "u8").copy()  # The view is of a buffer that the next item is written to.


class _Inherited:
    """A queue that all processes inherit."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place
        self._items = Queue(_SIZE, dumps=msgspec.msgpack.encode, loads=msgspec.msgpack.decode)
        self._arrays = Queue(_ARRAYS, dumps=_dumped, loads=_loaded)

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        q = self._items
        put, get, put_many = (functools.partial(act, timeout=_PATIENCE) for act in (q.put, q.get, q.put_many))

        def get_many(most: int) -> Any:
            return q.get_many(timeout=_PATIENCE, max_messages_to_get=most)

        yield End(put, put_many, get, get_many, *baton(put, part), arrays={COPIED: self._copied})

    def _copied(self) -> Arrays:
        put, get = (functools.partial(act, timeout=_PATIENCE) for act in (self._arrays.put, self._arrays.get))
        return copied(put, get)


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the queue."""
    yield _Inherited(place)
