"""The server's side of a client's connection over shared memory, from the client's arrival to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final, Protocol

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError, SharedMemoryError, ShmrpcError
from shmrpc.host import fork, resource_limits
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.host.processes import describe_process
from shmrpc.streams.credit import OVERHEAD
from shmrpc.transport.listener import Peer
from shmrpc.transport.shm import block_allocation, handshake
from shmrpc.transport.shm.acceptor import PeerCredentials
from shmrpc.transport.shm.close_reason import DOORBELL_CLOSED, has_ended, parse_close_packet
from shmrpc.transport.shm.handshake_limiter import HandshakeLimiter
from shmrpc.wire import control
from shmrpc.wire.codec import Body

logger = logging.getLogger("shmrpc.server")

#: Nanoseconds of spinning for a client's hello. The client sends the hello right after connecting, which wakes this
#: process, so that both come at about the same time; another iteration of the loop would take as long.
HELLO_SPIN_NS: Final = 50_000


class PeerInbox(Protocol):
    """Inbox with the frames of all clients, as a peer uses it."""

    @property
    def poller(self) -> _core.Poller:
        """Source of the frames."""
        ...

    def pump(self) -> None:
        """Have frames taken now, before returning."""
        ...

    def pump_soon(self) -> None:
        """Have frames taken in the next iteration of the loop."""
        ...


class PeerListener(Protocol):
    """Listener of a name, as a peer uses it."""

    health: control.Health
    handshakes: HandshakeLimiter[ShmPeer]
    #: Limits the log of refused clients.
    refusals: LogThrottle

    @property
    def inbox(self) -> PeerInbox:
        """Inbox of the server."""
        ...

    def report(self) -> control.StatusReport:
        """Return the state of the server."""
        ...

    def accept(self, hello: control.Hello, uid: int) -> handshake.AcceptedClient:
        """Create the resources of a client of this user. Raises as :func:`handshake.accept_client` does."""
        ...

    def connected(self, peer: ShmPeer) -> Any:
        """Report a connected client to the layer above; return its key for the inbox."""
        ...

    def notify_lost(self, peer: ShmPeer, error: ShmrpcError) -> None:
        """Report to the layer above that a connected client has left."""
        ...

    def forget(self, peer: ShmPeer) -> None:
        """Forget a client whose connection is closed."""
        ...


class ShmPeer(Peer):
    """A client, from its arrival to its end. Owns its control socket, which must not block.

    A client that does not finish its handshake within twice STEP_TIMEOUT is dropped.
    """

    def __init__(self, listener: PeerListener, control_socket: socket.socket, credentials: PeerCredentials) -> None:
        self.pid, self.uid = credentials.pid, credentials.uid
        #: None until the end of the handshake.
        self.channel: _core.Channel | None = None
        self.max_frame = 0
        self._listener = listener
        self._control = control_socket
        #: The client's hello, once it has arrived.
        self._hello: control.Hello | None = None
        #: The client's resources, from the welcome to the confirmation.
        self._accepted: handshake.AcceptedClient | None = None
        self._bell: _core.Descriptor | None = None
        self._index = -1
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(control.STEP_TIMEOUT * 2, self._on_timeout)
        fork.abandon_in_child(self)

    def start(self) -> None:
        """Handle the hello, which usually arrives with the client, and watch for later packets. Call this once."""
        self._on_control(HELLO_SPIN_NS)
        if self._open:
            self._loop.add_reader(self._control.fileno(), self._on_control)

    def __str__(self) -> str:
        return describe_process(self.pid, "client")

    @property
    def shared_memory(self) -> ShmPeer:
        """The peer itself, which shares memory with the client."""
        return self

    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a frame, unless the client has left. Raises Oversize for a large body.

        A client that leaves more than ``max_memory`` bytes unread loses its connection.
        """
        if self.channel is not None and self._open:
            try:
                self.channel.send(opcode, call_id, body)
            except (_core.ChannelError, _core.Backlog) as error:
                self.fault(str(error))

    def take_back(self, call_id: int) -> None:
        """Withdraw the frames of a call, which has no caller, that wait for room. Does nothing in the handshake."""
        if self.channel is not None:
            self.channel.take_back_all(call_id)

    def sender(self, opcode: int, call_id: int, credit: int) -> _core.StreamSender:
        """Return a sender of a stream's items to a connected client, which may send ``credit`` bytes at first."""
        assert self.channel is not None
        return _core.StreamSender(self.channel, opcode, call_id, credit, OVERHEAD)

    def allocate(self, size: int) -> _core.Buffer:
        """Allocate a block for a connected client. Raises SharedMemoryError if that fails, ChannelError once closed."""
        assert self.channel is not None
        return block_allocation.allocate(self.channel, size)

    def fault(self, reason: str) -> None:
        """Close this connection, and report the broken rule to the client and, if connected, to the layer above."""
        self._send_control(control.Goodbye(reason, fault=True))
        self._end(RemoteProtocolError(f"{self}: {reason}"))

    def close(self, reason: str) -> None:
        """Send a goodbye, and close the connection. Idempotent. A client in its handshake may try the next server."""
        if self.channel is None:
            self._refuse(reason, try_again=True)
            return
        self._send_control(control.Goodbye(reason, reached=self.channel.reached()))
        self.abandon(closing=True)

    def go_away(self) -> None:
        """Ask a connected client to make its next call on another connection."""
        if self.channel is not None:
            self._send_control(control.GoAway())

    @property
    def has_pending_replies(self) -> bool:
        """True if replies wait for the client to read."""
        return self.channel is not None and self.channel.is_awaited()

    def _on_control(self, spin_ns: int = 0) -> None:
        """Receive and handle a packet of the client, spinning for at most ``spin_ns`` nanoseconds."""
        try:
            # Descriptors in the packet are dropped, which closes them.
            packet = _core.receive_packet(self._control.fileno(), control.MAX_MESSAGE, spin_ns, spin_ns)[0]
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        try:
            if not packet or self.channel is not None:
                self._handle_close(packet)
            elif self._accepted is not None:
                self._on_confirm(packet, self._accepted)
            else:
                self._on_hello(packet)
        except (ShmrpcError, _core.ChannelError, OSError) as error:
            self._fail_handshake(error)

    def _handle_close(self, packet: bytes) -> None:
        """End the connection after a goodbye, or after a packet that no client sends."""
        try:
            end = parse_close_packet(packet, "client", self.pid)
            if end is None:
                raise RemoteProtocolError("it sent 'goaway', which only a server may send")
        except RemoteProtocolError as error:
            self.fault(str(error))
        else:
            self._loop.remove_reader(self._control.fileno())
            self._end_after_unread(end.error)

    def _end_after_unread(self, error: ShmrpcError) -> None:
        """End the connection of a client that has left, after its unread frames: its one-way calls still run.

        If there are any, has them taken now, and tries again in the next iteration of the loop.
        """
        if self._open and self._has_unread_frames() and not isinstance(error, RemoteProtocolError):
            self._listener.inbox.poller.wake(self._index)
            self._listener.inbox.pump()
            self._loop.call_soon(self._end_after_unread, error)
        else:
            self._end(error)

    def _has_unread_frames(self) -> bool:
        """Return True if frames are unread. Ignores those of a client that left too many replies unread."""
        try:
            return self.channel is not None and self.channel.has_frame() and not self.channel.is_behind()
        except _core.ChannelError:
            return False

    def _refuse(self, reason: str, *, try_again: bool = False) -> None:
        """End a handshake with a refusal; with a goodbye once the client was welcomed and may be connected."""
        if self._accepted is None:
            self._send_control(control.Refuse(reason, try_again))
        else:
            self._send_control(control.Goodbye(reason, fault=not try_again, reached=0 if try_again else None))
        self.abandon(closing=True)

    def _refuse_for_now(self) -> None:
        """Refuse a client because this server starts or drains; the client may try again."""
        self._refuse(f"the server is {self._listener.health}", try_again=True)

    def _on_hello(self, packet: bytes) -> None:
        """Answer a request for status, or queue the handshake of a client. Raises RemoteProtocolError."""
        hello = control.decode(packet)
        if isinstance(hello, control.StatusRequest):
            self._send_control(self._listener.report())
            self.abandon(closing=True)
            return
        if not isinstance(hello, control.Hello):
            raise RemoteProtocolError(f"expected hello, got {control.type_of(hello)}")
        if self._listener.health != "serving":
            self._refuse_for_now()
            return
        if self._hello is not None:
            raise RemoteProtocolError("it sent a second hello before the welcome")
        self._hello = hello
        self._listener.handshakes.request(self)

    def begin(self) -> None:
        """Send the welcome, or refuse the client: its turn for a handshake has come. Call this after its hello."""
        assert self._hello is not None
        if self._listener.health != "serving":
            self._refuse_for_now()
            return
        accepted_client = None
        try:
            accepted_client = self._listener.accept(self._hello, self.uid)
            _core.send_packet(self._control.fileno(), accepted_client.welcome, accepted_client.theirs)
        except (ShmrpcError, _core.ChannelError, OSError) as error:
            if accepted_client is not None:
                accepted_client.close()  # The exception, which a log may keep, would otherwise keep the segment.
            self._fail_handshake(error)
            return
        accepted_client.close_sent()
        self._accepted = accepted_client
        # The client sends the confirmation once it has mapped the segment.
        self._spin_for_next(self._control.fileno())
        self._listener.inbox.pump_soon()

    def _spin_for_next(self, socket: int | None = None) -> None:
        """Make the next wait of the poller spin longer for a frame, or for a packet from ``socket``.

        Does nothing while several clients are in their handshakes.
        """
        if self._listener.handshakes.is_alone:
            self._listener.inbox.poller.expect(socket)

    def _on_confirm(self, packet: bytes, accepted_client: handshake.AcceptedClient) -> None:
        """Complete the handshake: the client has mapped the segment. Raises RemoteProtocolError."""
        message = control.decode(packet)
        if not isinstance(message, control.Confirm):
            raise RemoteProtocolError(f"expected confirm, got {control.type_of(message)}")
        accepted_client.segment.unlink()
        self._timer.cancel()
        self._accepted = None
        self._bell, self.channel, self.max_frame = (
            accepted_client.bell,
            accepted_client.channel,
            accepted_client.max_frame,
        )
        self.key = self._listener.connected(self)
        inbox = self._listener.inbox
        self._index = inbox.poller.add(self.channel, self.key, self.key.serving)
        self._loop.add_reader(self._bell.fileno(), self._on_bell)
        if self._listener.health == "draining":  # drain() has notified the others.
            self.go_away()
        self._spin_for_next()  # Most clients connect to make a call.
        self._listener.handshakes.remove(self)
        inbox.pump()

    def _on_bell(self) -> None:
        """Have the frames taken that a ring announces."""
        if not self._listener.inbox.poller.wake(self._index):
            # If the client has died, the control socket reports it soon.
            assert self._bell is not None
            self._loop.remove_reader(self._bell.fileno())
            self._timer = self._loop.call_later(control.DEATH_TIMEOUT, self._on_bell_timeout)
        self._listener.inbox.pump()

    def _on_bell_timeout(self) -> None:
        """End the connection of a client that closed its doorbell and has not died."""
        if not has_ended(self._control):
            self.fault(DOORBELL_CLOSED)

    def reject_for_now(self, reason: str) -> None:
        """Log the rejection of a client in its handshake, refuse the client for this reason, and close the connection.

        The client may try again.
        """
        level = self._listener.refusals.level_for(reason, logging.WARNING)
        logger.log(level, "%s was turned away: %s", self, reason)
        self._refuse(reason, try_again=True)

    def _fail_handshake(self, error: Exception) -> None:
        """Refuse a client whose handshake has failed; drop a client that has left.

        The client may try again if this process lacks descriptors.
        """
        if isinstance(error, ConnectionError):
            logger.debug("%s left during the handshake: %s", self, error)
            self.abandon(closing=True)
            return
        lacks_descriptors = isinstance(error, OSError) and error.errno in resource_limits.NO_DESCRIPTOR_ERRNOS
        level = logging.WARNING
        if isinstance(error, OSError):
            error = resource_limits.explain_os_error(error)
        if isinstance(error, SharedMemoryError):  # Clients may try again many times a second.
            level = self._listener.refusals.level_for(error.errno, level)
        logger.log(level, "%s was refused: %s", self, error)
        self._refuse(str(error), try_again=lacks_descriptors)

    def _on_timeout(self) -> None:
        """Drop a client that did not finish its handshake in time."""
        logger.warning("%s did not finish the handshake in time", self)
        self.abandon(closing=True)

    def _send_control(self, message: control.Message) -> None:
        """Send a control message. Does not wait for a client that does not read."""
        with contextlib.suppress(OSError):
            self._control.send(control.encode(message), socket.MSG_DONTWAIT)

    def _end(self, error: ShmrpcError) -> None:
        """Close the connection, and report its end if the client was connected. Idempotent."""
        if self._open:
            established = self.channel is not None
            self.abandon(closing=True)
            if established:
                self._listener.notify_lost(self, error)

    def abandon(self, *, closing: bool = False) -> None:
        """Close the descriptors, which suffices in a forked child.

        ``closing``: True to release the other resources, and to unregister from the loop and the listener, too. Neither
        the client nor the layer above gets a message. Idempotent.
        """
        if not self._open:
            return
        self._open = False
        if closing:
            self._timer.cancel()
            self._loop.remove_reader(self._control.fileno())
            if self._bell is not None:
                self._loop.remove_reader(self._bell.fileno())
                self._listener.inbox.poller.remove(self._index)
            if self._accepted is not None:
                self._accepted.close()
            self._listener.forget(self)
        if self.channel is not None:
            self.channel.close()
        fork.close_socket(self._control)
        if self._bell is not None:
            self._bell.close()
