"""Client and server in one event loop: the frames go from one to the other as they are.

Nothing is shared with other processes and the kernel is not asked for anything, but all else is as over
shared memory: a frame arrives in a later turn of the loop, frames keep their order, one over ``max_frame``
is refused, and what had been sent before a goodbye arrives before it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

from shmrpc.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceInUse,
    ServiceUnavailable,
    ShmrpcError,
)
from shmrpc.host.processes import describe_process
from shmrpc.host.runtime_dir import check_name
from shmrpc.transport.connection import CloseReason, Connection, Dial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.errors import ChannelError, check_size
from shmrpc.transport.listener import Listener, Offer, OpenInbox, Peer
from shmrpc.transport.queued_inbox import QueuedInbox, ScheduledDelivery
from shmrpc.wire.codec import Body, body_weight, with_own_buffers

logger = logging.getLogger("shmrpc.server")

#: Bytes that a client may have on the way before it has to wait for room.
CAPACITY: Final = 64 << 10
#: What a frame takes besides its body.
_OVERHEAD: Final = 16


def _copy_for_peer(body: Body, max_frame: int) -> Body:
    """What arrives of a body. Raises Oversize if it is too large."""
    check_size(body, max_frame)
    return with_own_buffers(body)


class MemoryInbox(QueuedInbox["MemoryPeer"]):
    """The frames of all clients of a server. ``find`` is called in its loop."""

    def __init__(self, find: Callable[[], MemoryRegistry], max_frame: int, take: Callable[[], None]) -> None:
        super().__init__(take)
        self._find = find
        self._max_frame = max_frame

    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool = True) -> MemoryListener:
        """Takes the service's name; ServiceInUse if another server has it, LocalProtocolError if it is to take none."""
        if not claim:
            raise LocalProtocolError("adopting=True is for clients that come by a socket: over memory:// none does")
        return MemoryListener(self._find(), offer, on_change, self._max_frame, self)


#: In the place of an opcode: the client has closed the connection, or has found that the server broke the rules.
_GOODBYE: Final = -1
_FAULT: Final = -2


class MemoryPeer(Peer):
    """A client at the server's side."""

    def __init__(self, listener: MemoryListener, max_frame: int) -> None:
        self.pid, self.uid = os.getpid(), os.geteuid()
        self.max_frame = max_frame
        self.channel = self
        self.connection = MemoryConnection(listener, self)
        self._listener = listener
        #: Bytes that it has sent and the server has not taken.
        self._waiting = 0
        #: The highest id of a call that the server took.
        self._reached = 0

    def put(self, opcode: int, call_id: int, body: Body) -> bool:
        """Queues a frame of the client's; whether there is room for another."""
        self._waiting += body_weight(body) + _OVERHEAD
        self._listener.inbox.put(self, opcode, call_id, body)
        return not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the client should let the server take some frames first."""
        return self._open and self._waiting > CAPACITY

    def account_for(self, opcode: int, call_id: int, body: Body) -> bool:
        """Accounts for a frame that has come out of the inbox; whether it is to be run."""
        self._waiting -= body_weight(body) + _OVERHEAD
        if opcode == _GOODBYE:
            self._lose(
                ConnectionLost(
                    f"the client ({describe_process(self.pid)}) closed the connection: {bytes(body).decode()}"
                )
            )
        elif opcode == _FAULT:
            self._lose(
                RemoteProtocolError(
                    f"the client ({describe_process(self.pid)}) found a fault of ours: {bytes(body).decode()}"
                )
            )
        elif self._open:
            self._reached = max(self._reached, call_id)
        return self._open

    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Sends a frame, unless the client is gone. Raises Oversize if it is too large."""
        body = _copy_for_peer(body, self.max_frame)
        if self._open:
            self.connection.deliver(opcode, call_id, body)

    def fault(self, reason: str) -> None:
        """Ends this connection and no other, and tells the client which rule it broke."""
        if self._open:
            self.connection.end(CloseReason(RemoteProtocolError(f"{self._listener} found a fault of ours: {reason}")))
            self._lose(RemoteProtocolError(f"{describe_process(self.pid, 'client')}: {reason}"))

    def close(self, reason: str) -> None:
        """Says goodbye and closes."""
        if self._open:
            error = ConnectionLost(f"{self._listener} closed the connection: {reason}")
            self.connection.end(CloseReason(error, self._reached))
            self._leave()

    def go_away(self) -> None:
        """Tells the client to go elsewhere with its next call."""
        if self._open:
            self.connection.go_away()

    @property
    def has_pending_replies(self) -> bool:
        """Whether answers wait for the client to read."""
        return self._open and self.connection.has_pending_deliveries

    def _leave(self) -> None:
        self._open = False
        self._listener.forget(self)

    def _lose(self, error: ShmrpcError) -> None:
        if self._open:
            self._leave()
            self._listener.notify_lost(self, error)


