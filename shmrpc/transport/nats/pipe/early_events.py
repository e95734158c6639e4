"""Events of a connection from before the layer above listens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from shmrpc.transport.connection import CloseReason
from shmrpc.transport.nats.messages import Message
from shmrpc.wire.codec import Body

#: Handles a frame: opcode, call id, body, and the sender's clock in nanoseconds.
OnFrame = Callable[[int, int, Body, int], None]
#: A received frame or message, or the end.
Event = tuple[int, int, Body, int] | Message | CloseReason


class EarlyEvents:
    """Received frames, messages and the end of a connection, in order, until they are delivered."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        #: Done once there is an event.
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def keep(self, event: Event) -> None:
        """Keep an event."""
        self._events.append(event)
        if not self._first.done():
            self._first.set_result(None)

    def keep_frame(self, *frame: Any) -> None:
        """Keep a frame."""
        self.keep(frame)

    async def first(self) -> Event:
        """Wait without a limit for the first event; remove and return it. Call this once, before :meth:`deliver`."""
        await self._first
        return self._events.popleft()

    def deliver(
        self, on_frame: OnFrame, on_message: Callable[[Message], None], on_end: Callable[[CloseReason], None]
    ) -> None:
        """Remove all events, and pass each to the function for its kind.

        Passes on the others, too, if a function raises; then raises the first exception.
        """
        first_error: BaseException | None = None
        while self._events:
            event = self._events.popleft()
            try:
                if isinstance(event, CloseReason):
                    on_end(event)
                elif isinstance(event, tuple):
                    on_frame(*event)
                else:
                    on_message(event)
            except BaseException as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
