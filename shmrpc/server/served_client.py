"""A client at the server's side, and the calls of its that are under way."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from shmrpc import _core
from shmrpc.service.call import Call, Metadata, check_metadata
from shmrpc.streams.receiving import IncomingStream
from shmrpc.streams.sending import OutgoingStream
from shmrpc.transport.listener import Peer
from shmrpc.transport.shared_memory_ops import SharedMemoryFallback, SharedMemoryOps
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.failure import CallRejected

#: Runs one request; the body of the result, or None if the answer comes later.
RunRequest = Callable[[Body, "ServedClient", int], Body | None]


class InFlightCall(msgspec.Struct, eq=False):
    """A call whose handler is suspended, or is a stream."""

    client: ServedClient
    call: Call
    #: Bytes of the request.
    size: int
    #: Whether no answer was ever wanted.
    one_way: bool = False
    #: Whether no answer is wanted any more.
    is_abandoned: bool = False
    #: Whether its deadline has passed.
    is_expired: bool = False
    task: asyncio.Task[object] | None = None
    inputs: list[IncomingStream] = []
    outgoing: OutgoingStream | None = None
    #: The error with which the client has aborted a stream of its own.
    aborted: weakref.ref[BaseException] | None = None
    #: Whether the client takes metadata before the first item.
    accepts_early_metadata: bool = False
    #: Metadata for the client that was sent before the first item.
    sent_metadata: Metadata = {}

    def send_metadata(self) -> None:
        """Sends the handler's metadata before the first item of a stream.

        Raises the rejection if that cannot be metadata.
        """
        if self.call._reply_metadata and not self.is_abandoned:
            told = self._checked(self.call._reply_metadata)
            self.client.send(frames.METADATA, self.call.id, frames.encode_metadata(told))
            self.sent_metadata = told

    @property
    def unsent_metadata(self) -> Metadata:
        """The handler's metadata that the answer is to bring: what was not sent before.

        Raises the rejection for what cannot be metadata.
        """
        metadata = self._checked(self.call._reply_metadata or {})
        if not self.sent_metadata:
            return metadata
        return {key: value for key, value in metadata.items() if self.sent_metadata.get(key) != value}

    @property
    def unsent_failure_metadata(self) -> Metadata:
        """The same for a failure; empty if it cannot be metadata, since the failure matters more."""
        try:
            return self.unsent_metadata
        except CallRejected:
            return {}

    def _checked(self, metadata: Metadata) -> Metadata:
        try:
            checked = check_metadata(metadata)
            frames.encode_metadata(checked)
        except (TypeError, ValueError) as error:  # ValueError: text that is no UTF-8.
            why = str(error).removeprefix("metadata: ")
            raise CallRejected("encode", f"{self.call.endpoint}(): reply_metadata: {why}") from None
        return checked

    @property
    def is_stream(self) -> bool:
        """Whether it lasts for as long as somebody wants it, rather than for as long as it takes."""
        return self.outgoing is not None or bool(self.inputs)


class WaitingCall(msgspec.Struct, frozen=True):
    """A call that waits for its turn."""

    run: RunRequest
    body: Body
    one_way: bool


class DispatchTables(NamedTuple):
    """Two ways to find what runs a request, by its opcode."""

    plain: Callable[[int], RunRequest]
    #: The same while calls are under way or wait: catches a client that gives a new call the id of one of them.
    checked: Callable[[int], RunRequest]
    #: What the core runs by itself, if it is asked before the tables.
    handlers: _core.HandlerTable | None = None


class ServedClient:
    """A client, and its calls under way. It is a :class:`shmrpc.service.call.CallPeer`."""

    def __init__(self, peer: Peer, service: str, names: list[str], state: object, tables: DispatchTables) -> None:
        self.peer = peer
        #: The way of a plain answer, which the pump takes.
        self.channel = peer.channel
        self.pid, self.uid, self.max_frame = peer.pid, peer.uid, peer.max_frame
        self.send = peer.send
        self.extra_credit = peer.extra_credit
        #: What only shared memory can do, or what stands in for it: asked for here, and nowhere else.
        self.shared_memory: SharedMemoryOps = peer.shared_memory or SharedMemoryFallback(peer.send, peer.max_memory)
        self.allocate = self.shared_memory.allocate
        self.service = service
        self.state = state
        #: The endpoints' names, by number.
        self.names = names
        self.tables = tables
        #: What runs a request with this opcode: one of the two tables.
        self.find_handler = tables.plain
        #: By call id: what is under way, and what waits to begin, in order.
        self.calls: dict[int, InFlightCall] = {}
        self.waiting: dict[int, WaitingCall] = {}
        #: The calls that the core runs by itself.
        self.serving = tables.handlers and _core.ClientRequests(tables.handlers, self.calls, self.waiting)
        #: Bytes of the requests that are under way, and of those that wait.
        self.bytes = 0
        self.waiting_bytes = 0

    def use_tables(self, tables: DispatchTables) -> None:
        """Runs its requests by these tables from now on."""
        self.tables = tables
        if tables.handlers is None and self.serving is not None:
            self.serving.close()
        self.select_table()

    def select_table(self) -> None:
        """Chooses the table anew, as a call has begun or ended: only while there are calls an id can be used twice."""
        tables = self.tables
        self.find_handler = tables.checked if self.calls or self.waiting else tables.plain

    def endpoint_name(self, opcode: int) -> str:
        """Name of the endpoint that a request's opcode means."""
        return self.names[opcode >> 8]
