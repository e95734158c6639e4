"""Relay between a client for threads and its connection over NATS, which runs in a background loop.

A thread waits in the core, for shared memory, and cannot wait for NATS's client. The client is therefore connected to a
relay in its own process, as to a server of this host, and all of `shmrpc.sync` works unchanged. Frames pass through
unchanged, calls keep their ids, and credit is between the two ends. The relay receives nothing from its client while
the connection to the server is full.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from shmrpc.errors import RemoteProtocolError, ShmrpcError
from shmrpc.host import resource_limits
from shmrpc.streams import credit
from shmrpc.transport.connection import CloseReason, Connection
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.errors import Backlog, ChannelError, Oversize
from shmrpc.transport.listener import Offer, Peer
from shmrpc.transport.nats import client
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.pipe import round_trip
from shmrpc.transport.shm import thread_client
from shmrpc.transport.shm.handshake import Established
from shmrpc.transport.shm.server import ShmInbox
from shmrpc.transport.shm.thread_client import ThreadConnection
from shmrpc.wire import frames
from shmrpc.wire.codec import Body

#: Seconds between two checks of a connecting thread that the connection is still wanted.
_CHECK_INTERVAL: Final = 0.05
#: Seconds that sent frames have to leave this process when a client is closed.
_CLOSE_TIMEOUT: Final = 2.0

_T = TypeVar("_T")


class _BackgroundLoop:
    """Event loop of the relays in this process, started on first use. A forked child has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget the loop of the parent in a forked child."""
        self._lock, self._loop = threading.Lock(), None

    def begin(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine in the loop from any thread, and return its future. Starts the loop's thread if needed."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="shmrpc-nats", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)


_background_loop: Final = _BackgroundLoop()


def connect(
    service: str,
    address: NatsAddress,
    timeout: float | None,
    check: Callable[[], None],
    note: Callable[[str], None],
    *,
    options: ConnectionOptions,
) -> RelayedConnection:
    """Connect to a server of a service, as :data:`shmrpc.transport.connection.ThreadDial` describes.

    Blocks, and calls ``check`` every 0.05 s; ``note`` is called in the thread of the background loop. Raises as
    :func:`client.connect` does, what ``check`` raises, SharedMemoryError if this process lacks a resource, and
    ConnectionLost if the relay ends, or its loop does not answer within control.STEP_TIMEOUT seconds.
    """
    starting = _background_loop.begin(_start_relay(service, address, timeout, note, options))
    try:
        while not starting.done():
            check()
            concurrent.futures.wait([starting], _CHECK_INTERVAL)
        relay, theirs = starting.result()
    except BaseException:
        starting.add_done_callback(_close_unused)
        starting.cancel()
        raise

    def make_connection(control_socket: socket.socket, established: Established) -> RelayedConnection:
        return RelayedConnection(control_socket, established, relay)

    return thread_client.inherit(theirs, service, relay.options, make_connection)


def _close_unused(starting: concurrent.futures.Future[tuple[Relay, socket.socket]]) -> None:
    """Close the client's socket of an unwanted relay, which ends the relay."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result()[1].close()


async def _start_relay(
    service: str, address: NatsAddress, timeout: float | None, note: Callable[[str], None], options: ConnectionOptions
) -> tuple[Relay, socket.socket]:
    """Connect to a server; return a relay, and the socket for its client, which the caller owns.

    The relay ends when that socket is closed. Raises as :func:`client.connect`, and SharedMemoryError.
    """
    connection = await client.connect(service, address, timeout, note, options=options)
    with contextlib.ExitStack() as undone:
        undone.callback(connection.close)
        try:
            # Neither side ever waits in a socket.
            kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        except OSError as error:
            raise resource_limits.explain_os_error(error) from None
        undone.callback(theirs.close)
        undone.callback(ours.close)
        relay = Relay(connection, options, ours)
        undone.pop_all()
        return relay, theirs


