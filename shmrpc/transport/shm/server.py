"""The server of a name over shared memory: its listener, and the inbox with the frames of all clients."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from shmrpc import _core
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Inbox, Listener, Offer
from shmrpc.transport.shm import deadlock_guard, handshake
from shmrpc.transport.shm.acceptor import Acceptor, PeerCredentials, check_credentials
from shmrpc.transport.shm.handshake_limiter import HandshakeLimiter
from shmrpc.transport.shm.peer import ShmPeer
from shmrpc.wire import control, frames

logger = logging.getLogger("shmrpc.server")

#: Seconds that new frames may wait before :meth:`ShmInbox.poll_if_due` takes them.
POLL_INTERVAL: Final = 1e-3


class ShmListener(Listener[ShmPeer]):
    """The server of one name, which gives each client a segment and passes its frames to the inbox.

    With ``claim``, holds the name, and raises the errors of :class:`~shmrpc.host.service_socket.ServiceSocket`. Raises
    ValueError if the endpoints do not fit into a welcome.
    """

    adopts = True

    def __init__(
        self,
        offer: Offer,
        on_change: Callable[[], None],
        options: ConnectionOptions,
        inbox: ShmInbox,
        *,
        claim: bool,
    ) -> None:
        _check_offer(offer)
        super().__init__(offer.service, on_change)
        self.inbox = inbox
        self._offer = offer
        self._options = options
        self._started = time.monotonic()
        self.handshakes = HandshakeLimiter(ShmPeer.begin, ShmPeer.reject_for_now)
        self.refusals = LogThrottle()
        self._acceptor = Acceptor(offer.service, self._receive, options.users) if claim else None
        self._loop = asyncio.get_running_loop()
        deadlock_guard.register(offer.service)

    @property
    def connections(self) -> int:
        """Number of clients after their handshakes."""
        return sum(peer.channel is not None for peer in self.peers)

    def report(self) -> control.StatusReport:
        """Return the state of the server, for ``shmrpc ls``."""
        uptime = time.monotonic() - self._started
        return control.StatusReport(
            self.service, os.getpid(), uptime, self._offer.endpoints, self.connections, self.health
        )

    def accept(self, hello: control.Hello, uid: int) -> handshake.AcceptedClient:
        """Create the resources of a client of this user. Raises as :func:`handshake.accept_client` does."""
        return handshake.accept_client(hello, self._offer, self._options, uid)

    def connected(self, peer: ShmPeer) -> Any:
        """Report a connected client to the layer above; return its key for the inbox."""
        logger.debug("%s connected", peer)
        self.on_change()
        return self._connected(peer)

    def adopt(self, accepted: socket.socket) -> None:
        """Serve the process at the other end of a control socket, now owned here; refuse an untrusted process."""
        credentials = check_credentials(accepted, self.service, self._options.users)
        if credentials is not None:
            accepted.setblocking(False)
            self._receive(accepted, credentials)

    def forget(self, peer: ShmPeer) -> None:
        """Forget a client whose connection is closed."""
        super().forget(peer)
        self.handshakes.remove(peer)

    def _receive(self, accepted: socket.socket, credentials: PeerCredentials) -> None:
        """Begin with a client that has arrived, or reject the client if there are too many."""
        peer = ShmPeer(self, accepted, credentials)
        self.peers.add(peer)
        if self.handshakes.admit(peer):
            self.on_change()
            peer.start()
        else:
            peer.reject_for_now("too many clients come at once")

    def close(self, reason: str) -> None:
        """Release the name, and close the connections of all clients. Call this once."""
        deadlock_guard.unregister(self.service, self._loop)
        if self._acceptor is not None:
            self._acceptor.close()
        self.handshakes.close()
        super().close(reason)


class ShmInbox(Inbox):
    """Inbox with the frames of all clients of a server."""

    def __init__(self, options: ConnectionOptions, take: Callable[[], None]) -> None:
        super().__init__(take)
        self._poller = _core.Poller(spin=options.spin, fault=frames.PEER_FAULT, reply_opcode=frames.RESULT)
        self.set_spinning = self._poller.set_spinning
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._pump_handle: asyncio.Handle | None = None
        #: Time at which frames were last taken.
        self._taken_at = 0.0

    @property
    def poller(self) -> _core.Poller:
        """Source of the frames."""
        return self._poller

    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool) -> ShmListener:
        """Return a listener, which claims the service's name if ``claim``. Raises as :class:`ShmListener`."""
        return ShmListener(offer, on_change, self._options, self, claim=claim)

    def poll_if_due(self) -> None:
        """Take arrived frames if none were taken for POLL_INTERVAL seconds. Must not be called within a task."""
        if time.monotonic() - self._taken_at > POLL_INTERVAL:
            self.pump()

    def pump(self) -> None:
        """Have frames taken now, then have the doorbell or the next iteration of the loop call this again.

        Does nothing once closed. Raises what ``take`` raises.
        """
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None
        try:
            if self._open:
                self._take()
        finally:  # Also after an exception that ends the program: until then, other clients are served.
            self._taken_at = time.monotonic()
            if self._open and not self._poller.rest():
                self.pump_soon()

    def pump_soon(self) -> None:
        """Pump in the next iteration of the loop."""
        if self._pump_handle is None:
            self._pump_handle = self._loop.call_soon(self.pump)

    def close(self) -> None:
        """Stop receiving. Idempotent. Connections stay open until their listeners close them."""
        self._open = False
        if self._pump_handle is not None:
            self._pump_handle.cancel()


def _check_offer(offer: Offer) -> None:
    """Raise ValueError if the endpoints do not fit into a welcome."""
    welcome = control.Welcome(offer.service, 0, "", 0, 0, offer.endpoints, ("", ""), offer.shape_list)
    size = len(control.encode(welcome))
    offer.check_size(size, control.MAX_MESSAGE)
