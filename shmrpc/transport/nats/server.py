"""Server's side of connections over NATS."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceUnavailable,
    ShmrpcError,
)
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.host.runtime_dir import check_name
from shmrpc.transport.connection import CloseReason
from shmrpc.transport.connection_options import ConnectionOptions, explain_pickle_mismatch
from shmrpc.transport.errors import Backlog, ChannelError
from shmrpc.transport.listener import Listener, Offer, Peer
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.client import UNKNOWN_UID
from shmrpc.transport.nats.deadlines import shift_deadline
from shmrpc.transport.nats.link import link
from shmrpc.transport.nats.link.link import Link
from shmrpc.transport.nats.messages import Hello, Message, ReplyAddress, ServerReport, Welcome
from shmrpc.transport.nats.pipe.frame_reader import FrameLimits
from shmrpc.transport.nats.pipe.pipe import Pipe
from shmrpc.transport.nats.pipe.window_budget import WINDOW
from shmrpc.transport.queued_inbox import QueuedInbox
from shmrpc.wire import control
from shmrpc.wire.codec import Body

logger = logging.getLogger("shmrpc.server")

#: Pseudo opcode: the client has ended the connection.
_END = -1


class NatsPeer(Peer):
    """Server's side of a client's connection. Sends the welcome when it is created.

    Raises RemoteProtocolError if the hello names an invalid subject.
    """

    def __init__(self, listener: NatsListener, nats_link: Link, hello: Hello) -> None:
        self.pid, self.uid = 0, UNKNOWN_UID
        self.channel = self
        options = listener.inbox.options
        limits = FrameLimits(min(hello.max_frame, options.max_frame), min(hello.max_memory, options.max_memory))
        self.max_frame, self.max_memory = limits.max_frame, limits.max_memory
        self._listener = listener
        #: Highest call id that was received.
        self._reached = 0
        self._end_error: ShmrpcError | None = None
        self._pipe = pipe = Pipe(nats_link, limits)
        self.extra_credit = pipe.extra_credit
        pipe.listen(self._on_frame, self._on_message, self._on_end)
        pipe.peer_description = f"the client ({messages.describe_process(hello.host, hello.pid)})"
        pipe.heartbeat = max(hello.heartbeat, pipe.heartbeat)
        pipe.set_peer(hello.inbox, hello.proof, WINDOW)
        host, pid = messages.own_process()
        offer = listener.offer
        self._pipe.send_message(
            Welcome(
                limits.max_frame,
                limits.max_memory,
                pipe.heartbeat,
                offer.endpoints,
                offer.shape_list,
                pipe.subject,
                pipe.proof,
                host,
                pid,
            )
        )

    def _on_frame(self, opcode: int, call_id: int, body: Body, clock: int) -> None:
        """Queue a frame of the client, with its deadline by this host's clock."""
        self._listener.inbox.put(self, opcode, call_id, shift_deadline(opcode, body, host_nanoseconds() - clock))

    def _on_message(self, message: Message) -> None:
        """Handle the goodbye of the client. Raises RemoteProtocolError for any other message."""
        if not isinstance(message, control.Goodbye):
            raise RemoteProtocolError(f"it sent {control.type_of(message)!r} on an established connection")
        self._on_end(CloseReason.from_goodbye(message, self._pipe.peer_description))

    def _on_end(self, end: CloseReason) -> None:
        """Queue the end of the connection after the earlier frames, so that one-way calls run."""
        if self._end_error is None:
            self._end_error = end.error
            self._listener.inbox.put(self, _END, 0, b"")

    def account_for(self, opcode: int, call_id: int, body: Body) -> bool:
        """Account for a frame taken from the inbox, or end the connection at its end.

        Returns True if the server should run the frame.
        """
        if opcode == _END:
            assert self._end_error is not None
            self._lose(self._end_error)
        elif self._open:
            self._reached = max(self._reached, call_id)
        return self._open

    def send(self, opcode: int, call_id: int, body: Body) -> None:
        """Send a frame, unless the client has left. Raises Oversize if it is too large.

        A client that leaves too many bytes unread loses its connection.
        """
        if self._open and self._end_error is None:
            try:
                self._pipe.send(opcode, call_id, body)
            except (ChannelError, Backlog) as error:
                self.fault(str(error))

    def fault(self, reason: str) -> None:
        """Close this connection, and report the broken rule to the client and the server, unless it is closed."""
        if self._open:
            self._pipe.fault(reason)
            self._lose(RemoteProtocolError(f"{self._pipe.peer_description}: {reason}"))

    def close(self, reason: str) -> None:
        """Send a goodbye, and close the connection after the frames already sent. Idempotent."""
        if self._open:
            self._pipe.send_message(control.Goodbye(reason, reached=self._reached))
            self._leave()

    def go_away(self) -> None:
        """Ask the client to make its next call on another connection."""
        if self._open:
            self._pipe.send_message(control.GoAway())

    @property
    def has_pending_replies(self) -> bool:
        """True if replies wait to be sent."""
        return self._open and self._pipe.has_unsent_data

    def _leave(self) -> None:
        """Close the pipe after the frames already sent, and unregister from the listener."""
        self._open = False
        self._pipe.finish()
        self._listener.forget(self)

    def _lose(self, error: ShmrpcError) -> None:
        """Close this side, and report the error to the server. Idempotent."""
        if self._open:
            self._leave()
            self._listener.notify_lost(self, error)

    async def wait_closed(self) -> None:
        """Wait until sent frames have left this process."""
        await self._pipe.wait_closed()