class Relay:
    """Relay between a client in this process and its server, in the background loop. Owns both its ends."""

    #: None: the core serves no call of this client by itself.
    serving = None

    def __init__(self, connection: client.NatsConnection, options: ConnectionOptions, ours: socket.socket) -> None:
        self._connection: Connection = connection
        self.extra_credit = connection.extra_credit
        #: Reason why the connection to the server has ended.
        self.end: CloseReason | None = None
        #: Done when all is closed.
        self.closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        #: Options of the connection between the client and the relay.
        self.options = dataclasses.replace(
            options, max_frame=connection.max_frame, max_memory=connection.limits.max_memory, spin=0
        )
        self._loop = asyncio.get_running_loop()
        self._peer: Peer | None = None
        self._work: asyncio.Task[None] | None = None
        self._inbox = _RelayInbox(self.options, self._take)
        offer = Offer(connection.service, connection.endpoints, connection.shapes)
        self._listener = self._inbox.listen(offer, self._on_change, claim=False)
        self._listener.begin(self._on_client, self._on_client_lost)
        self._ending = False
        self._adopted = False
        # Counts as one waiting call, because only the client knows if it waits for a frame.
        connection.start({0: None}, self._on_frame, self._on_end, self._on_go_away)
        self._listener.adopt(ours)
        self._adopted = True

    def _on_client(self, peer: Peer) -> Relay:
        """Store the connected client, and return its key."""
        self._peer = peer
        if self.end is not None:  # The connection has ended meanwhile.
            self._loop.call_soon(peer.close, str(self.end.error))
        return self

    def _on_client_lost(self, _: Relay, error: ShmrpcError) -> None:
        """Report a broken rule, which the client has found, to the server."""
        if isinstance(error, RemoteProtocolError):
            self._connection.fault(error)

    def _on_change(self) -> None:
        """End the relay once it has no client."""
        if self._adopted and not self._listener.peers:  # The client has closed, has died, or never connected.
            self._finish()

    def _take(self) -> None:
        """Send the frames received from the client, until the connection to the server is full."""
        poller, inbox = self._inbox.poller, self._inbox
        while not inbox.is_paused and (frame := poller.next()) is not None:
            _, opcode, call_id, body = frame
            if opcode == frames.PEER_FAULT:
                assert self._peer is not None
                self._peer.fault(str(body))
                continue
            try:
                if not self._connection.send(opcode, call_id, body):
                    inbox.is_paused = True
                    self._work = self._loop.create_task(self._resume())
            except (Oversize, Backlog) as error:
                self._on_end(CloseReason(RemoteProtocolError(f"the server of {self._connection.service!r}: {error}")))
            except ChannelError:
                pass  # The connection has ended, and the client is being notified.

    async def _resume(self) -> None:
        """Receive more frames once there is room for them."""
        await self._connection.wait_for_room()
        self._inbox.is_paused = False
        self._inbox.pump()

    def _on_frame(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a frame of the server to the client; drop a frame before the client is connected."""
        if self._peer is not None:
            self._peer.send(opcode, call_id, body)

    def _on_go_away(self) -> None:
        """Pass on the request of the server to use another connection."""
        if self._peer is not None:
            self._peer.go_away()

    def _on_end(self, end: CloseReason) -> None:
        """Keep the reason why the connection to the server has ended, and close the client's connection."""
        if self.end is None:
            self.end = end
            if self._peer is not None:
                self._peer.close(str(end.error))

    def _finish(self) -> None:
        """Start to close the relay. Idempotent."""
        if not self._ending:
            self._ending = True
            self._loop.create_task(self._close()).add_done_callback(_closing.discard)

    async def _close(self) -> None:
        """Send the last frames, and close both connections."""
        closing = asyncio.current_task()
        assert closing is not None
        _closing.add(closing)
        try:
            if self._work is not None:
                await asyncio.wait([self._work])
            self._inbox.close()
            self._listener.close("the client has gone")
            self._connection.close()
            await self._connection.wait_closed()
        finally:
            self.closed.set_result(None)


#: Running tasks, because a loop keeps only weak references to tasks.
_closing: Final[set[asyncio.Task[Any]]] = set()


class _RelayInbox(ShmInbox):
    """Inbox with the frames of a relay's client."""

    #: True while no frames are received, because the connection to the server is full.
    is_paused = False

    def pump(self) -> None:
        """Receive frames, unless the inbox is paused."""
        if not self.is_paused:
            super().pump()


class RelayedConnection(ThreadConnection):
    """Client's side of a connection to a relay in its process."""

    stream_window = credit.WINDOW + round_trip.MAX_EXTRA

    def __init__(self, control_socket: socket.socket, established: Established, relay: Relay) -> None:
        super().__init__(control_socket, established)
        self.pid, self.uid = 0, client.UNKNOWN_UID  # The server's are unknown, and the relay's would be wrong.
        self._relay = relay
        self.extra_credit = relay.extra_credit

    def poll_close(self) -> CloseReason | None:
        """Return the reason if the connection has ended, otherwise None. The relay knows the reason of the server."""
        end = super().poll_close()
        return end if end is None else self._relay.end or end

    def close(self) -> None:
        """Close the connection, and wait at most 2 s until sent frames have left this process. Idempotent."""
        was_open = self._open
        super().close()
        if was_open:
            with contextlib.suppress(TimeoutError):
                self._relay.closed.result(_CLOSE_TIMEOUT)
