"""What a server needs of a transport: an inbox for the frames of all its clients, and a listener for each service."""

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
    """What a server offers: a service, and its endpoints."""

    service: str
    #: their names; the place in this list is the number
    endpoints: list[str]
    #: by number, those that stream on any side
    shapes: dict[int, Shape]

    @property
    def shapes_beside_endpoints(self) -> list[Shape | None]:
        """The shapes as they travel."""
        return [self.shapes.get(number) for number in range(len(self.endpoints))] if self.shapes else []


class Peer(ABC):
    """A client's connection at the server's side."""

    pid: int
    uid: int
    #: Bytes of the largest body.
    max_frame: int
    #: Bytes of the large buffers of one frame; None if nothing but memory bounds them.
    max_memory: int | None = None
    #: Returns the bytes beyond the first credit that a stream may have on its way now; None over a short way.
    extra_credit: Callable[[], int] | None = None
    #: Where the poller sends its plain answers.
    channel: Any = None
    #: What stands for it in the layer above.
    key: Any = None
    _open = True

    @property
    def shared_memory(self) -> SharedMemoryOps | None:
        """What it can do if it shares memory with the client; None if it does not."""
        return None

    @abstractmethod
    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Sends a frame, unless the client is gone. Raises Oversize if it is too large."""

    @abstractmethod
    def fault(self, reason: str) -> None:
        """Ends this connection and no other, and tells the client which rule it broke."""

    @abstractmethod
    def go_away(self) -> None:
        """Tells the client to go elsewhere with its next call."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Says goodbye and closes."""

    @property
    @abstractmethod
    def has_pending_replies(self) -> bool:
        """Whether answers wait for the client to read."""


_P = TypeVar("_P", bound=Peer)


class Listener(ABC, Generic[_P]):
    """Serves one name. ``on_change`` is called when a client comes, is connected, or goes."""

    #: Whether a client comes by a socket, so that it can be adopted.
    adopts = False

    def __init__(self, service: str, on_change: Callable[[], None]) -> None:
        self.service = service
        self.health: Health = "starting"
        #: Clients that are connected, or about to be.
        self.peers: set[_P] = set()
        #: The clients that were told to go elsewhere although this server goes on.
        self._shed: weakref.WeakSet[_P] = weakref.WeakSet()
        self.on_change = on_change
        #: A client can break a rule and connect again as often as it likes.
        self._faults = LogThrottle()

    def begin(self, connected: Callable[[Peer], Any], lost: Callable[[Any, ShmrpcError], None]) -> None:
        """Serves, from now on.

        ``connected`` is called when a client has come, and gives its key: what stands for it in the inbox. ``lost``
        is given the key of a client that is gone, and why.
        """
        self._connected, self._lost = connected, lost
        self.health = "serving"

    def drain(self) -> None:
        """Tells everybody to go elsewhere, and takes nobody new. The name is kept until the end."""
        self.health = "draining"
        for peer in self.peers:
            peer.go_away()

    def shed(self, count: int) -> int:
        """Tell up to ``count`` connected clients to go elsewhere, each client once, and return how many were told.

        Those that do not connect again by themselves stay, and are served as before.
        """
        connected = [peer for peer in self.peers if peer.channel is not None and peer not in self._shed]
        for peer in connected[:count]:
            self._shed.add(peer)
            peer.go_away()
        return len(connected[:count])

    @property
    @abstractmethod
    def connections(self) -> int:
        """Clients that are connected."""

    @property
    def has_pending_replies(self) -> bool:
        """Whether answers wait for clients to read."""
        return any(peer.has_pending_replies for peer in self.peers)

    @abstractmethod
    def adopt(self, accepted: socket.socket) -> None:
        """Serves the process at the other end of a control socket, if it may be served."""

    def close(self, reason: str) -> None:
        """Gives the name back and says goodbye to everybody."""
        for peer in list(self.peers):
            peer.close(reason)

    def notify_lost(self, peer: _P, error: ShmrpcError) -> None:
        """Tells the layer above that a client is gone that was connected."""
        is_fault = isinstance(error, RemoteProtocolError)
        level = self._faults.level_for("fault", logging.WARNING) if is_fault else logging.DEBUG
        logger.log(level, "%s", error)
        self._lost(peer.key, error)

    def forget(self, peer: _P) -> None:
        """Forgets a client whose connection is closed."""
        self.peers.discard(peer)
        self.on_change()


class Poller(Protocol):
    """Where frames are taken from, one after the other: the core's, or an inbox itself."""

    def next(self) -> tuple[Any, int, int, Any] | None:
        """The next frame as (a client's key, opcode, call id, body); None: it is time to rest."""
        ...

    def send_next(self, channel: Any, opcode: int, id: int, payload: Body, /) -> Any:
        """Sends a frame, then does as :meth:`next`; True: something can be freed first."""
        ...


class Inbox(ABC):
    """What a server's clients send, as one queue. ``take`` is called when there are frames, until there are no more."""

    #: Says whether a wait for the next frame may spin, if any ever does.
    set_spinning: Callable[[bool], None] = staticmethod(lambda spinning: None)
    #: Takes what is there, if it can come while the loop does not turn, and has not for long. Not within a task.
    poll_if_due: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, take: Callable[[], None]) -> None:
        self._take = take
        self._open = True

    @property
    @abstractmethod
    def poller(self) -> Poller:
        """Where its frames are taken from."""

    @abstractmethod
    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool) -> Listener[Any]:
        """Takes the service's name, unless ``claim`` is false; clients are served once the listener was told to begin.

        Raises ServiceInUse if another server has the name.
        """

    async def open(self) -> None:  # noqa: B027
        """Connects to what it needs outside of this process. Raises ServiceUnavailable if that cannot be."""

    async def announce(self) -> None:  # noqa: B027
        """Waits until clients can find the services that have begun. Raises ServiceUnavailable if that cannot be."""

    @abstractmethod
    def close(self) -> None:
        """Takes nothing any more."""

    async def wait_closed(self) -> None:  # noqa: B027
        """Waits until what was sent is on its way."""


#: Opens the inbox of one server, in its loop. What it is given takes the frames.
OpenInbox = Callable[[Callable[[], None]], Inbox]
