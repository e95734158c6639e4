"""The handshake, each side as a generator that yields where it has to wait, and is sent what has come.

What it yields last is the connection. It returns nothing: a value would travel in a StopIteration, and where a signal's
handler raises at the end of an ``except`` clause, Python leaves the exception that was caught there to the thread.
Whoever drives it decides how to wait: a loop (:mod:`.client`, :mod:`.server`) or a thread (:mod:`.thread_client`).

A client waits once, for the welcome: when it has mapped the segment, it unlinks the names, says so, and calls. The
server waits for that once it has sent the welcome, and unlinks what another user's client could not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import stat
import time
from collections.abc import Generator, Sequence
from typing import Final, TypeVar

import msgspec

from shmrpc import _core
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ServiceUnavailable, SharedMemoryError
from shmrpc.host import exhaustion
from shmrpc.host.credentials import peer_credentials
from shmrpc.host.rendezvous import Patience, Received
from shmrpc.transport.listening import Offer
from shmrpc.transport.options import ConnectionOptions
from shmrpc.transport.shm.goodbye import is_over
from shmrpc.transport.shm.segment import NewSegment, check_semaphores, open_segment, unlink
from shmrpc.wire import control, frames
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: The server's packet to send, and the descriptors that are to ride along.
Packet = tuple[bytes, Sequence[int]]

_CONFIRM: Final = control.encode(control.Confirm())


@dataclasses.dataclass
class Established:
    """What a side has after the handshake."""

    channel: _core.Channel
    #: readable when it rings for our loop, ours to close; None for a side that waits in threads
    bell: _core.Descriptor | None
    service: str
    #: of the other side, as the kernel has it; 0 if it cannot be seen from here
    pid: int
    #: the user of the other side
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]


#: Yields the seconds that the answer may take; is sent the answer, None if it did not come.
ClientSteps = Generator[float | Established, Received | None, None]
ServerSteps = Generator[Packet | Established, bytes, None]


class NotNow(ConnectionLost):
    """The server cannot take a client at this moment; it, or another one, may in a while."""


def client_side(
    dialled: socket.socket, options: ConnectionOptions, patience: Patience, *, blocking: bool
) -> ClientSteps:
    """The client's part; the connection once it stands. ``dialled`` is only sent through, and that never waits.

    ``blocking``: whether this side waits in threads rather than a loop.

    Raises ServiceUnavailable if the server refuses, RemoteProtocolError if it breaks the rules, ConnectionLost if it
    does not answer in time.
    """
    pid, server_uid = peer_credentials(dialled)
    hello = control.Hello(control.VERSION, options.max_frame, options.pickle, options.max_memory, semaphores=blocking)
    since = time.monotonic()
    _send(dialled, control.encode(hello))
    answer = yield patience.for_welcome(pid)
    if answer is None:
        raise patience.silent(pid, since)
    data, descriptors, pid = answer  # Of a worker, say: not always the process that listened.
    bell = None
    try:
        welcome = _expect(data, control.Welcome)
        if len(descriptors) != 2:
            raise RemoteProtocolError(f"the server sent {len(descriptors)} descriptors with its welcome instead of 2")
        shapes = _shapes(welcome)
        try:
            channel = _open_channel(welcome, descriptors, options, server_uid, blocking=blocking)
        except RemoteProtocolError:
            if is_over(dialled):  # With it went the names.
                raise ConnectionLost("it ended the connection during the handshake") from None
            raise
        if not blocking:
            bell, descriptors = descriptors[0], descriptors[1:]
    finally:
        _close_all(descriptors)
    try:
        unlink(welcome.segment, welcome.semaphores)  # As a rule we may: then no death can leave them from here on.
        _send(dialled, _CONFIRM)
    except BaseException:
        channel.close()
        if bell is not None:
            bell.close()
        raise
    yield Established(channel, bell, welcome.service, pid, server_uid, welcome.max_frame, welcome.endpoints, shapes)


def _send(dialled: socket.socket, packet: bytes) -> None:
    """Sends a packet. If the server is gone, that is found out where its next one is read."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        dialled.send(packet)


def _shapes(welcome: control.Welcome) -> dict[int, Shape]:
    """The shapes by the number of their endpoint; RemoteProtocolError if they do not lie beside the endpoints."""
    shapes = {number: shape for number, shape in enumerate(welcome.shapes) if shape is not None}
    if welcome.shapes and len(welcome.shapes) != len(welcome.endpoints):
        raise RemoteProtocolError(
            f"the server named {len(welcome.endpoints)} endpoints and the shapes of {len(welcome.shapes)}"
        )
    return shapes


