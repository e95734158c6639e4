"""One connection of a client, and the calls that are under way on it: what is alike in a loop and in threads."""

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
    """A connection and its calls. It is what :class:`shmrpc.service.call.CallPeer` describes."""

    #: Sends a request, and looks for its answer as long as that pays: the body of a plain result, or what
    #: :meth:`wait_reply` goes on with.
    exchange: Callable[[int, int, Body], Any]

    def __init__(self, connection: _C, shared_memory: ClientSharedMemoryOps | ThreadConnection) -> None:
        self.connection: _C = connection
        self.service, self.pid, self.uid, self.state = connection.service, connection.pid, connection.uid, None
        self.numbers = {name: number for number, name in enumerate(connection.endpoints)}
        self.shapes = connection.shapes
        self.begin: Callable[[int, int, Body], bool] = shared_memory.begin
        self.send: Callable[[int, int, Body], bool] = connection.send
        #: What sends the items of a stream: its opcode, its call, its first credit.
        self.sender: Callable[[int, int, int], Sender] = shared_memory.sender
        self.ids = _core.CallIds()
        self.next_id: Callable[[], int] = self.ids
        #: How the connection has ended.
        self.close_reason: CloseReason | None = None
        self._allocate: Callable[[int], Any] = shared_memory.allocate
        self._read_progress = ReadProgress(connection.service, connection.pid, shared_memory.untaken)

    @abstractmethod
    def is_draining(self) -> bool:
        """Whether the server takes no new calls, so that these go to the next session if there is one."""

    async def call(self, call: Call, kind: int, body: Body) -> Body:
        """Sends a request, and waits for the body of its result."""
        answer: Any = self.exchange(kind, call.id, body)
        return answer if type(answer) in BODIES else await self.wait_reply(call.id, answer, call)

    @abstractmethod
    async def call_pipelined(self, call: Call, kind: int, body: Body) -> Body:
        """As :meth:`call`, for a request that others may follow before it is answered."""

    @abstractmethod
    async def wait_reply(self, call_id: int, begun: Any, /, call: Call | None = None) -> Body:
        """Waits for the answer to a call; the body of its result.

        ``begun``: what ``exchange`` gave. ``call``: if there is more to it than its arguments.
        """

    @abstractmethod
    async def wait_for_room(self, call: Call) -> None:
        """Waits until all that was sent has found room; a call whose deadline comes before that is not sent."""

    async def yield_to_loop(self) -> None:
        """Lets others have their turn, after a large one-way call."""

    def forget_call(self, call_id: int) -> None:
        """Forgets a call that failed, at whatever point that was."""

    def allocate(self, size: int) -> Any:
        """A block of memory of this many bytes that the server can be given; SharedMemoryError if there is none."""
        self.connection.check_process()
        if self.close_reason is not None:
            raise closed_error(self.close_reason.error)
        try:
            return self._allocate(size)
        except ChannelError as error:
            raise self.convert_error("allocate", error) from None

    @abstractmethod
    def close(self, error: ShmrpcError) -> None:
        """Closes the connection; calls under way fail."""

    @overload
    def convert_error(self, name: str, error: Exception) -> Exception: ...
    @overload
    def convert_error(self, name: str, error: BaseException) -> BaseException: ...
    def convert_error(self, name: str, error: BaseException) -> BaseException:
        """The error for the caller of an endpoint, unless it came of encoding: see :func:`requests.encode_error`.

        What is no Exception stays as it is. Raise it from the name of the ``except`` clause, which ends with that:
        another name stays in a frame of the traceback, and the two keep each other and all that the call was given.
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
        """Why the connection has ended, which it does with this error of its channel if it has not before."""

    def note_interruption(self, error: BaseException) -> None:
        """Takes note of an exception that may have come out of a signal's handler."""
