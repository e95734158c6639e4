"""The handshake, each side as a generator: it yields a packet to send, and is sent the answer with its descriptors.

Who drives it decides how to wait: a loop (:mod:`.client`, :mod:`.server`) or a thread (:mod:`.blocking`).
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Generator, Sequence
from typing import Final, TypeVar

import msgspec

from shmrpc import _core
from shmrpc.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceUnavailable,
    SharedMemoryError,
)
from shmrpc.protocol import control
from shmrpc.protocol.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape
from shmrpc.transport.shm import wants
from shmrpc.transport.shm.segment import NewSegment, check_semaphores, open_segment
from shmrpc.transport.shm.trust import NOBODY_ELSE

#: What a client waits for, one after the other.
ANSWERS: Final = ("welcome", "ready")

#: A packet and the descriptors that ride along.
Packet = tuple[bytes, Sequence[int]]


@dataclasses.dataclass
class Settings:
    """What a side brings to the handshake."""

    #: bytes of the largest body
    max_frame: int
    #: microseconds that a wait may spin
    spin: float
    #: bytes of shared memory that either side may set aside on a connection
    max_memory: int
    #: whether this side sends and reads pickles
    pickle: bool = False
    #: whether this side waits in a thread rather than a loop
    blocking: bool = False
    #: users with whom this side speaks, besides its own and root
    allow_uids: frozenset[int] = NOBODY_ELSE


@dataclasses.dataclass
class Offer:
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


@dataclasses.dataclass
class Established:
    """What a side has after the handshake."""

    channel: _core.Channel
    #: readable when it rings for our loop, ours to close; -1 for a side that waits in threads
    bell: int
    service: str
    pid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]


class NotNow(ConnectionLost):
    """The server cannot take a client at this moment; it, or another one, may in a while."""


def client_side(settings: Settings, server_uid: int) -> Generator[bytes, Packet, Established]:
    """The client's part; the connection once it stands. ``server_uid`` is what the kernel says of the server.

    Raises ServiceUnavailable if the server refuses, RemoteProtocolError if it breaks the rules.
    """
    hello = control.Hello(control.VERSION, settings.max_frame, settings.pickle, settings.max_memory)
    packet, descriptors = yield control.encode(hello)
    bell = -1
    try:
        welcome = _expect(packet, control.Welcome)
        if len(descriptors) != 2:
            raise RemoteProtocolError(f"the server sent {len(descriptors)} descriptors with its welcome instead of 2")
        shapes = _shapes(welcome)
        channel = _open_channel(welcome, descriptors, settings, server_uid)
        if not settings.blocking:
            bell, descriptors = descriptors[0], descriptors[1:]
    finally:
        _close_all(descriptors)
    try:
        packet, descriptors = yield control.encode(control.Confirm())
        _close_all(descriptors)
        _expect(packet, control.Ready)
    except BaseException:
        channel.close()
        if bell >= 0:
            os.close(bell)
        raise
    return Established(channel, bell, welcome.service, welcome.pid, welcome.max_frame, welcome.endpoints, shapes)


def _shapes(welcome: control.Welcome) -> dict[int, Shape]:
    """The shapes by the number of their endpoint; RemoteProtocolError if they do not lie beside the endpoints."""
    shapes = {number: shape for number, shape in enumerate(welcome.shapes) if shape is not None}
    if welcome.shapes and len(welcome.shapes) != len(welcome.endpoints):
        raise RemoteProtocolError(
            f"the server named {len(welcome.endpoints)} endpoints and the shapes of {len(welcome.shapes)}"
        )
    return shapes


def _check_bell(descriptor: int) -> None:
    """RemoteProtocolError unless it can be rung, and waited for in a loop."""
    try:
        bell = socket.socket(fileno=descriptor)
    except OSError:
        raise RemoteProtocolError("the server sent a bell with its welcome that is no socket") from None
    kind = bell.family, bell.type
    bell.detach()
    if kind != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise RemoteProtocolError("the server sent a bell with its welcome that is a socket of another kind")


def _open_channel(
    welcome: control.Welcome, descriptors: Sequence[int], settings: Settings, server_uid: int
) -> _core.Channel:
    if not MIN_MAX_FRAME <= welcome.max_frame <= settings.max_frame:
        raise RemoteProtocolError(
            f"the server set max_frame to {welcome.max_frame}; {MIN_MAX_FRAME} to {settings.max_frame} were asked for"
        )
    if not control.MIN_MAX_MEMORY <= welcome.max_memory <= settings.max_memory:
        raise RemoteProtocolError(
            f"the server set max_memory to {welcome.max_memory}; {control.MIN_MAX_MEMORY} to {settings.max_memory} "
            "were asked for"
        )
    segment = open_segment(welcome.segment, server_uid)
    to_server, to_client = welcome.semaphores
    try:
        check_semaphores(welcome.semaphores, welcome.segment)
        _check_bell(descriptors[0])
        return _core.Channel(
            segment=segment,
            capacity=welcome.capacity,
            server=False,
            bell=descriptors[0],
            own_semaphore=f"/{to_client}",
            peer_semaphore=f"/{to_server}",
            owner=server_uid,
            lending=descriptors[1],
            blocking=settings.blocking,
            max_frame=welcome.max_frame,
            max_memory=welcome.max_memory,
            spin=settings.spin,
        )
    except (_core.ChannelError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError):
            explained = wants.explained(error)
            if isinstance(explained, SharedMemoryError):
                raise explained from None
        raise RemoteProtocolError(f"the server's segment cannot be used: {error}") from None
    finally:
        os.close(segment)


def server_side(
    hello: control.Hello, offer: Offer, settings: Settings, client_uid: int = 0
) -> Generator[Packet, Packet, Established]:
    """The server's part, from the client's hello on. It ends with ``ready`` still to be sent.

    ``client_uid`` is let into the segment, if it is another user than ours.
    """
    if hello.version != control.VERSION:
        raise LocalProtocolError(f"the client speaks version {hello.version}, this server {control.VERSION}")
    if hello.max_frame < MIN_MAX_FRAME:
        raise RemoteProtocolError(f"the client's max_frame is {hello.max_frame}, less than {MIN_MAX_FRAME}")
    if hello.max_frame > MAX_MAX_FRAME:
        raise RemoteProtocolError(f"the client's max_frame is {hello.max_frame}, more than {MAX_MAX_FRAME}")
    if hello.pickle != settings.pickle:
        sides = ("the client", "this server") if hello.pickle else ("this server", "the client")
        raise LocalProtocolError(f"codec='pickle' is for both sides: {sides[0]} has it, and {sides[1]} has not")
    if hello.max_memory < control.MIN_MAX_MEMORY:
        raise RemoteProtocolError(f"the client's max_memory is {hello.max_memory}, less than {control.MIN_MAX_MEMORY}")
    if hello.max_memory > control.MAX_MAX_MEMORY:
        raise RemoteProtocolError(f"the client's max_memory is {hello.max_memory}, more than {control.MAX_MAX_MEMORY}")
    max_frame = min(hello.max_frame, settings.max_frame)
    max_memory = min(hello.max_memory, settings.max_memory)
    segment = NewSegment(offer.service, client_uid)
    descriptors: list[int] = []
    try:
        for _ in range(2):
            descriptors += (each.detach() for each in socket.socketpair(type=socket.SOCK_SEQPACKET))
        bell, their_bell, lending, their_lending = descriptors
        to_server, to_client = segment.semaphores
        channel = _core.Channel(
            segment=segment.descriptor,
            capacity=segment.capacity,
            server=True,
            bell=bell,
            own_semaphore=f"/{to_server}",
            peer_semaphore=f"/{to_client}",
            owner=os.geteuid(),
            lending=lending,
            blocking=False,
            max_frame=max_frame,
            max_memory=max_memory,
            spin=settings.spin,
        )
        welcome = control.Welcome(
            offer.service,
            os.getpid(),
            segment.name,
            segment.capacity,
            segment.semaphores,
            max_frame,
            offer.endpoints,
            offer.shapes_beside_endpoints,
            max_memory,
        )
        packet, unwanted = yield control.encode(welcome), (their_bell, their_lending)
        _close_all(unwanted)
        _expect(packet, control.Confirm)
    except OSError as error:
        _close_all(descriptors)
        raise wants.explained(error) from None
    except BaseException:
        _close_all(descriptors)
        raise
    finally:
        segment.unlink()
    _close_all(descriptors[1:])  # The channel has its own of these.
    return Established(channel, bell, offer.service, 0, max_frame, offer.endpoints, offer.shapes)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_M = TypeVar("_M", bound=msgspec.Struct)


def _expect(packet: bytes, kind: type[_M]) -> _M:
    """The message in the packet, which has to be of this kind."""
    if not packet:
        raise ConnectionLost("the peer closed the connection during the handshake")
    message = control.decode(packet)
    if isinstance(message, control.Refuse):
        if message.try_again:
            raise NotNow(message.reason)
        raise ServiceUnavailable(f"the server refused the connection: {message.reason}")
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__.lower()}, got {type(message).__name__.lower()}")
    return message
