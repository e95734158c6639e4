"""What a server needs of a transport: an inbox for the frames of all its clients, and a listener for each service."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sized
from typing import Any, Protocol

from shmrpc.errors import ShmrpcError
from shmrpc.handling.caller import Peer
from shmrpc.protocol.control import Health
from shmrpc.protocol.frames import Shape


class PeerConnection(Peer, Protocol):
    """A client that has come."""

    #: Where the poller sends its plain answers.
    channel: Any


class Handler(Protocol):
    """What a listener needs of the layer above."""

    def connected(self, peer: PeerConnection, /) -> Any:
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

    def send_next(self, channel: Any, opcode: int, id: int, payload: bytes, /) -> Any:
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
    def is_stalled(self) -> bool:
        """Whether frames wait for clients to read."""
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


class Transport(Protocol):
    """One server's way to its clients."""

    def open(self, take: Callable[[], None], /) -> Inbox:
        """The inbox. ``take`` is called when there are frames, and takes them from its poller."""
        ...

    def listen(self, service: str, endpoints: list[str], shapes: dict[int, Shape], /, *, claim: bool) -> Listener:
        """Takes a name, unless ``claim`` is false; who comes is served once the listener was told to begin."""
        ...
