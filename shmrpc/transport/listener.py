"""Listeners and inboxes of servers, as the layers above use them."""

from __future__ import annotations

import logging
import socket
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from shmrpc.errors import RemoteProtocolError, ShmrpcError
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.transport.shared_memory_ops import SharedMemoryOps
from shmrpc.wire.codec import Body
from shmrpc.wire.control import Health
from shmrpc.wire.frames import Shape

logger = logging.getLogger("shmrpc.server")


class Offer(msgspec.Struct):
    """Service that a server offers, with its endpoints."""

    service: str
    #: Names of the endpoints; the index in this list is the endpoint's number.
    endpoints: list[str]
    #: Shapes of the endpoints that stream, by number.
    shapes: dict[int, Shape]

    @property
    def shape_list(self) -> list[Shape | None]:
        """Shape of each endpoint by number, None for an endpoint without streams; empty if no endpoint streams."""
        return [self.shapes.get(number) for number in range(len(self.endpoints))] if self.shapes else []

    def check_size(self, welcome_size: int, max_message: int) -> None:
        """Raise ValueError if a welcome of ``welcome_size`` bytes leaves fewer than 1,024 of ``max_message`` free."""
        if welcome_size > max_message - 1024:
            raise ValueError(
                f"service {self.service!r}: the names of its {len(self.endpoints)} endpoints take {welcome_size:,} "
                f"bytes, over the {max_message - 1024:,} of a message; split it into several services"
            )


class Peer(ABC):
    """Server's side of a client's connection."""

    pid: int
    uid: int
    #: Largest body in bytes.
    max_frame: int
    #: Largest total size in bytes of the large buffers of one frame; None if only memory bounds it.
    max_memory: int | None = None
    #: Returns the bytes that a stream may have in flight beyond its first credit; None on a transport without latency.
    extra_credit: Callable[[], int] | None = None
    #: Channel through which the poller sends plain replies.
    channel: Any = None
    #: Key of the client in the layer above.
    key: Any = None
    _open = True

    @property
    def shared_memory(self) -> SharedMemoryOps | None:
        """Operations on memory that is shared with the client; None if none is."""
        return None

    @abstractmethod
    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a frame, unless the client has left. Raises Oversize if it is too large.

        Does not wait. A client that leaves too many bytes unread may lose its connection.
        """

    @abstractmethod
    def fault(self, reason: str) -> None:
        """Close this connection, and report the broken rule to the client and, as lost, to the layer above."""

    @abstractmethod
    def go_away(self) -> None:
        """Ask the client to make its next call on another connection."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Send a goodbye, and close the connection. Idempotent. Does not report the client as lost."""

    @property
    @abstractmethod
    def has_pending_replies(self) -> bool:
        """True if replies wait for the client to read."""


_P = TypeVar("_P", bound=Peer)


