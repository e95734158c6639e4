"""The handshake of a connection over shared memory.

The client's side is a generator. The generator yields where it has to wait, receives the answer, and finally yields the
connection. Its driver decides how to wait, in an event loop (:mod:`.loop_client`) or a thread (:mod:`.thread_client`).
The generator returns nothing: a returned value would travel in a StopIteration, and if a signal handler raised at the
end of an ``except`` clause there, Python would leave the caught exception set in the thread.

A client waits once, for the welcome. It then maps the segment, unlinks the names, confirms, and makes calls. The server
(:mod:`.server`) waits for the confirmation, and unlinks what a client of another user could not.
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
from shmrpc.host.connect_retry import ConnectRetry
from shmrpc.host.credentials import peer_credentials
from shmrpc.host.rendezvous import Packet, receive_packet
from shmrpc.transport.connection import shapes_by_number
from shmrpc.transport.connection_options import ConnectionOptions, explain_pickle_mismatch
from shmrpc.transport.listener import Offer
from shmrpc.transport.shm.close_reason import has_ended
from shmrpc.transport.shm.segment import NewSegment, check_semaphores, open_segment, unlink
from shmrpc.wire import control, frames
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: Nanoseconds of spinning for the server's welcome, as long as for a reply.
WELCOME_SPIN_NS: Final = 300_000
_CONFIRM: Final = control.encode(control.Confirm())


class Established(msgspec.Struct):
    """The client's resources after the handshake."""

    channel: _core.Channel
    #: Readable when the server rings; owned by the client. None for a side that waits in threads.
    bell: _core.Descriptor | None
    service: str
    #: Process id of the server, as reported by the kernel; 0 if it is not visible from here.
    pid: int
    #: User id of the server.
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, Shape]


class AcceptedClient(msgspec.Struct):
    """The server's resources for a client that is about to be welcomed."""

    channel: _core.Channel
    #: Readable when the client rings; owned by the server.
    bell: _core.Descriptor
    #: Has its names until the client confirms.
    segment: NewSegment
    max_frame: int
    welcome: bytes
    #: Descriptors for the client, to be closed once they were sent.
    theirs: Sequence[_core.Descriptor]

    def close_sent(self) -> None:
        """Close the descriptors that were sent to the client."""
        _close_all(self.theirs)

    def close(self) -> None:
        """Close all resources of a client that is not welcomed."""
        self.segment.unlink()
        self.channel.close()
        _close_all([self.bell, *self.theirs])


#: Yields the process whose answer it waits for; receives the answer, or None if there was none in time.
ClientSteps = Generator[int | Established, Packet | None, None]


class RetryLater(ConnectionLost):
    """The error for a server that cannot take a client now. That server, or another one, may take the client later."""


def connect_client(
    dialled: socket.socket, options: ConnectionOptions, retry: ConnectRetry, *, blocking: bool
) -> ClientSteps:
    """Run the client's side of the handshake; finally yield the connection. Sending on ``dialled`` never blocks.

    The driver answers the yielded process id with the packet received, or None after
    :meth:`ConnectRetry.welcome_timeout`, and owns ``dialled``. ``blocking``: True for a side that waits in threads.

    Raises ServiceUnavailable if the server refuses for good, RetryLater if only for now, RemoteProtocolError if the
    server breaks a rule, ConnectionLost if the server leaves or does not answer in time, SharedMemoryError if this
    process lacks a resource.
    """
    pid, server_uid = peer_credentials(dialled)
    hello = control.Hello(control.VERSION, options.max_frame, options.pickle, options.max_memory, semaphores=blocking)
    since = time.monotonic()
    _send(dialled, control.encode(hello))
    answer = yield pid
    if answer is None:
        raise retry.no_answer_error(pid, since)
    descriptors, pid = answer.descriptors, answer.pid  # The answer may come from a worker instead of the listener.
    bell = None
    try:
        welcome = _expect_welcome(answer.data)
        if len(descriptors) != 2:
            raise RemoteProtocolError(f"the server sent {len(descriptors)} descriptors with its welcome instead of 2")
        shapes = shapes_by_number(welcome.endpoints, welcome.shapes, "the server")
        try:
            channel = _open_channel(welcome, descriptors, options, server_uid, blocking=blocking)
        except RemoteProtocolError:
            if has_ended(dialled):  # The names were removed at its end.
                raise ConnectionLost("it ended the connection during the handshake") from None
            raise
        if not blocking:
            bell, descriptors = descriptors[0], ()
    finally:
        _close_all(descriptors)
    try:
        # Usually permitted. From here on, no death leaves the names behind.
        unlink(welcome.segment, welcome.semaphores)
        _send(dialled, _CONFIRM)
    except BaseException:
        channel.close()
        if bell is not None:
            bell.close()
        raise
    yield Established(channel, bell, welcome.service, pid, server_uid, welcome.max_frame, welcome.endpoints, shapes)