def _check_bell(bell: _core.Descriptor) -> None:
    """RemoteProtocolError unless it can be rung, and waited for in a loop."""
    if not stat.S_ISSOCK(os.fstat(bell.fileno()).st_mode):
        raise RemoteProtocolError("the server sent a bell with its welcome that is no socket")
    if not bell.is_local_packets():
        raise RemoteProtocolError("the server sent a bell with its welcome that is a socket of another kind")


def _open_channel(
    welcome: control.Welcome,
    descriptors: Sequence[_core.Descriptor],
    options: ConnectionOptions,
    server_uid: int,
    *,
    blocking: bool,
) -> _core.Channel:
    if not MIN_MAX_FRAME <= welcome.max_frame <= options.max_frame:
        raise RemoteProtocolError(
            f"the server set max_frame to {welcome.max_frame}; {MIN_MAX_FRAME} to {options.max_frame} were asked for"
        )
    if not control.MIN_MAX_MEMORY <= welcome.max_memory <= options.max_memory:
        raise RemoteProtocolError(
            f"the server set max_memory to {welcome.max_memory}; {control.MIN_MAX_MEMORY} to {options.max_memory} "
            "were asked for"
        )
    segment = open_segment(welcome.segment, server_uid)
    try:
        check_semaphores(welcome.semaphores, welcome.segment, wanted=blocking)
        _check_bell(descriptors[0])
        return _core.Channel(
            segment=segment.fileno(),
            capacity=welcome.capacity,
            server=False,
            bell=descriptors[0].fileno(),
            semaphores=None if welcome.semaphores is None else (welcome.semaphores[1], welcome.semaphores[0]),
            owner=server_uid,
            lending=descriptors[1].fileno(),
            blocking=blocking,
            max_frame=welcome.max_frame,
            max_memory=welcome.max_memory,
            spin=options.spin,
            answer=frames.RESULT,
        )
    except (_core.ChannelError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError):
            explained = exhaustion.explained(error)
            if isinstance(explained, SharedMemoryError):
                raise explained from None
        raise RemoteProtocolError(f"the server's segment cannot be used: {error}") from None
    finally:
        segment.close()


def server_side(hello: control.Hello, offer: Offer, options: ConnectionOptions, client_uid: int = 0) -> ServerSteps:
    """The server's part, from the client's hello on.

    ``client_uid`` is let into the segment, if it is another user than ours.
    """
    if hello.version != control.VERSION:
        raise LocalProtocolError(f"the client speaks version {hello.version}, this server {control.VERSION}")
    _check_range("max_frame", hello.max_frame, MIN_MAX_FRAME, MAX_MAX_FRAME)
    if hello.pickle != options.pickle:
        sides = ("the client", "this server") if hello.pickle else ("this server", "the client")
        raise LocalProtocolError(f"codec='pickle' is for both sides: {sides[0]} has it, and {sides[1]} has not")
    _check_range("max_memory", hello.max_memory, control.MIN_MAX_MEMORY, control.MAX_MAX_MEMORY)
    max_frame = min(hello.max_frame, options.max_frame)
    max_memory = min(hello.max_memory, options.max_memory)
    segment = NewSegment(offer.service, client_uid, semaphores=hello.semaphores)
    descriptors: list[_core.Descriptor] = []
    try:
        for _ in range(2):
            descriptors += _core.Descriptor.pair()
        bell, their_bell, lending, their_lending = descriptors
        channel = _core.Channel(
            segment=segment.file.fileno(),
            capacity=segment.capacity,
            server=True,
            bell=bell.fileno(),
            semaphores=segment.semaphores,
            owner=os.geteuid(),
            lending=lending.fileno(),
            blocking=False,
            max_frame=max_frame,
            max_memory=max_memory,
            spin=options.spin,
            answer=frames.RESULT,
        )
        welcome = control.Welcome(
            offer.service,
            os.getpid(),
            segment.name,
            segment.capacity,
            max_frame,
            offer.endpoints,
            segment.semaphores,
            offer.shapes_beside_endpoints,
            max_memory,
        )
        packet = yield control.encode(welcome), (their_bell.fileno(), their_lending.fileno())
        _expect(packet, control.Confirm)
    except OSError as error:
        _close_all(descriptors)
        raise exhaustion.explained(error) from None
    except BaseException:
        _close_all(descriptors)
        raise
    finally:
        segment.unlink()
    _close_all(descriptors[1:])  # The channel has its own of these.
    yield Established(channel, bell, offer.service, 0, client_uid, max_frame, offer.endpoints, offer.shapes)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        bound = f"less than {least}" if value < least else f"more than {most}"
        raise RemoteProtocolError(f"the client's {name} is {value}, {bound}")


def _close_all(descriptors: Sequence[_core.Descriptor]) -> None:
    for descriptor in descriptors:
        descriptor.close()


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
