"""An inbox whose frames come by the loop, as they do on every transport that shares no memory."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from shmrpc.transport.listener import Inbox
from shmrpc.wire.codec import Body


class ScheduledDelivery:
    """Calls ``deliver`` in a turn of the loop of its own once something has come, in one context."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        # Not the sender's context: its variables are no business of the receiver's.
        self._context = contextvars.copy_context()
        self._handle: asyncio.Handle | None = None

    def schedule(self) -> None:
        """Has what has come delivered, unless the loop has been closed since."""
        if self._handle is None and not self._loop.is_closed():
            self._handle = self._loop.call_soon(self._run, context=self._context)

    def _run(self) -> None:
        self._handle = None
        self._deliver()

    def flush(self) -> None:
        """Delivers what has come now, since this is a turn of the loop of its own."""
        if self._handle is not None:
            self._handle.cancel()
            self._context.run(self._run)

    def cancel(self) -> None:
        """Delivers nothing any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class QueuedPeer(Protocol):
    """A client, as the inbox knows it."""

    #: What stands for it in the layer above.
    key: Any

    def account_for(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Accounts for a frame of its that has come out of the inbox; whether it is to be run."""
        ...

    def send(self, opcode: int, call_id: int, body: Body, /) -> None:
        """Sends it an answer."""
        ...


_P = TypeVar("_P", bound=QueuedPeer)


class QueuedInbox(Inbox, Generic[_P]):
    """The frames of all clients of a server, in the order in which they came. It is its own poller."""

    def __init__(self, take: Callable[[], None]) -> None:
        super().__init__(take)
        self._delivery = ScheduledDelivery(self._pump)
        self._frames: deque[tuple[_P, int, int, Body]] = deque()
        #: Frames that are taken before the loop goes on.
        self._batch_size = 0

    def flush(self) -> None:
        """Has the frames that have come taken now, in a turn of the loop in which nothing else is done."""
        self._delivery.flush()

    @property
    def poller(self) -> QueuedInbox[_P]:
        """Itself."""
        return self

    def put(self, peer: _P, opcode: int, call_id: int, body: Body) -> None:
        """Queues a frame that a client has sent."""
        if self._open:
            self._frames.append((peer, opcode, call_id, body))
            self._delivery.schedule()

    def _pump(self) -> None:
        self._batch_size = len(self._frames)
        try:
            self._take()
        finally:  # Even if a signal is to end the program: until it does, others are served.
            if self._frames and self._open:
                self._delivery.schedule()

    def next(self) -> tuple[Any, int, int, Body] | None:
        """The next frame of those that were there when this turn began."""
        while self._batch_size and self._frames:
            self._batch_size -= 1
            peer, opcode, call_id, body = self._frames.popleft()
            if peer.account_for(opcode, call_id, body):
                return peer.key, opcode, call_id, body
        return None

    def send_next(self, channel: _P, opcode: int, id: int, payload: Body) -> Any:
        """Sends an answer, then does as :meth:`next`."""
        channel.send(opcode, id, payload)
        return self.next()

    def close(self) -> None:
        """Takes nothing any more."""
        self._open = False
        self._frames.clear()
        self._delivery.cancel()
