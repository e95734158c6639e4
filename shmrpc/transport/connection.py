"""Connections of clients, as the layers above use them.

Implementations are :mod:`shmrpc.transport.shm` between processes, :mod:`shmrpc.transport.nats` between hosts and
:mod:`shmrpc.transport.memory` within one event loop. The errors of sending are in :mod:`shmrpc.transport.errors`.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from shmrpc import _core
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ShmrpcError
from shmrpc.host import fork
from shmrpc.streams.sending import Sender
from shmrpc.transport.shared_memory_ops import ClientSharedMemoryOps
from shmrpc.wire.codec import Body
from shmrpc.wire.control import Goodbye
from shmrpc.wire.frames import Shape

#: Opcode, call id, body.
Frame = tuple[int, int, Body]
#: Handles a received frame.
OnFrame = Callable[[int, int, Body], None]


class CloseReason(msgspec.Struct, frozen=True):
    """Reason why a connection has ended."""

    error: ShmrpcError
    #: Highest call id that the server received, if it reported one. Calls with higher ids were not executed.
    reached: int | None = None

    @classmethod
    def from_goodbye(cls, goodbye: Goodbye, peer: str) -> CloseReason:
        """Return the reason in the goodbye of a peer. ``peer``: description of the peer for the message.

        The error is a RemoteProtocolError if the peer reports a fault of this side, otherwise a ConnectionLost. Only in
        the second case does the reason have ``reached``.
        """
        if goodbye.fault:
            return cls(RemoteProtocolError(f"{peer} found a fault of ours: {goodbye.reason}"))
        return cls(ConnectionLost(f"{peer} closed the connection: {goodbye.reason}"), goodbye.reached)


#: Handles the end of a connection.
OnEnd = Callable[[CloseReason], None]


class Connection(ABC):
    """Connection of a client in an event loop, as a session uses it.

    Belongs to the loop that runs when it is created, and is used only in the thread of that loop.
    """

    #: Address of the server, as a URL without a name or a secret.
    address: str
    #: Sends a frame. Returns False if it waits for room. Raises the errors of :mod:`shmrpc.transport.errors`.
    send: Callable[[int, int, Body], bool]
    #: Largest total size in bytes of the large buffers of one frame; None if only memory bounds it.
    max_memory: int | None = None
    #: Returns the bytes that a stream may have in flight beyond its first credit; None on a transport without latency.
    extra_credit: Callable[[], int] | None = None

    def __init__(
        self, service: str, pid: int, uid: int, max_frame: int, endpoints: list[str], shapes: dict[int, Shape]
    ) -> None:
        self.service = service
        #: Process id and user id of the server.
        self.pid, self.uid = pid, uid
        self.max_frame = max_frame
        self.endpoints, self.shapes = endpoints, shapes
        self._loop = asyncio.get_running_loop()
        self._made_by = os.getpid()
        self._open = True

    @property
    def shared_memory(self) -> ClientSharedMemoryOps | None:
        """Operations on memory that is shared with the server; None if none is."""
        return None

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Deliver frames to ``on_frame`` from now on, and the end of the connection to ``on_end``.

        Call this once, before the first :meth:`send`. ``pending`` holds the calls that wait for frames, by id; the
        session keeps it up to date. ``on_go_away`` is called when the server announces that it takes no new calls.
        ``on_end`` is called at most once, and not after :meth:`close`.
        """
        self._pending = pending
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_go_away = on_go_away

    @property
    def is_open(self) -> bool:
        """True until the connection has ended or was closed."""
        return self._open

    def go_away(self) -> None:
        """Ask the client to use another connection for its next calls, if it reconnects at all."""
        self._on_go_away()

    @abstractmethod
    async def wait_for_room(self) -> None:
        """Wait until all sent frames have found room, or the connection has ended."""

    @abstractmethod
    def fault(self, error: Exception) -> None:
        """Close the connection, and report the broken rule to the server and, as RemoteProtocolError, to ``on_end``.

        Does nothing if the connection is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection with a goodbye to the server. Idempotent.

        Does not wait, and does not call ``on_end``: the session ends its waiting calls itself.
        """

    async def wait_closed(self) -> None:  # noqa: B027
        """Wait until the frames sent before :meth:`close` have left this process. Returns at once unless overridden."""

    def drop(self) -> None:
        """Close the connection, if it is open, and issue a ResourceWarning, because its client was dropped open."""
        if self._open:
            self.close()
            warn_unclosed(self.service, self)

    def interrupted(self, error: BaseException) -> None:
        """Close the connection if any call waits, after an exception interrupted the delivery of frames.

        A signal handler may raise at any point. The frames being delivered are lost, and may belong to any call, so all
        calls fail with :func:`interrupted_error`.
        """
        if self._has_waiters():
            self._lose(CloseReason(interrupted_error(self.service, error)))

    def _has_waiters(self) -> bool:
        """Return True if any call waits for frames."""
        return bool(self._pending)

    def _lose(self, end: CloseReason) -> None:
        """Close the connection, and report its end to the session. Idempotent."""
        if self._open:
            try:
                self.close()
            finally:
                self.close()  # Completes a close that an exception of a signal handler interrupted.
                self._on_end(end)

    def check_process(self) -> None:
        """Raise LocalProtocolError in a forked child."""
        fork.check_same_process(self.service, self._made_by)

    def check_loop(self) -> None:
        """Raise LocalProtocolError in another event loop than the connection's, and in a forked child.

        Raises RuntimeError if no event loop runs.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # No loop is running. In a forked child, that is the error to report.
            self.check_process()
            raise
        if running is not self._loop:
            self.check_process()
            if self._loop.is_closed():
                raise LocalProtocolError(f"the event loop of this client of {self.service!r} was closed; connect again")
            raise LocalProtocolError("this client belongs to another event loop; connect once in each loop")


class ThreadConnection(Protocol):
    """Connection of a client for threads, as a session uses it."""

    service: str
    pid: int
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]
    #: True if the server has announced that it takes no new calls.
    draining: bool
    #: Calls of the threads in flight.
    calls: _core.ThreadCalls
    #: Seconds after which a wait checks that the server is alive.
    life_check: float

    @property
    def extra_credit(self) -> Callable[[], int] | None:
        """Function like :attr:`Connection.extra_credit`, or None."""
        ...

    def begin(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Send a request. Returns False if it waits for room, and is sent later as the server reads.

        Raises the errors of :mod:`shmrpc.transport.errors`: Overtaken if a call with a higher id has begun.
        """
        ...

    def send(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Send a frame of a call that has begun. Returns False if it waits for room. Raises as :meth:`begin`."""
        ...

    def is_stalled(self) -> bool:
        """Return True if a sent frame waits for room."""
        ...

    def untaken(self) -> tuple[int, int, int, int]:
        """Return the backlog as :meth:`ClientSharedMemoryOps.untaken` does."""
        ...

    def take_back(self, call_id: int, kinds: bytes, /) -> bool:
        """Withdraw a frame of a call that waits for room, if its kind is one of ``kinds``. Returns True if it was."""
        ...

    def allocate(self, size: int, /) -> Any:
        """Allocate memory as :meth:`SharedMemoryOps.allocate` does."""
        ...

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """Return a sender as :meth:`SharedMemoryOps.sender` does."""
        ...

    def poll_close(self) -> CloseReason | None:
        """Return the reason if the server has ended the connection, otherwise None. Does not wait."""
        ...

    def check_thread(self) -> None:
        """Raise LocalProtocolError in the thread whose event loop serves this service. Call this before a wait."""
        ...

    def check_process(self) -> None:
        """Raise LocalProtocolError in a forked child."""
        ...

    def fault(self, error: Exception, /) -> ShmrpcError:
        """Close the connection, report the broken rule to the server, and return the error to raise."""
        ...

    def close(self) -> None:
        """Close the connection with a goodbye to the server, and wake the threads that wait. Idempotent."""
        ...

    def abandon(self) -> None:
        """Close the connection without a message to the server, and wake the threads that wait. Idempotent."""
        ...


#: Connects within a number of seconds, None: without a limit. Reports the reason after each failed attempt.
Dial = Callable[[float | None, Callable[[str], None]], Awaitable[Connection]]
#: Connects a client for threads within a number of seconds, None: without a limit. Calls a check that raises if the
#: connection is no longer wanted, and reports the reason after each failed attempt.
ThreadDial = Callable[[float | None, Callable[[], None], Callable[[str], None]], ThreadConnection]


def shapes_by_number(endpoints: list[str], shapes: list[Shape | None], peer: str) -> dict[int, Shape]:
    """Return the shapes in a welcome by endpoint number, without those that are None.

    Raises RemoteProtocolError unless there are none or one for each endpoint. ``peer``: description for the message.
    """
    if shapes and len(shapes) != len(endpoints):
        raise RemoteProtocolError(f"{peer} sent {len(endpoints)} endpoints, but {len(shapes)} shapes")
    return {number: shape for number, shape in enumerate(shapes) if shape is not None}


def warn_unclosed(service: str, source: object) -> None:
    """Warn of a client that was dropped open. Call this after closing it, because the warning may raise."""
    warnings.warn(f"unclosed client of {service!r}", ResourceWarning, source=source, stacklevel=3)


def interrupted_error(service: str, error: BaseException) -> ConnectionLost:
    """Return the error for calls on a connection that an exception interrupted while frames were being received."""
    return ConnectionLost(
        f"the connection to {service!r} was closed: {type(error).__name__} was raised while frames were received, for "
        "example by a signal handler, and those frames are lost"
    )
