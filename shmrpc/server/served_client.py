"""A client at the server, and its calls in flight."""

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

#: Function that handles one request. It returns the body of the result, or None if the reply is sent later.
RunRequest = Callable[[Body, "ServedClient", int], Body | None]


class InFlightCall(msgspec.Struct, eq=False):
    """A call whose handler is suspended, or that has streams."""

    client: ServedClient
    call: Call
    #: Bytes of the request.
    size: int
    #: True for a call that never wants a reply.
    one_way: bool = False
    #: True once the client no longer wants a reply.
    is_abandoned: bool = False
    #: True once the deadline has passed.
    is_expired: bool = False
    task: asyncio.Task[object] | None = None
    inputs: list[IncomingStream] = []
    outgoing: OutgoingStream | None = None
    #: Error with which the client has aborted a stream to the server.
    aborted: weakref.ref[BaseException] | None = None
    #: True if the client accepts metadata before the first item.
    accepts_early_metadata: bool = False
    #: Metadata that was sent before the first item.
    sent_metadata: Metadata = {}

    def send_metadata(self) -> None:
        """Send the metadata that the handler has set before the first item of its stream.

        Does nothing without metadata, or if the call is abandoned. Raises CallRejected for invalid metadata.
        """
        if self.call._reply_metadata and not self.is_abandoned:
            metadata = self._checked(self.call._reply_metadata)
            self.client.send(frames.METADATA, self.call.id, frames.encode_metadata(metadata))
            self.sent_metadata = metadata

    @property
    def unsent_metadata(self) -> Metadata:
        """Entries of the handler's metadata that were not sent, or were sent with another value.

        Raises CallRejected for invalid metadata.
        """
        metadata = self._checked(self.call._reply_metadata or {})
        if not self.sent_metadata:
            return metadata
        return {key: value for key, value in metadata.items() if self.sent_metadata.get(key) != value}

    @property
    def unsent_failure_metadata(self) -> Metadata:
        """Metadata to send with a failure; empty if it is invalid, because the failure matters more."""
        try:
            return self.unsent_metadata
        except CallRejected:
            return {}

    def _checked(self, metadata: Metadata) -> Metadata:
        """Return a copy of metadata. Raises CallRejected for metadata that are invalid or cannot be encoded."""
        try:
            checked = check_metadata(metadata)
            frames.encode_metadata(checked)
        except (TypeError, ValueError) as error:  # ValueError: text that is not valid UTF-8.
            why = str(error).removeprefix("metadata: ")
            raise CallRejected("encode", f"{self.call.endpoint}(): reply_metadata: {why}") from None
        return checked

    @property
    def is_stream(self) -> bool:
        """True if the call has a stream, and therefore lasts as long as a peer leaves the stream open."""
        return self.outgoing is not None or bool(self.inputs)


class WaitingCall(msgspec.Struct, frozen=True):
    """A call that waits for the limits to admit it."""

    run: RunRequest
    body: Body
    one_way: bool


class DispatchTables(NamedTuple):
    """Tables that map opcodes to handlers of requests."""

    plain: Callable[[int], RunRequest]
    #: The table while calls are in flight or waiting: also rejects new calls with the id of one of them.
    checked: Callable[[int], RunRequest]
    #: Handlers of the core, which uses the tables for all other opcodes.
    handlers: _core.HandlerTable | None = None


class ServedClient:
    """A client and its calls in flight. Implements :class:`shmrpc.service.call.CallPeer`."""

    def __init__(self, peer: Peer, service: str, names: list[str], state: object, tables: DispatchTables) -> None:
        self.peer = peer
        #: Channel of plain replies, used by the pump.
        self.channel = peer.channel
        self.pid, self.uid, self.max_frame = peer.pid, peer.uid, peer.max_frame
        self.send = peer.send
        self.extra_credit = peer.extra_credit
        #: Operations that need shared memory, or their fallback. The only place that decides between the two.
        self.shared_memory: SharedMemoryOps = peer.shared_memory or SharedMemoryFallback(peer.send, peer.max_memory)
        self.allocate = self.shared_memory.allocate
        self.service = service
        self.state = state
        #: Names of the endpoints, by number.
        self.names = names
        self.tables = tables
        #: Function that returns the handler of an opcode: one of the two tables.
        self.find_handler = tables.plain
        #: Calls in flight, and waiting calls in order, by call id.
        self.calls: dict[int, InFlightCall] = {}
        self.waiting: dict[int, WaitingCall] = {}
        #: Requests that the core handles; None without handlers of the core.
        self.serving = tables.handlers and _core.ClientRequests(tables.handlers, self.calls, self.waiting)
        #: Bytes of the requests in flight, and of the waiting ones.
        self.bytes = 0
        self.waiting_bytes = 0

    def use_tables(self, tables: DispatchTables) -> None:
        """Dispatch further requests of the client by other tables.

        If these have no handlers of the core, the core handles no further requests of the client.
        """
        self.tables = tables
        if tables.handlers is None and self.serving is not None:
            self.serving.close()
        self.select_table()

    def select_table(self) -> None:
        """Use the table that checks ids while calls are in flight or waiting, else the plain table."""
        tables = self.tables
        self.find_handler = tables.checked if self.calls or self.waiting else tables.plain

    def endpoint_name(self, opcode: int) -> str:
        """Return the name of the endpoint whose number is in a request's opcode. Raises IndexError if it has none."""
        return self.names[opcode >> 8]
