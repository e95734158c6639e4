"""What a server needs of a transport: an inbox for the frames of all its clients, and a listener for each service."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sized
from typing import Any, Generic, Protocol, TypeVar

from shmrpc.errors import RemoteProtocolError, ShmrpcError
from shmrpc.streams.sending import Sender
from shmrpc.wire.codec import Body
from shmrpc.wire.control import Health
from shmrpc.wire.frames import Shape

logger = logging.getLogger("shmrpc.server")


class Peer(Protocol):
    """A client's connection at the server's side."""

    pid: int
    uid: int
    max_frame: int
    #: Where the poller sends its plain answers.
    channel: Any
    #: What stands for it in the layer above.
    key: Any

    def send(self, opcode: int, call_id: int, body: Body, /) -> None:
        """Sends a frame, unless the client is gone. Raises Oversize if it is too large."""
        ...

    def take_back(self, call_id: int, /) -> None:
        """Nobody waits for this call any more: what waits to be sent for it is not."""
        ...

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """What sends the items of a stream."""
        ...

    def allocate(self, size: int, /) -> Any:
        """So many bytes of memory that the client can be given; SharedMemoryError if there are none."""
        ...

    def fault(self, reason: str, /) -> None:
        """The client broke the rules: ends the connection."""
        ...

    def go_away(self) -> None:
        """Tells the client to go elsewhere with its next call."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether answers wait for the client to read."""
        ...


class Handler(Protocol):
    """What a listener needs of the layer above."""

    def connected(self, peer: Peer, /) -> Any:
        """A client has come; what stands for it in the inbox, and is given to :meth:`lost`."""
        ...

    def lost(self, key: Any, error: ShmrpcError, /) -> None:
        """A client is gone; what was under way for it is for nobody."""
        ...


class Poller(Protocol):
    """Where frames are taken from, one after the other."""

    def next(self) -> tuple[Any, int, int, Any] | None:
        """The next frame as (what stands for the client, opcode, call id, body); None: it is time to rest."""
        ...

    def send_next(self, channel: Any, opcode: int, id: int, payload: Body, /) -> Any:
        """Sends a frame, then does as :meth:`next`; True: something can be freed first."""
        ...


class Inbox(Protocol):
    """What a server's clients send, as one queue."""

    @property
    def poller(self) -> Poller:
        """Its frames, in a callback of the loop."""
        ...

    @property
    def set_spinning(self) -> Callable[[bool], None]:
        """Whether a wait for the next frame may spin."""
        ...

    def glance(self) -> None:
        """Takes what is there, if the loop has not turned for long. Not within a task."""
        ...

    def close(self) -> None:
        """Nothing is taken any more."""
        ...


class Listener(Protocol):
    """Serves one name."""

    service: str
    health: Health
    #: Called when a client comes, is connected, or goes.
    on_change: Callable[[], None]

    @property
    def peers(self) -> Sized:
        """Clients that are connected, or about to be."""
        ...

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether answers wait for clients to read."""
        ...

    def begin(self, handler: Handler, /) -> None:
        """Serves, from now on."""
        ...

    def drain(self) -> None:
        """Tells everybody to go elsewhere, and takes nobody new."""
        ...

    def adopt(self, accepted: socket.socket, /) -> None:
        """Serves whoever is at the other end of a control socket, if it may be served."""
        ...

    def close(self, reason: str, /) -> None:
        """Gives the name back and says goodbye to everybody."""
        ...


_P = TypeVar("_P", bound=Peer)


class BaseListener(Generic[_P]):
    """What listeners have in common, whatever the way to their clients."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.health: Health = "starting"
        self.peers: set[_P] = set()
        #: Called when a client comes, is connected, or goes.
        self.on_change: Callable[[], None] = lambda: None
        self._handler: Handler | None = None

    def begin(self, handler: Handler) -> None:
        """Serves, from now on."""
        self._handler = handler
        self.health = "serving"

    def drain(self) -> None:
        """Tells everybody to go elsewhere, and takes nobody new. The name is kept until the end."""
        self.health = "draining"
        for peer in self.peers:
            peer.go_away()

    @property
    def is_awaited(self) -> bool:
        """Whether answers wait for clients to read."""
        return any(peer.is_awaited for peer in self.peers)

    def lost(self, peer: _P, error: ShmrpcError) -> None:
        """A client is gone."""
        level = logging.WARNING if isinstance(error, RemoteProtocolError) else logging.DEBUG
        logger.log(level, "%s", error)
        if self._handler is not None:
            self._handler.lost(peer.key, error)

    def forget(self, peer: _P) -> None:
        """A client's connection is closed."""
        self.peers.discard(peer)
        self.on_change()


class ServerTransport(Protocol):
    """One server's way to its clients."""

    def open(self, take: Callable[[], None], /) -> Inbox:
        """The inbox. ``take`` is called when there are frames, and takes them from its poller."""
        ...

    def listen(self, service: str, endpoints: list[str], shapes: dict[int, Shape], /, *, claim: bool) -> Listener:
        """Takes a name, unless ``claim`` is false; who comes is served once the listener was told to begin."""
        ...
