"""Inbox of transports without shared memory, whose frames arrive through the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from shmrpc.transport.listener import Inbox
from shmrpc.wire.codec import Body


class ScheduledDelivery:
    """Scheduled call of ``deliver`` in a later turn of the loop, always in the context of this object's creator.

    Belongs to the loop that runs when it is created.
    """

    def __init__(self, deliver: Callable[[], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        # A context of its own, so that the receiver does not see the sender's variables.
        self._context = contextvars.copy_context()
        self._handle: asyncio.Handle | None = None

    def schedule(self) -> None:
        """Schedule a delivery, unless one is scheduled or the loop is closed."""
        if self._handle is None and not self._loop.is_closed():
            self._handle = self._loop.call_soon(self._run, context=self._context)

    def _run(self) -> None:
        """Run the scheduled delivery, which may schedule the next one."""
        self._handle = None
        self._deliver()

    def flush(self) -> None:
        """Run a scheduled delivery now. Does nothing if none is scheduled."""
        if self._handle is not None:
            self._handle.cancel()
            self._context.run(self._run)

    def cancel(self) -> None:
        """Cancel the scheduled delivery, if there is one. :meth:`schedule` works as before."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class QueuedPeer(Protocol):
    """Client of an inbox."""

    #: Key of the client in the layer above.
    key: Any

    def account_for(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Account for a frame taken from the inbox. Returns True if the server should run it."""
        ...

    def send(self, opcode: int, call_id: int, body: Body, /) -> None:
        """Send a reply to the client, unless the client has left. Raises Oversize if it is too large."""
        ...


_P = TypeVar("_P", bound=QueuedPeer)


class QueuedInbox(Inbox, Generic[_P]):
    """Inbox with the frames of all clients in order of arrival, which is its own poller."""

    def __init__(self, take: Callable[[], None]) -> None:
        super().__init__(take)
        self._delivery = ScheduledDelivery(self._pump)
        self._frames: deque[tuple[_P, int, int, Body]] = deque()
        #: Number of frames to take in this turn of the loop.
        self._batch_size = 0

    def flush(self) -> None:
        """Take the waiting frames now instead of in a later turn of the loop. Call this outside of any task."""
        self._delivery.flush()

    @property
    def poller(self) -> QueuedInbox[_P]:
        """The inbox itself."""
        return self

    def put(self, peer: _P, opcode: int, call_id: int, body: Body) -> None:
        """Queue a frame from a client, unless the inbox is closed."""
        if self._open:
            self._frames.append((peer, opcode, call_id, body))
            self._delivery.schedule()

    def _pump(self) -> None:
        """Have the waiting frames taken; schedule another turn if any are left. Raises what ``take`` raises."""
        self._batch_size = len(self._frames)
        try:
            self._take()
        finally:  # Serve the other clients, even after an exception that ends the program.
            if self._frames and self._open:
                self._delivery.schedule()

    def next(self) -> tuple[Any, int, int, Body] | None:
        """Return the next of the frames that were waiting when this turn began, or None.

        Skips frames that the server should not run.
        """
        while self._batch_size and self._frames:
            self._batch_size -= 1
            peer, opcode, call_id, body = self._frames.popleft()
            if peer.account_for(opcode, call_id, body):
                return peer.key, opcode, call_id, body
        return None

    def send_next(self, channel: _P, opcode: int, id: int, payload: Body) -> Any:
        """Send a reply, then return the next frame as :meth:`next` does. Raises Oversize."""
        channel.send(opcode, id, payload)
        return self.next()

    def close(self) -> None:
        """Stop receiving, and drop the waiting frames."""
        self._open = False
        self._frames.clear()
        self._delivery.cancel()
