"""How frames travel: a connection as the layers above know it.

Between processes that is :mod:`shmrpc.transport.shm`, and within one loop, for tests, :mod:`shmrpc.transport.memory`.
Nothing above this line knows what a segment is. What sending raises is in :mod:`shmrpc.transport.errors`.
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
from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.host import fork
from shmrpc.streams.sending import Sender
from shmrpc.transport.shared_memory_ops import ClientSharedMemoryOps
from shmrpc.wire.codec import Body
from shmrpc.wire.frames import Shape

#: Opcode, call id, body.
Frame = tuple[int, int, Body]
#: Takes a frame that has come.
OnFrame = Callable[[int, int, Body], None]


class CloseReason(msgspec.Struct, frozen=True):
    """Why a connection is over."""

    error: ShmrpcError
    #: The highest id of a call that the server took, if it said so. Later ones were not executed.
    reached: int | None = None


#: Is told that the connection is over, and why.
OnEnd = Callable[[CloseReason], None]


class Connection(ABC):
    """A client's connection in an event loop: what a session needs of a transport."""

    #: Where the server was met, as a URL without a name or a secret.
    place: str
    #: Sends a frame; False if it waits for room. Raises what is in :mod:`shmrpc.transport.errors`.
    send: Callable[[int, int, Body], bool]
    #: Bytes of the large buffers of one frame; None if nothing but memory bounds them.
    max_memory: int | None = None
    #: Returns the bytes beyond the first credit that a stream may have on its way now; None over a short way.
    extra_credit: Callable[[], int] | None = None

    def __init__(
        self, service: str, pid: int, uid: int, max_frame: int, endpoints: list[str], shapes: dict[int, Shape]
    ) -> None:
        self.service = service
        #: The server's process and user.
        self.pid, self.uid = pid, uid
        self.max_frame = max_frame
        self.endpoints, self.shapes = endpoints, shapes
        self._loop = asyncio.get_running_loop()
        self._made_by = os.getpid()
        self._open = True

    @property
    def shared_memory(self) -> ClientSharedMemoryOps | None:
        """What it can do if it shares memory with the server; None if it does not."""
        return None

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Gives frames to ``on_frame`` from now on, and the end to ``on_end``.

        ``pending``: by call id what waits for frames; empty if nothing does. ``on_go_away`` is called when the server
        says that it takes no new calls.
        """
        self._pending = pending
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_go_away = on_go_away

    @property
    def is_open(self) -> bool:
        """Whether it has neither ended nor been closed."""
        return self._open

    def go_away(self) -> None:
        """Has the client make its next connection elsewhere, and its next calls on that, if it ever makes another."""
        self._on_go_away()

    @abstractmethod
    async def wait_for_room(self) -> None:
        """Waits until all that was sent has found room."""

    @abstractmethod
    def fault(self, error: Exception) -> None:
        """Closes, and tells the server which rule it broke."""

    @abstractmethod
    def close(self) -> None:
        """Closes. Again: nothing."""

    async def wait_closed(self) -> None:  # noqa: B027
        """Waits until what was sent before :meth:`close` is on its way."""

    def drop(self) -> None:
        """Closes, and warns of it, since its client was dropped open."""
        if self._open:
            self.close()
            warn_unclosed(self.service, self)

    def interrupted(self, error: BaseException) -> None:
        """Closes if anybody waits: an exception, such as a signal handler's, came while a frame was on its way.

        What was in our hands is lost, and nobody knows whose it was. Those who wait hear that it is over.
        """
        if self._has_waiters():
            self._lose(CloseReason(interrupted_error(self.service, error)))

    def _has_waiters(self) -> bool:
        return bool(self._pending)

    def _lose(self, end: CloseReason) -> None:
        if self._open:
            try:
                self.close()
            finally:
                self.close()  # If an exception, as out of a signal handler, came before it was done.
                self._on_end(end)

    def check_process(self) -> None:
        """Raises LocalProtocolError in a forked child."""
        fork.check_same_process(self.service, self._made_by)

    def check_loop(self) -> None:
        """Raises LocalProtocolError unless the running loop is the connection's, and in a forked child."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # There is none; in a forked child nobody's loop counts.
            self.check_process()
            raise
        if running is not self._loop:
            self.check_process()
            if self._loop.is_closed():
                raise LocalProtocolError(f"the event loop of this client of {self.service!r} was closed; connect again")
            raise LocalProtocolError("this client belongs to another event loop; connect once in each loop")


class ThreadConnection(Protocol):
    """A client's connection that waits in threads: what a session for threads needs of a transport."""

    service: str
    pid: int
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]
    #: Whether the server has said that it takes no new calls.
    draining: bool
    #: What the threads have under way.
    calls: _core.ThreadCalls
    #: Seconds after which a wait looks whether the server still lives.
    life_check: float

    @property
    def extra_credit(self) -> Callable[[], int] | None:
        """See :attr:`Connection.extra_credit`."""
        ...

    def begin(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Sends a request; False if it waits for room."""
        ...

    def send(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Sends a frame of a call that has begun; False if it waits for room."""
        ...

    def is_stalled(self) -> bool:
        """Whether anything that was sent waits for room."""
        ...

    def untaken(self) -> tuple[int, int, int, int]:
        """See :meth:`ClientSharedMemoryOps.untaken`."""
        ...

    def take_back(self, call_id: int, kinds: bytes, /) -> bool:
        """Takes back a frame of a call that waits for room, if it is of one of these kinds."""
        ...

    def allocate(self, size: int, /) -> Any:
        """See :meth:`SharedMemoryOps.allocate`."""
        ...

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """See :meth:`SharedMemoryOps.sender`."""
        ...

    def poll_close(self) -> CloseReason | None:
        """How the server has ended the connection, if it has."""
        ...

    def check_thread(self) -> None:
        """Raises LocalProtocolError in a thread that would wait for itself."""
        ...

    def check_process(self) -> None:
        """Raises LocalProtocolError in a forked child."""
        ...

    def fault(self, error: Exception, /) -> ShmrpcError:
        """Closes, and tells the server which rule it broke; the error to raise."""
        ...

    def close(self) -> None:
        """Closes. Again: nothing."""
        ...

    def abandon(self) -> None:
        """Closes, and says nothing to the server."""
        ...


#: Connects within this many seconds, None: for ever; and tells after each try why there is no connection so far.
Dial = Callable[[float | None, Callable[[str], None]], Awaitable[Connection]]
#: Connects a client for threads: seconds, None: for ever; a check that raises if nobody wants the connection any
#: more; and what is told after each try why there is no connection so far.
ThreadDial = Callable[[float | None, Callable[[], None], Callable[[str], None]], ThreadConnection]


def warn_unclosed(service: str, source: object) -> None:
    """Warns of a client that was dropped open; to be called when it is closed, since the warning may be an error."""
    warnings.warn(f"unclosed client of {service!r}", ResourceWarning, source=source, stacklevel=3)


def interrupted_error(service: str, error: BaseException) -> ConnectionLost:
    """The error for those who wait on a connection whose frames were being taken when something else was raised."""
    return ConnectionLost(
        f"the connection to {service!r} was closed: {type(error).__name__} was raised while its frames were taken, as "
        "by a signal handler, and what was just taken is lost"
    )
