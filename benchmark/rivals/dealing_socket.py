"""UNIX sockets on uvloop, written for queues and topics: each reader listens, and a writer deals out to them in turns.

To all of them, for topics, it writes the same frame.

A batch, or an item that is put alone, is a frame by msgspec. A reader that has many frames reads no more for a while,
and a writer whose socket is full waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from benchmark.processes import Rendezvous
from benchmark.queue_work import OVER, End, Part, Way, countdown
from benchmark.rivals.asyncio_protocol import MSGSPEC, Frames
from benchmark.subjects import Loop

#: Frames at which a reader reads no more, and at which it does again.
_HIGH, _LOW = 1_000, 500


class _Writing(Frames):
    """A writer's connection to a reader."""

    def __init__(self) -> None:
        super().__init__(MSGSPEC)
        self.writable = asyncio.Event()
        self.writable.set()
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        """Continue, because all is sent."""
        self.writable.set()
        self.closed.set()

    def pause_writing(self) -> None:
        """Wait before the next write, because the socket is full."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self.writable.set()


class _Inbox:
    """The received messages of all writers of a reader."""

    def __init__(self) -> None:
        self._frames: deque[Any] = deque()
        self._transports: list[asyncio.Transport] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_full = False

    def add(self, transport: asyncio.Transport) -> None:
        self._transports.append(transport)

    def put(self, frame: Any) -> None:
        self._frames.append(frame)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if len(self._frames) >= _HIGH and not self._is_full:
            self._is_full = True
            for transport in self._transports:
                transport.pause_reading()

    async def get(self, _: int = 1) -> Any:
        while not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        frame = self._frames.popleft()
        if self._is_full and len(self._frames) <= _LOW:
            self._is_full = False
            for transport in self._transports:
                transport.resume_reading()
        return frame


class _Reading(Frames):
    """A reader's connection to a writer."""

    def __init__(self, inbox: _Inbox) -> None:
        super().__init__(MSGSPEC)
        self._inbox = inbox
        self.message_received = inbox.put  # type: ignore[method-assign, assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a writer."""
        super().connection_made(transport)
        self._inbox.add(self.transport)


class _Dealing:
    loop: Loop = "uvloop"

    def __init__(self, place: Rendezvous, *, to_all: bool) -> None:
        self.place, self._to_all = place, to_all

    @contextlib.asynccontextmanager
    async def open(self, part: Part) -> AsyncIterator[End]:
        loop = asyncio.get_running_loop()
        if part.side == "get":
            inbox = _Inbox()
            server = await loop.create_unix_server(lambda: _Reading(inbox), self._address(part.number))
            yield End(get=inbox.get, get_many=inbox.get, is_over=countdown(part))
            server.close()
            return
        peers = [
            (await loop.create_unix_connection(_Writing, self._address(number)))[1] for number in range(part.readers)
        ]
        turns = itertools.cycle(peers)

        async def deal(item: Any) -> None:
            peer = next(turns)
            peer.send(item)
            await peer.writable.wait()

        async def give(item: Any) -> None:
            frame = peers[0].frame(item)
            for peer in peers:
                peer.transport.write(frame)
            for peer in peers:
                await peer.writable.wait()

        def end() -> None:
            for peer in peers:
                peer.send(OVER)

        put = give if self._to_all else deal
        yield End(put, put, end=end)
        for peer in peers:
            peer.transport.close()
            await peer.closed.wait()

    def _address(self, reader: int) -> str:
        return self.place.socket(f"reader-{reader}")


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Way]:
    """Yield the sockets of a queue."""
    yield _Dealing(place, to_all=False)


@contextlib.contextmanager
def connect_to_all(place: Rendezvous) -> Iterator[Way]:
    """Yield those of a topic."""
    yield _Dealing(place, to_all=True)
