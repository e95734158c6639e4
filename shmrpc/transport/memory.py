"""Transport within one event loop, for tests: frames go from client to server as objects.

The transport makes no system calls. Otherwise it behaves like shared memory: a frame arrives in a later turn of the
loop, frames keep their order, one larger than ``max_frame`` is refused, and frames sent before a goodbye arrive before
it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

from shmrpc.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceInUse,
    ServiceUnavailable,
    ShmrpcError,
)
from shmrpc.host.processes import describe_process
from shmrpc.host.runtime_dir import check_name
from shmrpc.transport.connection import CloseReason, Connection, Dial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.errors import ChannelError, check_size
from shmrpc.transport.listener import Listener, Offer, OpenInbox, Peer
from shmrpc.transport.queued_inbox import QueuedInbox, ScheduledDelivery
from shmrpc.wire.codec import Body, body_weight, with_own_buffers

logger = logging.getLogger("shmrpc.server")

#: Bytes that a client may have in flight before it must wait for room.
CAPACITY: Final = 64 << 10
#: Bytes that a frame counts for besides its body.
_OVERHEAD: Final = 16


def _copy_for_peer(body: Body, max_frame: int) -> Body:
    """Return the body that arrives, with buffers of its own. Raises Oversize if it is over ``max_frame`` bytes."""
    check_size(body, max_frame)
    return with_own_buffers(body)


class MemoryInbox(QueuedInbox["MemoryPeer"]):
    """Inbox of a server. ``find`` returns the registry, and is called in the server's loop."""

    def __init__(self, find: Callable[[], MemoryRegistry], max_frame: int, take: Callable[[], None]) -> None:
        super().__init__(take)
        self._find = find
        self._max_frame = max_frame

    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool = True) -> MemoryListener:
        """Claim the service's name. Raises ServiceInUse if it is taken, and LocalProtocolError without ``claim``."""
        if not claim:
            raise LocalProtocolError("adopting=True is for clients that come by a socket: over memory:// none does")
        return MemoryListener(self._find(), offer, on_change, self._max_frame, self)


#: Pseudo opcodes: the client has closed the connection, or the server broke the protocol.
_GOODBYE: Final = -1
_FAULT: Final = -2


