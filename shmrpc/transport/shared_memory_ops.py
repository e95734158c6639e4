"""Operations on memory shared with the peer, and their fallback on other transports."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any, Protocol

from shmrpc import _core
from shmrpc.errors import SharedMemoryError
from shmrpc.streams.items import ItemRun
from shmrpc.streams.sending import PlainSender, Sender
from shmrpc.wire.codec import Body


class SharedMemoryOps(Protocol):
    """Operations on memory shared with the peer. Other transports have :class:`SharedMemoryFallback`."""

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """Return a sender of the items of a stream, which may send ``credit`` bytes before the receiver grants more."""
        ...

    def take_back(self, call_id: int, /) -> object:
        """Withdraw frames of a call that wait for room. Returns True in a client if its request was withdrawn."""
        ...

    def allocate(self, size: int, /) -> Any:
        """Allocate memory of ``size`` bytes or more that can be lent to the peer, and return an object with its buffer.

        The memory is free again once the object and the peer's references to it are gone. Raises SharedMemoryError if
        ``max_memory`` is exhausted or the memory cannot be allocated; in a client, ConnectionLost if the server died.
        """
        ...


class ClientSharedMemoryOps(SharedMemoryOps, Protocol):
    """Operations of a client, which can also receive replies without a turn of the loop."""

    @property
    def channel(self) -> _core.Channel | None:
        """Channel of the native path; None if the transport is not native."""
        ...

    def exchange(self, opcode: int, call_id: int, body: Body, /) -> Any:
        """Send a request, and spin for its reply as long as that pays.

        Returns the body of a plain reply, any other frame as a tuple of opcode, call id and body, or None if nothing
        arrived in time: the reply then arrives as a frame. Raises the errors of :mod:`shmrpc.transport.errors`;
        PeerLeft, and sends nothing, if the server has left.
        """
        ...

    def begin(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Send a request without spinning for its reply. Returns False if the request waits in a backlog for room.

        Raises the errors of :mod:`shmrpc.transport.errors`.
        """
        ...

    def listen(self) -> None:
        """Receive waiting frames, and have the loop woken for later ones.

        If the server has broken a rule, ends the connection instead of raising.
        """
        ...

    def unpark(self) -> None:
        """Stop having the loop woken for later frames, until the next :meth:`listen`."""
        ...

    def route(self, call_id: int, feed: Callable[[ItemRun], None], /) -> None:
        """Deliver items of this call to ``feed`` in runs from now on. A single item may still arrive as a frame."""
        ...

    def unroute(self, call_id: int, /) -> None:
        """Deliver the items of this call as frames again. Idempotent."""
        ...

    def pull(self, call_id: int, /) -> None:
        """Receive waiting frames without a wait, first those of a routed call. Errors are those of :meth:`listen`."""
        ...

    def untaken(self) -> tuple[int, int, int, int]:
        """Return the backlog: bytes read by the server, bytes in the ring, frames waiting for room, and their bytes."""
        ...


class SharedMemoryFallback:
    """Fallback of :class:`SharedMemoryOps` on a transport without shared memory."""

    def __init__(self, send: Callable[[int, int, Body], object], max_memory: int | None) -> None:
        self._send = send
        self._max_memory = max_memory

    def sender(self, opcode: int, call_id: int, credit: int) -> PlainSender:
        """Return a sender that sends each item of a stream as a frame."""
        return PlainSender(functools.partial(self._send, opcode, call_id), credit)

    def take_back(self, call_id: int) -> bool:
        """Return False: sent frames cannot be withdrawn."""
        return False

    def allocate(self, size: int) -> bytearray:
        """Allocate private memory. Raises SharedMemoryError if ``size`` is over ``max_memory``, or without memory.

        Does not count earlier allocations.
        """
        if self._max_memory is not None and size > self._max_memory:
            raise SharedMemoryError(
                errno.ENOMEM, f"{size:,} bytes are over max_memory={self._max_memory:,}, the smaller of both sides'"
            )
        try:
            return bytearray(size)
        except MemoryError:
            raise SharedMemoryError(errno.ENOMEM, f"this process has no room for {size:,} bytes") from None


class ClientSharedMemoryFallback(SharedMemoryFallback):
    """Fallback of :class:`ClientSharedMemoryOps`: all frames arrive through the event loop."""

    def __init__(
        self, send: Callable[[int, int, Body], bool], max_memory: int | None, check_loop: Callable[[], None]
    ) -> None:
        super().__init__(send, max_memory)
        self._check_loop = check_loop
        self.begin = send
        self.channel = None

    def exchange(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a request, and return None; its reply arrives as a frame.

        Raises LocalProtocolError in another event loop, RuntimeError outside of any, and the errors of ``send``.
        """
        self._check_loop()  # Before a frame reaches another loop.
        self._send(opcode, call_id, body)

    def listen(self) -> None:
        """Do nothing: the loop wakes by itself."""

    def unpark(self) -> None:
        """Do nothing."""

    def route(self, call_id: int, feed: Callable[[ItemRun], None]) -> None:
        """Do nothing: items arrive as frames."""

    def unroute(self, call_id: int) -> None:
        """Do nothing."""

    def pull(self, call_id: int) -> None:
        """Do nothing: frames arrive in their turn of the loop."""

    def untaken(self) -> tuple[int, int, int, int]:
        """Return zeros: the backlog is unknown here."""
        return 0, 0, 0, 0