def receive_in_place(dialled: socket.socket, options: ConnectionOptions) -> Packet | None:
    """Block at most 0.3 ms for the next packet, of which at most ``options.spin`` are spent spinning.

    Returns the packet, which is empty at the end; None if none arrives in this time. Raises as
    :func:`~shmrpc.host.rendezvous.receive_packet` does, but not BlockingIOError. Most packets do arrive in time, and a
    process that slept for so short a time would continue more slowly.
    """
    try:
        return receive_packet(dialled, WELCOME_SPIN_NS, int(options.spin * 1e3))
    except BlockingIOError:
        return None


def _send(dialled: socket.socket, packet: bytes) -> None:
    """Send a packet. Ignores a server that has left, which the next receive reports."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        dialled.send(packet)


def _open_channel(
    welcome: control.Welcome,
    descriptors: Sequence[_core.Descriptor],
    options: ConnectionOptions,
    server_uid: int,
    *,
    blocking: bool,
) -> _core.Channel:
    """Open the segment and return its channel.

    Raises RemoteProtocolError for an invalid welcome, SharedMemoryError if this process lacks a resource.
    """
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
    """Create the server's resources for a client, from its hello.

    The caller sends the welcome, then calls :meth:`AcceptedClient.close_sent`, or :meth:`AcceptedClient.close` on
    failure. ``client_uid``: user that gets access to the segment. Raises LocalProtocolError if the two sides cannot
    work together, RemoteProtocolError for an invalid hello, and, if the resources cannot be created, SharedMemoryError
    or another OSError, or ChannelError.
    """
    if hello.version != control.VERSION:
        raise LocalProtocolError(f"the client speaks version {hello.version}, this server {control.VERSION}")
    _check_range("max_frame", hello.max_frame, MIN_MAX_FRAME, MAX_MAX_FRAME)
    if hello.pickle != options.pickle:
        raise LocalProtocolError(explain_pickle_mismatch(hello.pickle))
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
            offer.shape_list,
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
    """Raise RemoteProtocolError unless a value of the hello is from ``least`` to ``most``."""
    if not least <= value <= most:
        bound = f"less than {least}" if value < least else f"more than {most}"
        raise RemoteProtocolError(f"the client's {name} is {value}, {bound}")


def _close_all(descriptors: Sequence[_core.Descriptor]) -> None:
    """Close all of the descriptors."""
    for descriptor in descriptors:
        descriptor.close()


def _expect_welcome(packet: bytes) -> control.Welcome:
    """Return the welcome in a packet.

    Raises RetryLater or ServiceUnavailable for a refusal, ConnectionLost for an empty packet, RemoteProtocolError for
    any other packet.
    """
    if not packet:
        raise ConnectionLost("the peer closed the connection during the handshake")
    message = control.decode(packet)
    if isinstance(message, control.Refuse):
        if message.try_again:
            raise RetryLater(message.reason)
        raise ServiceUnavailable(f"the server refused the connection: {message.reason}")
    if not isinstance(message, control.Welcome):
        raise RemoteProtocolError(f"expected welcome, got {control.type_of(message)}")
    return message