class NatsListener(Listener[NatsPeer]):
    """Listener of one of the servers of a name."""

    def __init__(self, inbox: NatsInbox, offer: Offer, on_change: Callable[[], None]) -> None:
        super().__init__(offer.service, on_change)
        self.inbox, self.offer = inbox, offer
        self._subscription: Any = None
        #: Link that delivers hellos; None before the first.
        self._announced: Link | None = None
        self._started = time.monotonic()
        self._refusals = LogThrottle()

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self.peers)

    async def announce(self, nats_link: Link) -> None:
        """Accept clients that reach NATS by this link, if the listener serves; return once NATS delivers to it.

        Idempotent for each link. Raises ConnectionLost if the link breaks, or if NATS does not permit the subscription.
        """
        if self.health == "serving" and self._announced is not nats_link:
            take = functools.partial(self._on_hello, nats_link)
            self._subscription = await nats_link.subscribe(subjects.hello(self.service), take, subjects.GROUP)
            self._announced = nats_link

    def _on_hello(self, nats_link: Link, data: bytes, notices: str) -> None:
        """Connect or refuse the client that sent a hello.

        ``notices``: reply subject of the hello, which gets the refusal if the hello itself cannot be decoded.
        """
        answers = messages.decode_reply_address(data)
        answers.inbox = answers.inbox or notices
        if not subjects.is_end(answers.inbox):
            level = self._refusals.level_for("no subject", logging.WARNING)
            logger.log(level, "a hello to %r was dropped, because it has no valid reply subject", self.service)
            return
        try:
            hello = messages.decode(data)
            if not isinstance(hello, Hello):
                raise RemoteProtocolError(f"expected hello, got {control.type_of(hello)}")
            reason = self._refusal_reason(hello)
        except RemoteProtocolError as error:
            reason = str(error)
            # Any client that may publish there can send invalid data without end.
            level = self._refusals.level_for("unreadable", logging.WARNING)
            logger.log(level, "a client of %r was refused: %s", self.service, reason)
        else:
            if reason is None and self.health == "serving" and nats_link.is_open:
                peer = NatsPeer(self, nats_link, hello)
                peer.key = self._connected(peer)
                self.peers.add(peer)
                self.on_change()
                return
        self._refuse(nats_link, answers, reason)

    def _refusal_reason(self, hello: Hello) -> str | None:
        """Return the reason why this server cannot serve a client; None if it can."""
        ours = (messages.VERSION, control.VERSION)
        if tuple(hello.versions) != ours:
            return f"the client speaks version {hello.versions}, this server {ours}"
        if not hello.inbox or hello.proof == messages.NO_PROOF:
            return "the hello has no inbox, or no proof for the messages to it"
        if hello.pickle != self.inbox.options.pickle:
            return explain_pickle_mismatch(hello.pickle)
        return None

    def _refuse(self, nats_link: Link, answers: ReplyAddress, reason: str | None) -> None:
        """Refuse a client with a reason, or ask it to try again if there is none."""
        if nats_link.is_open:
            limits = FrameLimits(self.inbox.options.max_frame, self.inbox.options.max_memory)
            pipe = Pipe(nats_link, limits)
            pipe.set_peer(answers.inbox, answers.proof, WINDOW)
            pipe.send_message(control.Refuse(reason or f"the server is {self.health}", try_again=reason is None))
            pipe.finish()

    def report(self) -> control.StatusReport:
        """Return the state of the server."""
        pid = messages.own_process()[1]
        uptime = time.monotonic() - self._started
        return control.StatusReport(self.service, pid, uptime, self.offer.endpoints, self.connections, self.health)

    def adopt(self, accepted: Any) -> None:
        """Close the socket, and raise LocalProtocolError: this transport has no sockets."""
        accepted.close()
        raise LocalProtocolError(f"{self.service!r} is served over NATS: it has no sockets to take")

    def drain(self) -> None:
        """Ask all clients to leave, and accept no new ones."""
        super().drain()
        self._withdraw()

    def _withdraw(self) -> None:
        """Stop accepting clients, and refuse those whose hellos have arrived."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self.inbox.withdraw(subscription)

    def close(self, reason: str) -> None:
        """Stop accepting clients, and close the connections of all clients."""
        self._withdraw()
        super().close(reason)


class NatsInbox(QueuedInbox[NatsPeer]):
    """Inbox of a server, which reconnects to NATS when the connection breaks."""

    def __init__(self, address: NatsAddress, options: ConnectionOptions, take: Callable[[], None]) -> None:
        super().__init__(take)
        self.options = options
        self._address = address
        self._listeners: list[NatsListener] = []
        self._link: Link | None = None
        #: Subscription of the link to requests for status; None until NATS delivers them.
        self._status_subscription: Any = None
        self._announcing = asyncio.Lock()
        self._reconnecting: asyncio.Task[None] | None = None

    def listen(self, offer: Offer, on_change: Callable[[], None], *, claim: bool) -> NatsListener:
        """Return a listener for a name, which any number of servers may share. Ignores ``claim``.

        Raises ValueError for an invalid name, or an offer that does not fit into a welcome.
        """
        check_name(offer.service)
        _check_offer(offer)
        listener = NatsListener(self, offer, on_change)
        self._listeners.append(listener)
        return listener

    async def open(self) -> None:
        """Connect to NATS. Raises ServiceUnavailable; NatsMisconfigured if the login cannot work."""
        self._link = await link.acquire(self._address)
        self._link.on_lost.add(self._on_lost)
        self._link.on_delivered.add(self.flush)  # Saves a turn of the loop for each call.

    async def announce(self) -> None:
        """Accept clients, after :meth:`open`. Raises ServiceUnavailable if NATS broke or forbids a subscription."""
        try:
            await self._announce()
        except ConnectionLost as error:
            raise ServiceUnavailable(str(error)) from None

    async def _announce(self) -> None:
        """Subscribe to hellos and to requests for status, as far as the link has not. Raises ConnectionLost."""
        async with self._announcing:  # A link that breaks before announce() makes _reconnect() announce, too.
            nats_link = self._link
            if nats_link is None or not nats_link.is_open:
                raise ConnectionLost(f"the connection to NATS at {self._address} broke")
            for listener in self._listeners:
                await listener.announce(nats_link)
            if self._status_subscription is None:
                take = functools.partial(self._report, nats_link)
                self._status_subscription = await nats_link.subscribe(subjects.STATUS, take)

    def _report(self, nats_link: Link, data: bytes, subject: str) -> None:
        """Send the state of each service to the subject of a requester."""
        if nats_link.is_open and subjects.is_end(subject):  # Publishing to other subjects may be forbidden.
            host, _ = messages.own_process()
            for listener in self._listeners:
                report = listener.report()
                data = messages.encode(ServerReport(host, report))
                if len(data) > nats_link.largest:  # A larger message would end the connection.
                    report.endpoints = []
                    data = messages.encode(ServerReport(host, report))
                nats_link.publish(subject, data)

    def _on_lost(self) -> None:
        """Release the broken link, and start to reconnect."""
        self._release_link()
        if self._open and (self._reconnecting is None or self._reconnecting.done()):
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    def _release_link(self) -> Link | None:
        """Release the link, and return it; None without one."""
        nats_link, self._link, self._status_subscription = self._link, None, None
        if nats_link is not None:
            nats_link.on_lost.discard(self._on_lost)
            nats_link.on_delivered.discard(self.flush)
            nats_link.release()
        return nats_link

    async def _reconnect(self) -> None:
        """Try to connect and announce until that succeeds, with pauses of 0.01 to 1 s. Logs each new error."""
        pause, last_text = 0.01, ""
        while True:
            try:
                if self._link is None or not self._link.is_open:
                    self._release_link()
                    await self.open()
                await self._announce()
            except (ServiceUnavailable, ConnectionLost) as error:
                level = logging.DEBUG if str(error) == last_text else logging.WARNING  # An outage may last for hours.
                last_text = str(error)
                logger.log(level, "not served at %s, trying again in %.2g s: %s", self._address, pause, last_text)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                logger.info("serving at %s again", self._address)
                return

    def withdraw(self, subscription: Any) -> None:
        """Start to end a subscription, after its delivered messages. Does nothing without an open link."""
        if self._link is not None and self._link.is_open:
            self._link.run(_drain_subscription(subscription))

    def close(self) -> None:
        """Stop receiving and reconnecting, and drop the waiting frames. The link closes in :meth:`wait_closed`."""
        super().close()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._status_subscription is not None:
            self.withdraw(self._status_subscription)

    async def wait_closed(self) -> None:
        """Wait until sent frames have left this process."""
        if self._reconnecting is not None:
            await asyncio.wait([self._reconnecting])
        if (nats_link := self._release_link()) is not None:
            await nats_link.wait_closed()


def _check_offer(offer: Offer) -> None:
    """Raise ValueError if an offer does not fit into a welcome."""
    size = len(messages.encode(Welcome(1 << 20, 1 << 20, 1.0, offer.endpoints, offer.shape_list)))
    offer.check_size(size, messages.MAX_MESSAGE)


async def _drain_subscription(subscription: Any) -> None:
    """End a subscription after its delivered messages are processed."""
    # NATS's client raises errors of a broken connection, whose subscription has ended anyway.
    try:
        await subscription.drain()
    except asyncio.CancelledError:
        raise
    except Exception as error:
        logger.debug("a subscription ended otherwise: %s", error)
