"""One connection of a client and its calls in flight: the base of the sessions in event loops and threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from shmrpc import _core
from shmrpc.client.common.call_errors import closed_error, send_error
from shmrpc.client.common.deadline_error import ReadProgress
from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.streams.sending import Sender
from shmrpc.transport.connection import CloseReason, Connection, ThreadConnection
from shmrpc.transport.errors import ChannelError
from shmrpc.transport.shared_memory_ops import ClientSharedMemoryOps
from shmrpc.wire.codec import BODIES, Body

_C = TypeVar("_C", Connection, ThreadConnection)


class Session(ABC, Generic[_C]):
    """A connection and its calls. Implements :class:`shmrpc.service.call.CallPeer`."""

    #: Function that sends a request, given opcode, call id and body, and spins for the reply as long as that pays. It
    #: returns the body of a plain result, or a value to pass to :meth:`wait_reply`.
    exchange: Callable[[int, int, Body], Any]

    def __init__(self, connection: _C, shared_memory: ClientSharedMemoryOps | ThreadConnection) -> None:
        self.connection: _C = connection
        self.service, self.pid, self.uid, self.state = connection.service, connection.pid, connection.uid, None
        self.numbers = {name: number for number, name in enumerate(connection.endpoints)}
        self.shapes = connection.shapes
        self.begin: Callable[[int, int, Body], bool] = shared_memory.begin
        self.send: Callable[[int, int, Body], bool] = connection.send
        #: Function that returns the sender of a stream's items, given opcode, call id and first credit in bytes.
        self.sender: Callable[[int, int, int], Sender] = shared_memory.sender
        self.ids = _core.CallIds()
        self.next_id: Callable[[], int] = self.ids
        #: Reason why the connection was closed; None while it is open.
        self.close_reason: CloseReason | None = None
        self._allocate: Callable[[int], Any] = shared_memory.allocate
        self._read_progress = ReadProgress(connection.service, connection.pid, shared_memory.untaken)

    @abstractmethod
    def is_draining(self) -> bool:
        """Return True if the server has announced that it accepts no new calls."""

    async def call(self, call: Call, kind: int, body: Body) -> Body:
        """Send a request of opcode ``kind``, and wait for its reply; return the body of the result.

        Raises the error of the call, which may be an internal one for :meth:`convert_error`.
        """
        reply: Any = self.exchange(kind, call.id, body)
        return reply if type(reply) in BODIES else await self.wait_reply(call.id, reply, call)

    @abstractmethod
    async def call_pipelined(self, call: Call, kind: int, body: Body) -> Body:
        """Send a request and wait for its reply as :meth:`call` does. Further requests may follow before the reply."""

    @abstractmethod
    async def wait_reply(self, call_id: int, begun: Any, /, call: Call | None = None) -> Body:
        """Wait for the reply to a call; return the body of the result, or raise the error of the call.

        ``begun`` is the value that ``exchange`` returned. ``call`` is given for calls with a deadline or metadata.
        """

    @abstractmethod
    async def wait_for_room(self, call: Call) -> None:
        """Wait until all sent frames are in the ring, the deadline has passed, or the connection has ended.

        At the deadline, takes back the call, and raises DeadlineExceeded if it was not in the ring.
        """

    async def yield_to_loop(self) -> None:
        """Let other tasks run after a large one-way call. Does nothing in threads."""

    def forget_call(self, call_id: int) -> None:
        """Discard the state of a call that has failed, at whatever point. Does nothing in an event loop."""

    def allocate(self, size: int) -> Any:
        """Allocate a block of ``size`` bytes to share with the server.

        Raises SharedMemoryError without memory, LocalProtocolError in a forked child, and the error of an ended
        connection.
        """
        self.connection.check_process()
        if self.close_reason is not None:
            raise closed_error(self.close_reason.error)
        try:
            return self._allocate(size)
        except ChannelError as error:
            raise self.convert_error("allocate", error) from None

    @abstractmethod
    def close(self, error: ShmrpcError) -> None:
        """Close the connection; calls in flight fail, with ``error`` as the reason. Idempotent."""

    @overload
    def convert_error(self, name: str, error: Exception) -> Exception: ...
    @overload
    def convert_error(self, name: str, error: BaseException) -> BaseException: ...
    def convert_error(self, name: str, error: BaseException) -> BaseException:
        """Return the error to raise in the caller of an endpoint for an internal error.

        Ends an open connection after a ChannelError; in a forked child, returns a LocalProtocolError instead. Returns a
        BaseException that is no Exception unchanged. For errors of encoding see :func:`call_errors.encode_error`.

        Assign the returned error to the name of the ``except`` clause before raising it. Any other local name would
        stay in a frame of the traceback: a reference cycle that keeps the error and the arguments of the call alive.
        """
        if isinstance(error, ChannelError):
            try:
                self.connection.check_process()
            except LocalProtocolError as forked:
                return forked
            return closed_error(self._closing_error(error) or ConnectionLost(str(error)))
        self.note_interruption(error)
        return send_error(name, error) if isinstance(error, Exception) else error

    @abstractmethod
    def _closing_error(self, error: ChannelError) -> ShmrpcError | None:
        """End an open connection with ``error``; return the error with which the connection has ended.

        Returns None if the reason is not known.
        """

    def note_interruption(self, error: BaseException) -> None:
        """Handle an exception that a signal handler may have raised between two steps of a call. Does nothing here."""
