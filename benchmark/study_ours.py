"""Our topics in the published experiment, as a rival's are written: a batch is a message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import shmrpc
from benchmark.processes import Rendezvous
from benchmark.queue_work import End, Part, Way
from benchmark.study_work import Batch, native, reading
from benchmark.subjects import Loop

_NAME: Final = "objects"
#: Batches that a reader may be behind, and bytes of them: as many as stay in the cache.
_HIGH: Final = 256
_MEMORY: Final = "4MiB"
#: Bytes of messages that are taken at once, as many as the study's readers take.
_AT_ONCE: Final = 32 * 8_192


class _Topic:
    """Topics in threads: of raw bytes, which a reader copies, or of arrays, which it looks at where they lie."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous, *, raw: bool) -> None:
        self.place, self._raw = place, raw

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        if part.side == "get":
            with shmrpc.sync.subscribe(_NAME, raw=self._raw) as s:
                yield End(get=reading(_looking(s, _bytes_of if self._raw else _array_of)))
        else:
            with shmrpc.sync.topic(_NAME, high_watermark=_HIGH, max_memory=_MEMORY, raw=self._raw) as t:
                yield End(_sending(t) if self._raw else _sending_arrays(t))


def _sending(t: shmrpc.sync.Topic) -> Callable[[Batch], None]:
    publish = t.publish

    def put(batch: Batch) -> None:
        publish(batch.bytes)

    return put


def _looking(s: shmrpc.sync.Subscription, place_of: Callable[[Any], bytes | int]) -> Callable[[Any], int]:
    check, get_many, most = native().check, s.get_many, 1

    def look(position: Any) -> int:
        nonlocal most
        for message in get_many(most):
            value = message.value
            if found := check(place_of(value), len(value), position):
                return found
        most = max(1, _AT_ONCE // len(value))
        return 0

    return look


def _bytes_of(value: bytes) -> bytes:
    return value


def _array_of(value: Any) -> int:
    """Where it lies."""
    place: int = value.__array_interface__["data"][0]
    return place


def _sending_arrays(t: shmrpc.sync.Topic) -> Callable[[Batch], None]:
    import numpy as np  # Only arrays need it.

    publish = t.publish

    def put(batch: Batch) -> None:
        publish(np.frombuffer(batch.bytes, "u1"))

    return put


@contextlib.contextmanager
def connect_raw(place: Rendezvous) -> Iterator[Way]:
    """Of raw bytes."""
    yield _Topic(place, raw=True)


@contextlib.contextmanager
def connect_arrays(place: Rendezvous) -> Iterator[Way]:
    """Of arrays."""
    import numpy  # noqa: F401 - imported here once, and not by each process that is forked

    yield _Topic(place, raw=False)