class MemoryConnection(Connection):
    """A client's side."""

    place = "memory://"

    def __init__(self, listener: MemoryListener, peer: MemoryPeer) -> None:
        super().__init__(listener.service, peer.pid, peer.uid, peer.max_frame, listener.endpoints, listener.shapes)
        self._peer = peer
        self._server = str(listener)
        self._delivery = ScheduledDelivery(self._take)
        self._news: deque[Callable[[], None]] = deque()

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Sends a frame; False if many are on the way already."""
        if not self._open:
            raise ChannelError("the connection is closed")
        return self._peer.put(opcode, call_id, _copy_for_peer(body, self.max_frame))

    async def wait_for_room(self) -> None:
        """Waits until few frames are on the way."""
        while self._open and self._peer.is_full:
            await asyncio.sleep(0)

    def _take(self) -> None:
        try:
            while self._open and self._news:
                self._news.popleft()()
        except BaseException as error:
            self.interrupted(error)
            raise

    @property
    def has_pending_deliveries(self) -> bool:
        """Whether there is something to take."""
        return bool(self._news)

    def deliver(self, opcode: int, call_id: int, body: Body) -> None:
        """Brings a frame of the server's."""
        self._tell(lambda: self._on_frame(opcode, call_id, body))

    def go_away(self) -> None:
        """Brings word that the server takes no new calls."""
        self._tell(lambda: self._on_go_away())

    def end(self, end: CloseReason) -> None:
        """Brings the end, which the server has set."""
        self._tell(functools.partial(self._lose, end))

    def _tell(self, news: Callable[[], None]) -> None:
        if self._open:
            self._news.append(news)
            self._delivery.schedule()

    def fault(self, error: Exception) -> None:
        """Closes, and tells the server which rule it broke."""
        if self._open:
            self._peer.put(_FAULT, 0, str(error).encode())
            self._lose(CloseReason(RemoteProtocolError(f"{self._server}: {error}")))

    def close(self) -> None:
        """Closes the connection. Again: nothing."""
        if self._open:
            self._open = False
            self._news.clear()
            self._delivery.cancel()
            self._peer.put(_GOODBYE, 0, b"closed")


class MemoryListener(Listener[MemoryPeer]):
    """Serves one name of a host."""

    def __init__(
        self,
        host: MemoryRegistry,
        offer: Offer,
        on_change: Callable[[], None],
        max_frame: int,
        inbox: MemoryInbox,
    ) -> None:
        super().__init__(offer.service, on_change)
        self.endpoints, self.shapes = offer.endpoints, offer.shapes
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._max_frame = max_frame
        host.claim(self)

    def __str__(self) -> str:
        return f"the server of {self.service!r} ({describe_process(os.getpid())})"

    def begin(self, connected: Callable[[Peer], Any], lost: Callable[[Any, ShmrpcError], None]) -> None:
        """Serves, from now on."""
        super().begin(connected, lost)
        self._host.changed()

    def accept(self, max_frame: int) -> MemoryConnection:
        """Takes a client; its connection."""
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError(f"{self} runs in another event loop: this transport is for one loop alone")
        peer = MemoryPeer(self, min(max_frame, self._max_frame))
        peer.key = self._connected(peer)
        self.peers.add(peer)
        self.on_change()
        return peer.connection

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return len(self.peers)

    def adopt(self, accepted: socket.socket) -> None:
        """Raises LocalProtocolError: no client comes here by a socket."""
        accepted.close()
        raise LocalProtocolError(f"{self} has no sockets to take; shmrpc.serve() makes one that has")

    def close(self, reason: str) -> None:
        """Gives the name back and says goodbye to everybody."""
        self._host.release(self)
        super().close(reason)


class MemoryRegistry:
    """Where the servers and clients of one event loop meet, by the name of the service."""

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryListener] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def claim(self, listener: MemoryListener) -> None:
        """Gives a listener its name; ServiceInUse if another has it."""
        if listener.service in self._listeners:
            raise ServiceInUse(
                f"service {listener.service!r} is already served here; stop that server first, or choose another name",
                os.getpid(),
            )
        self._listeners[listener.service] = listener

    def release(self, listener: MemoryListener) -> None:
        """Frees the name of a listener."""
        if self._listeners.get(listener.service) is listener:
            del self._listeners[listener.service]

    def changed(self) -> None:
        """Lets the clients that wait for a server look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def connect(
        self, service: str, timeout: float | None, note: Callable[[str], None], *, max_frame: int
    ) -> MemoryConnection:
        """Connects to a service, waiting up to ``timeout`` seconds for its server to appear; None: for ever."""
        check_name(service)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    listener = self._listeners.get(service)
                    if listener is not None and listener.health == "serving":
                        return listener.accept(max_frame)
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            there = ", ".join(self._listeners) or "none"
            raise ServiceUnavailable(
                f"no server of {service!r} here (waited {timeout:g} s); the services of this network: {there}"
            ) from None


#: Where the servers and clients of a loop meet that say ``memory://`` and no more.
_hosts: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryRegistry]] = weakref.WeakKeyDictionary()


def _host_of_loop() -> MemoryRegistry:
    return _hosts.setdefault(asyncio.get_running_loop(), MemoryRegistry())


class MemoryTransport:
    """``memory://``: services and clients of one loop. Each loop has its own names, unless ``find`` says where."""

    adopts = shares_names = False
    lacks = ("max_memory", "spin", "allow_uids")

    def __init__(self, find: Callable[[], MemoryRegistry] = _host_of_loop) -> None:
        self._find = find

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """What opens a server's inbox."""
        return functools.partial(MemoryInbox, self._find, _checked(options).max_frame)

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """What connects a client in a loop."""
        max_frame = _checked(options).max_frame

        async def connect(timeout: float | None, note: Callable[[str], None]) -> MemoryConnection:
            return await self._find().connect(service, timeout, note, max_frame=max_frame)

        return connect

    def thread_dial(self, service: str, options: ConnectionOptions) -> NoReturn:
        """Raises ValueError: a thread that waits for its own loop would wait for ever."""
        raise ValueError(
            f"memory:// is within one event loop: use shmrpc.connect('memory://{service}') in the server's loop"
        )


def _checked(options: ConnectionOptions) -> ConnectionOptions:
    """The options; ValueError for one that has no meaning here."""
    options.reject("memory:// shares no memory and meets no other process: leave it out", MemoryTransport.lacks)
    return options
