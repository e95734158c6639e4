"""Our topics, as a rival's are written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import shmrpc
from benchmark.processes import Rendezvous
from benchmark.queue_work import ELEMENTS, OVER, TO_ALL, Arrays, End, Part, Way, missing_side
from benchmark.subjects import Loop

_NAME: Final = "messages"
#: Messages that a reader may be behind, and bytes of large ones: as many as stay in the cache.
_HIGH: Final = 10_000
_MEMORY: Final = "8MiB"
#: Seconds that readers have to make room for the end, and between two looks whether they have.
_PATIENCE: Final = 20.0
_PAUSE: Final = 1e-3


class _Blocking:
    """Topics in threads."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        if part.side == "get":
            with shmrpc.sync.subscribe(_NAME) as s:
                receive, receive_many = s.get, s.get_many

                def get() -> Any:
                    return receive().value

                def get_many(most: int) -> list[Any]:
                    return [message.value for message in receive_many(most)]

                yield End(get=get, get_many=get_many, arrays={TO_ALL: lambda: (missing_side, lambda: _sum(get))})
        else:
            with shmrpc.sync.topic(_NAME, high_watermark=_HIGH, max_memory=_MEMORY) as t:
                yield End(
                    t.publish,
                    t.publish_many,
                    end=lambda: t.publish(OVER),
                    arrays={TO_ALL: lambda: _built(t)},
                )


class _InLoop:
    """Topics in event loops."""

    def __init__(self, place: Rendezvous, loop: Loop) -> None:
        self.place, self.loop = place, loop

    @contextlib.asynccontextmanager
    async def open(self, part: Part) -> AsyncIterator[End]:
        if part.side == "get":
            async with shmrpc.subscribe(_NAME) as s:
                receive, receive_many = s.get, s.get_many

                async def get() -> Any:
                    return (await receive()).value

                async def get_many(most: int) -> list[Any]:
                    return [message.value for message in await receive_many(most)]

                yield End(get=get, get_many=get_many)
        else:
            async with shmrpc.topic(_NAME, high_watermark=_HIGH, max_memory=_MEMORY) as t:
                yield End(t.publish, t.publish_many, end=lambda: _end(t))


def _end(t: shmrpc.Topic) -> None:
    """Publish the end, once the slowest reader, which is another process, has room for it."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            t.publish_nowait(OVER)
        except shmrpc.TopicFull:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _built(t: shmrpc.sync.Topic) -> Arrays:
    """Return each array is made where its readers will look at it."""

    def put(number: int) -> None:
        with t.reserve(ELEMENTS, "u8") as array:
            array.fill(number)

    return put, missing_side


def _sum(get: Any) -> int:
    """Return the sum of an array, read in place."""
    return int(get().sum())


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