class MemoryPeer(Peer):
    """Server's side of a client's connection."""

    def __init__(self, listener: MemoryListener, max_frame: int) -> None:
        self.pid, self.uid = os.getpid(), os.geteuid()
        self.max_frame = max_frame
        self.channel = self
        self.connection = MemoryConnection(listener, self)
        self._listener = listener
        #: Bytes that the client has sent and the server has not received.
        self._waiting = 0
        #: Highest call id that the server received.
        self._reached = 0

    def put(self, opcode: int, call_id: int, body: Body) -> bool:
        """Queue a frame from the client. Returns False if the client should wait for room before the next frame."""
        self._waiting += body_weight(body) + _OVERHEAD
        self._listener.inbox.put(self, opcode, call_id, body)
        return not self.is_full

    @property
    def is_full(self) -> bool:
        """True if the client must let the server receive frames first."""
        return self._open and self._waiting > CAPACITY

    def account_for(self, opcode: int, call_id: int, body: Body) -> bool:
        """Account for a frame taken from the inbox. Returns True if the server should run it.

        Ends the connection if the frame says that the client has closed it, or has found a fault.
        """
        self._waiting -= body_weight(body) + _OVERHEAD
        if opcode == _GOODBYE:
            self._lose(
                ConnectionLost(
                    f"the client ({describe_process(self.pid)}) closed the connection: {bytes(body).decode()}"
                )
            )
        elif opcode == _FAULT:
            self._lose(
                RemoteProtocolError(
                    f"the client ({describe_process(self.pid)}) found a fault of ours: {bytes(body).decode()}"
                )
            )
        elif self._open:
            self._reached = max(self._reached, call_id)
        return self._open

    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a frame, unless the client has left. Raises Oversize if it is too large."""
        body = _copy_for_peer(body, self.max_frame)
        if self._open:
            self.connection.deliver(opcode, call_id, body)

    def fault(self, reason: str) -> None:
        """Close this connection, and report the broken rule to the client and to the server, unless it is closed."""
        if self._open:
            self.connection.end(CloseReason(RemoteProtocolError(f"{self._listener} found a fault of ours: {reason}")))
            self._lose(RemoteProtocolError(f"{describe_process(self.pid, 'client')}: {reason}"))

    def close(self, reason: str) -> None:
        """Send a goodbye, and close the connection. Idempotent. Does not report the client as lost."""
        if self._open:
            error = ConnectionLost(f"{self._listener} closed the connection: {reason}")
            self.connection.end(CloseReason(error, self._reached))
            self._leave()

    def go_away(self) -> None:
        """Ask the client to make its next call on another connection."""
        if self._open:
            self.connection.go_away()

    @property
    def has_pending_replies(self) -> bool:
        """True if replies wait for the client to read."""
        return self._open and self.connection.has_pending_deliveries

    def _leave(self) -> None:
        """Close this side, and unregister from the listener."""
        self._open = False
        self._listener.forget(self)

    def _lose(self, error: ShmrpcError) -> None:
        """Close this side, and report the error to the server. Idempotent."""
        if self._open:
            self._leave()
            self._listener.notify_lost(self, error)


class MemoryConnection(Connection):
    """Client's side of a connection."""

    address = "memory://"

    def __init__(self, listener: MemoryListener, peer: MemoryPeer) -> None:
        super().__init__(listener.service, peer.pid, peer.uid, peer.max_frame, listener.endpoints, listener.shapes)
        self._peer = peer
        self._server = str(listener)
        self._delivery = ScheduledDelivery(self._take)
        self._deliveries: deque[Callable[[], None]] = deque()

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Send a frame. Returns False if the client should wait for room before the next frame.

        Raises Oversize, or ChannelError if the connection is closed.
        """
        if not self._open:
            raise ChannelError("the connection is closed")
        return self._peer.put(opcode, call_id, _copy_for_peer(body, self.max_frame))

    async def wait_for_room(self) -> None:
        """Wait until there is room for frames, or the connection has ended."""
        while self._open and self._peer.is_full:
            await asyncio.sleep(0)

    def _take(self) -> None:
        """Run all pending deliveries."""
        try:
            while self._open and self._deliveries:
                self._deliveries.popleft()()
        except BaseException as error:
            self.interrupted(error)
            raise

    @property
    def has_pending_deliveries(self) -> bool:
        """True if deliveries wait for the loop."""
        return bool(self._deliveries)

    def deliver(self, opcode: int, call_id: int, body: Body) -> None:
        """Deliver a frame from the server in a later turn of the loop."""
        self._deliver_later(lambda: self._on_frame(opcode, call_id, body))

    def go_away(self) -> None:
        """Deliver the server's request to use another connection, in a later turn of the loop."""
        self._deliver_later(lambda: self._on_go_away())

    def end(self, end: CloseReason) -> None:
        """Deliver the end of the connection after the frames sent before, in a later turn of the loop."""
        self._deliver_later(functools.partial(self._lose, end))

    def _deliver_later(self, delivery: Callable[[], None]) -> None:
        """Run a delivery in a later turn of the loop, unless the connection ends first."""
        if self._open:
            self._deliveries.append(delivery)
            self._delivery.schedule()

    def fault(self, error: Exception) -> None:
        """Close the connection, and report the broken rule to the server."""
        if self._open:
            self._peer.put(_FAULT, 0, str(error).encode())
            self._lose(CloseReason(RemoteProtocolError(f"{self._server}: {error}")))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._open:
            self._open = False
            self._deliveries.clear()
            self._delivery.cancel()
            self._peer.put(_GOODBYE, 0, b"closed")


