"""The handshake: what each side makes of what the other says.

The client's side is a generator that yields where it has to wait, and is sent what has come. What it yields last is the
connection. It returns nothing: a value would travel in a StopIteration, and where a signal's handler raises at the end
of an ``except`` clause, Python leaves the exception that was caught there to the thread. Whoever drives it decides how
to wait: a loop (:mod:`.client`) or a thread (:mod:`.thread_client`).

A client waits once, for the welcome: when it has mapped the segment, it unlinks the names, says so, and calls. The
server (:mod:`.server`) waits for that once it has sent the welcome, and unlinks what another user's client could not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Sequence
from typing import Final

import msgspec

from shmrpc import _core
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ServiceUnavailable, SharedMemoryError
from shmrpc.host import resource_limits
from shmrpc.host.credentials import peer_credentials
from shmrpc.host.rendezvous import ConnectRetry, Packet, receive_packet
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Offer
from shmrpc.transport.shm.close_reason import has_ended
from shmrpc.transport.shm.segment import NewSegment, check_semaphores, open_segment, unlink
from shmrpc.wire import control, frames
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: Nanoseconds for which the server's welcome is waited for in place: no longer than for an answer to a call.
IN_PLACE: Final = 300_000
_CONFIRM: Final = control.encode(control.Confirm())


class Established(msgspec.Struct):
    """What a client has after the handshake."""

    channel: _core.Channel
    #: readable when it rings for our loop, ours to close; None for a side that waits in threads
    bell: _core.Descriptor | None
    service: str
    #: the server's, as the kernel has it; 0 if it cannot be seen from here
    pid: int
    #: the server's user
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]


class AcceptedClient(msgspec.Struct):
    """What a server has made for a client that it is about to welcome."""

    channel: _core.Channel
    #: readable when the client rings, ours to close
    bell: _core.Descriptor
    #: has its names until the client confirms
    segment: NewSegment
    max_frame: int
    welcome: bytes
    #: the descriptors that ride along, to be closed once they are on their way
    theirs: Sequence[_core.Descriptor]

    def sent(self) -> None:
        """Closes what is the client's now."""
        _close_all(self.theirs)

    def close(self) -> None:
        """Closes everything: the client is not welcomed."""
        self.segment.unlink()
        self.channel.close()
        _close_all([self.bell, *self.theirs])


#: Yields the process whose answer is waited for; is sent the answer, None if it did not come.
ClientSteps = Generator[int | Established, Packet | None, None]


class RetryLater(ConnectionLost):
    """The server cannot take a client at this moment; it, or another one, may in a while."""


def connect_client(
    dialled: socket.socket, options: ConnectionOptions, retry: ConnectRetry, *, blocking: bool
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
    answer = yield pid
    if answer is None:
        raise retry.no_answer_error(pid, since)
    descriptors, pid = answer.descriptors, answer.pid  # Of a worker, say: not always the process that listened.
    bell = None
    try:
        welcome = _expect_welcome(answer.data)
        if len(descriptors) != 2:
            raise RemoteProtocolError(f"the server sent {len(descriptors)} descriptors with its welcome instead of 2")
        shapes = _shapes(welcome)
        try:
            channel = _open_channel(welcome, descriptors, options, server_uid, blocking=blocking)
        except RemoteProtocolError:
            if has_ended(dialled):  # With it went the names.
                raise ConnectionLost("it ended the connection during the handshake") from None
            raise
        if not blocking:
            bell, descriptors = descriptors[0], ()
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


def receive_in_place(dialled: socket.socket, options: ConnectionOptions) -> Packet | None:
    """The next packet, an empty one at the end; None if it does not come within a moment.

    Most do. Whoever sleeps for as long as the server takes goes on more slowly afterwards.
    """
    try:
        return receive_packet(dialled, IN_PLACE, int(options.spin * 1e3))
    except BlockingIOError:
        return None


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
        return _core.Channel(
            segment=segment,
            capacity=welcome.capacity,
            server=False,
            bell=descriptors[0],
            semaphores=None if welcome.semaphores is None else (welcome.semaphores[1], welcome.semaphores[0]),
            owner=server_uid,
            loans=descriptors[1],
            blocking=blocking,
            max_frame=welcome.max_frame,
            max_memory=welcome.max_memory,
            spin=options.spin,
            reply_opcode=frames.RESULT,
        )
    except (_core.ChannelError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError):
            explained = resource_limits.explain_os_error(error)
            if isinstance(explained, SharedMemoryError):
                raise explained from None
        raise RemoteProtocolError(f"what the server sent with its welcome cannot be used: {error}") from None
    finally:
        segment.close()


def accept_client(
    hello: control.Hello, offer: Offer, options: ConnectionOptions, client_uid: int = 0
) -> AcceptedClient:
    """What the server makes for a client, from its hello.

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
        bell, their_bell, loans, their_loans = descriptors
        channel = _core.Channel(
            segment=segment.file,
            capacity=segment.capacity,
            server=True,
            bell=bell,
            semaphores=segment.semaphores,
            owner=os.geteuid(),
            loans=loans,
            blocking=False,
            max_frame=max_frame,
            max_memory=max_memory,
            spin=options.spin,
            reply_opcode=frames.RESULT,
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
        return AcceptedClient(channel, bell, segment, max_frame, control.encode(welcome), (their_bell, their_loans))
    except BaseException as error:
        segment.unlink()
        _close_all(descriptors)
        if isinstance(error, OSError):
            raise resource_limits.explain_os_error(error) from None
        raise


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        bound = f"less than {least}" if value < least else f"more than {most}"
        raise RemoteProtocolError(f"the client's {name} is {value}, {bound}")


def _close_all(descriptors: Sequence[_core.Descriptor]) -> None:
    for descriptor in descriptors:
        descriptor.close()


def _expect_welcome(packet: bytes) -> control.Welcome:
    """The message in the packet, which has to be a welcome."""
    if not packet:
        raise ConnectionLost("the peer closed the connection during the handshake")
    message = control.decode(packet)
    if isinstance(message, control.Refuse):
        if message.try_again:
            raise RetryLater(message.reason)
        raise ServiceUnavailable(f"the server refused the connection: {message.reason}")
    if not isinstance(message, control.Welcome):
        raise RemoteProtocolError(f"expected welcome, got {type(message).__name__.lower()}")
    return message