class Listener(ABC, Generic[_P]):
    """Listener for one name, in one event loop. ``on_change`` is called when a client comes, is connected, or leaves.

    A client that comes before :meth:`begin` or after :meth:`drain` is not served, and may try again.
    """

    #: True if clients come by a socket, so that a worker can adopt them.
    adopts = False

    def __init__(self, service: str, on_change: Callable[[], None]) -> None:
        self.service = service
        self.health: Health = "starting"
        #: Clients that are connected or connecting.
        self.peers: set[_P] = set()
        #: Clients that were asked to leave although this server goes on.
        self._shed: weakref.WeakSet[_P] = weakref.WeakSet()
        self.on_change = on_change
        #: Limits the log, because a client can break a rule and reconnect without end.
        self._faults = LogThrottle()

    def begin(self, connected: Callable[[Peer], Any], lost: Callable[[Any, ShmrpcError], None]) -> None:
        """Start to serve. Call this once.

        ``connected`` is called for each new client and returns its key, by which the inbox identifies it. ``lost`` is
        called with the key of a client that has left, and the reason; not for clients that :meth:`close` disconnects.
        """
        self._connected, self._lost = connected, lost
        self.health = "serving"

    def drain(self) -> None:
        """Ask all clients to leave, and accept no new ones. The listener keeps its name until it is closed."""
        self.health = "draining"
        for peer in self.peers:
            peer.go_away()

    def shed(self, count: int) -> int:
        """Ask up to ``count`` connected clients to leave, each client once, and return their number.

        Clients that do not reconnect stay, and are served as before.
        """
        connected = [peer for peer in self.peers if peer.channel is not None and peer not in self._shed]
        for peer in connected[:count]:
            self._shed.add(peer)
            peer.go_away()
        return len(connected[:count])

    @property
    @abstractmethod
    def connections(self) -> int:
        """Number of connected clients."""

    @property
    def has_pending_replies(self) -> bool:
        """True if replies wait for at least one client to read."""
        return any(peer.has_pending_replies for peer in self.peers)

    @abstractmethod
    def adopt(self, accepted: socket.socket) -> None:
        """Serve the process at the other end of a control socket; refuse a process that may not connect.

        The listener owns the socket from now on. Raises LocalProtocolError, and closes the socket, on a transport
        without sockets.
        """

    def close(self, reason: str) -> None:
        """Release the name, and close the connections of all clients. Call this once."""
        for peer in list(self.peers):
            peer.close(reason)

    def notify_lost(self, peer: _P, error: ShmrpcError) -> None:
        """Log that a connected client has left, and report it to the layer above.

        A fault is logged as a warning, unless another one came in the last 10 seconds, and all else for debugging.
        """
        is_fault = isinstance(error, RemoteProtocolError)
        level = self._faults.level_for("fault", logging.WARNING) if is_fault else logging.DEBUG
        logger.log(level, "%s", error)
        self._lost(peer.key, error)

    def forget(self, peer: _P) -> None:
        """Remove a client whose connection is closed from ``peers``, and call ``on_change``."""
        self.peers.discard(peer)
        self.on_change()


class Poller(Protocol):
    """Source of frames, one after the other: the native poller, or an inbox itself."""

    def next(self) -> tuple[Any, int, int, Any] | None:
        """Return the next frame as (key of the client, opcode, call id, body); None if there is none now.

        The opcode is PEER_FAULT, and the body an exception, for a client that broke the protocol.
        """
        ...

    def send_next(self, channel: Any, opcode: int, id: int, payload: Body, /) -> Any:
        """Send a frame, then return the next one as :meth:`next` does.

        Returns True after a large frame: the caller may free memory, and then calls :meth:`next`.
        """
        ...


class Inbox(ABC):
    """Queue of the frames of all clients of a server. ``take`` is called while there are frames."""

    #: Allows or forbids the wait for the next frame to spin.
    set_spinning: Callable[[bool], None] = staticmethod(lambda spinning: None)
    #: Receives waiting frames if the loop has not turned for long; must not be called within a task.
    poll_if_due: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, take: Callable[[], None]) -> None:
        self._take = take
        self._open = True

    @property
    @abstractmethod
    def poller(self) -> Poller:
        """Source of the frames."""

    @abstractmethod
    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool) -> Listener[Any]:
        """Claim the service's name, unless ``claim`` is False, and return its listener.

        The listener accepts clients after :meth:`Listener.begin`. Raises ServiceInUse if another server has the name,
        ValueError for a name or endpoints that the transport cannot carry, and, on some transports without sockets,
        LocalProtocolError if ``claim`` is False.
        """

    async def open(self) -> None:  # noqa: B027
        """Connect to resources outside of this process, if the transport has any. Raises ServiceUnavailable."""

    async def announce(self) -> None:  # noqa: B027
        """Wait until clients can find the started services. Raises ServiceUnavailable."""

    @abstractmethod
    def close(self) -> None:
        """Stop receiving. Frames that were not taken are lost. Idempotent."""

    async def wait_closed(self) -> None:  # noqa: B027
        """Wait, after :meth:`close` of inbox and listeners, until sent frames have left this process."""


#: Opens the inbox of one server, in its loop, with the function that takes its frames.
OpenInbox = Callable[[Callable[[], None]], Inbox]
