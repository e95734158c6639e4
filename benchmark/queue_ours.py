"""Our queues, as a rival's are written."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

import shmrpc
from benchmark.processes import Rendezvous
from benchmark.queue_work import COPIED, ELEMENTS, IN_PLACE, Arrays, End, Part, Way, copied
from benchmark.subjects import Loop

_NAME: Final = "items"


class _Blocking:
    """Queues in threads."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        with shmrpc.sync.queue(_NAME, part.most, raw=part.raw) as q:
            arrays = {COPIED: lambda: copied(q.put, q.get), IN_PLACE: lambda: _in_place(q)}
            yield End(q.put, q.put_many, q.get, q.get_many, q.shutdown, size=q.qsize, arrays=arrays)


class _InLoop:
    """Queues in event loops."""

    def __init__(self, place: Rendezvous, loop: Loop) -> None:
        self.place, self.loop = place, loop

    @contextlib.asynccontextmanager
    async def open(self, part: Part) -> AsyncIterator[End]:
        async with shmrpc.queue(_NAME, part.most, raw=part.raw) as q:
            yield End(q.put, q.put_many, q.get, q.get_many, q.shutdown, size=q.qsize)


def _in_place(q: shmrpc.sync.Queue) -> Arrays:
    def put(number: int) -> None:
        with q.reserve(ELEMENTS, "u8") as array:
            array.fill(number)

    def get() -> int:
        with q.claim() as claim:
            return int(claim.value.sum())

    return put, get


@contextlib.contextmanager
def connect_threads(place: Rendezvous) -> Iterator[Way]:
    """For threads."""
    yield _Blocking(place)


@contextlib.contextmanager
def connect_uvloop(place: Rendezvous) -> Iterator[Way]:
    """For uvloop."""
    yield _InLoop(place, "uvloop")


@contextlib.contextmanager
def connect_asyncio(place: Rendezvous) -> Iterator[Way]:
    """For asyncio's own loop."""
    yield _InLoop(place, "asyncio")