class MemoryListener(Listener[MemoryPeer]):
    """Listener for one name, registered from its creation on. Raises ServiceInUse if the name is taken."""

    def __init__(
        self,
        registry: MemoryRegistry,
        offer: Offer,
        on_change: Callable[[], None],
        max_frame: int,
        inbox: MemoryInbox,
    ) -> None:
        super().__init__(offer.service, on_change)
        self.endpoints, self.shapes = offer.endpoints, offer.shapes
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._registry = registry
        self._max_frame = max_frame
        registry.claim(self)

    def __str__(self) -> str:
        return f"the server of {self.service!r} ({describe_process(os.getpid())})"

    def begin(self, connected: Callable[[Peer], Any], lost: Callable[[Any, ShmrpcError], None]) -> None:
        """Start to serve, and let waiting clients connect."""
        super().begin(connected, lost)
        self._registry.wake_waiters()

    def accept(self, max_frame: int) -> MemoryConnection:
        """Accept a client after :meth:`begin`; return its connection. Raises LocalProtocolError in another loop.

        Does not check that the listener still serves.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError(f"{self} runs in another event loop: this transport is for one loop alone")
        peer = MemoryPeer(self, min(max_frame, self._max_frame))
        peer.key = self._connected(peer)
        self.peers.add(peer)
        self.on_change()
        return peer.connection

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self.peers)

    def adopt(self, accepted: socket.socket) -> None:
        """Close the socket, and raise LocalProtocolError: this transport has no sockets."""
        accepted.close()
        raise LocalProtocolError(f"{self} has no sockets to take; shmrpc.serve() makes one that has")

    def close(self, reason: str) -> None:
        """Release the name, and close the connections of all clients."""
        self._registry.release(self)
        super().close(reason)


class MemoryRegistry:
    """Registry of the services of one event loop, by name."""

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryListener] = {}
        #: Futures of the clients that wait, in order of arrival.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def claim(self, listener: MemoryListener) -> None:
        """Register a listener under its name. Raises ServiceInUse if another one has it."""
        if listener.service in self._listeners:
            raise ServiceInUse(
                f"service {listener.service!r} is already served here; stop that server first, or choose another name",
                os.getpid(),
            )
        self._listeners[listener.service] = listener

    def release(self, listener: MemoryListener) -> None:
        """Release the name of a listener. Does nothing if the listener does not have it."""
        if self._listeners.get(listener.service) is listener:
            del self._listeners[listener.service]
            self.wake_waiters()  # Their notes about this server are obsolete.

    def wake_waiters(self) -> None:
        """Let the clients that wait for a server check again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def connect(
        self, service: str, timeout: float | None, note: Callable[[str], None], *, max_frame: int
    ) -> MemoryConnection:
        """Connect to a service, waiting at most ``timeout`` seconds for its server, None: without a limit.

        ``note`` is called with the state of a server that does not serve now, and with "" without a server. Raises
        ServiceUnavailable if there is no server by then, LocalProtocolError if it runs in another event loop, and
        ValueError or TypeError for an invalid name.
        """
        check_name(service)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    listener = self._listeners.get(service)
                    if listener is not None and listener.health == "serving":
                        return listener.accept(max_frame)
                    note("" if listener is None else f"the server is {listener.health}")
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters[waiter] = None
                    try:
                        await waiter
                    finally:
                        del self._waiters[waiter]
        except TimeoutError:
            names = ", ".join(self._listeners) or "none"
            raise ServiceUnavailable(
                f"no server of {service!r} here (waited {timeout:g} s); the services of this network: {names}"
            ) from None


#: Registries of event loops, for the address ``memory://``.
_registries: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryRegistry]] = weakref.WeakKeyDictionary()


def _registry_of_loop() -> MemoryRegistry:
    """Return the registry of the running event loop, created on first use. Raises RuntimeError if no loop runs."""
    return _registries.setdefault(asyncio.get_running_loop(), MemoryRegistry())


class MemoryTransport:
    """Transport ``memory://``. Each loop has its own registry, unless ``find`` returns another one."""

    adopts = shares_names = False
    lacks = ("max_memory", "spin", "allow_uids")

    def __init__(self, find: Callable[[], MemoryRegistry] = _registry_of_loop) -> None:
        self._find = find

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """Return the function that opens a server's inbox."""
        return functools.partial(MemoryInbox, self._find, _checked(options).max_frame)

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """Return the function that connects a client in an event loop."""
        max_frame = _checked(options).max_frame

        async def connect(timeout: float | None, note: Callable[[str], None]) -> MemoryConnection:
            return await self._find().connect(service, timeout, note, max_frame=max_frame)

        return connect

    def thread_dial(self, service: str, options: ConnectionOptions) -> NoReturn:
        """Raise ValueError: a thread that waited for its own loop would wait forever."""
        raise ValueError(
            f"memory:// is within one event loop: use shmrpc.connect('memory://{service}') in the server's loop"
        )


def _checked(options: ConnectionOptions) -> ConnectionOptions:
    """Return the options. Raises ValueError for one that has no meaning here."""
    options.reject("memory:// shares no memory and meets no other process: leave it out", MemoryTransport.lacks)
    return options
