"""A process's connection to NATS: one for a loop and an address, whatever the number of clients and servers.

It is not mended: when it breaks, the connections that go through it end, and whoever needs another link makes one. What
NATS's client would keep to send later might be executed long after its caller was told that it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.errors import ConnectionLost, ServiceUnavailable
from shmrpc.transport.nats import subjects, tls
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.link import guarded_client
from shmrpc.transport.nats.link.heartbeats import Heartbeats
from shmrpc.transport.nats.link.link_errors import CONNECT_TIMEOUT, LinkErrors, error_text
from shmrpc.transport.nats.messages import PROOF
from shmrpc.transport.nats.pipe.pipe import HEADER_RESERVE, MAX_PIECE, Pipe
from shmrpc.transport.nats.pipe.window_budget import WindowBudget
from shmrpc.transport.queued_inbox import ScheduledDelivery

logger = logging.getLogger("shmrpc.nats")

#: Seconds that a message of ours to ourselves may take.
_FLUSH_TIMEOUT: Final = 2.0
#: Seconds that what was begun has to end when a link is closed.
_CLOSE_TIMEOUT: Final = 1.0
#: The same for a link that was never open: a handshake of TLS that failed never ends.
_CLOSE_TIMEOUT_UNOPENED: Final = 0.1
#: Takes a message: its data, the subject that answers go to.
OnMessage = Callable[[bytes, str], None]
#: Takes a message, and True if NATS reports by it that one of ours has reached no subscriber.
_Receiver = Callable[[bytes, str, bool], None]

_links: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[NatsAddress, Link]]] = (
    weakref.WeakKeyDictionary()
)


class NatsMisconfigured(ServiceUnavailable):
    """What this side was given to reach NATS with cannot be used, and trying again does not help."""


async def acquire(address: NatsAddress, timeout: float | None = None) -> Link:
    """The link of this loop to an address, made if there is none; to be left by :meth:`Link.leave`.

    Raises ServiceUnavailable if NATS cannot be reached, lets nobody in, or has not done so within ``timeout`` seconds;
    NatsMisconfigured for a mistake on this side.
    """
    links = _links.setdefault(asyncio.get_running_loop(), {})
    link = links.get(address)
    if link is None:
        link = links[address] = Link(address, links)
    link.users += 1
    try:
        async with asyncio.timeout(timeout):
            await link.opened()
    except BaseException as error:
        link.release()
        await link.wait_closed()
        if isinstance(error, TimeoutError):
            raise link.errors.timeout_error(error) from None
        raise
    return link


def import_nats() -> Any:
    """NATS's client. Raises ImportError, which says how to get it, if it is not installed."""
    try:
        return importlib.import_module("nats")
    except ImportError as error:
        missing = "nats:// needs nats-py, which is not installed here: pip install 'shmrpc[nats]'"
        raise ImportError(describe_import_failure("nats", error, missing)) from None


class Link:
    """A connection to NATS, and the ends of connections that go through it."""

    def __init__(self, address: NatsAddress, links: dict[NatsAddress, Link]) -> None:
        self._address = address
        self._links = links
        self._loop = asyncio.get_running_loop()
        self.heartbeat = address.heartbeat
        self.users = 0
        #: Bytes of a large frame that go in one message.
        self.piece = MAX_PIECE
        #: Bytes of the largest message that NATS takes.
        self.largest = 0
        self.is_open = False
        #: Is told when it breaks.
        self.on_lost: set[Callable[[], None]] = set()
        #: Is told when what has come was delivered, in the same turn of the loop.
        self.on_delivered: set[Callable[[], None]] = set()
        #: The bytes that each connection may have on the way to this process.
        self.budget = WindowBudget()
        self._prefix = subjects.link(address.inbox, secrets.token_urlsafe(12))
        self._pipes: set[Pipe] = set()
        self._heartbeats = Heartbeats(self._pipes, self.heartbeat, self.budget, self._loop)
        self.describe_loop_stall = self._heartbeats.describe_loop_stall
        self._inboxes: dict[str, OnMessage] = {}
        #: By the last token of a subject, what takes the messages that come there.
        self._receivers: dict[str, _Receiver] = {}
        self._nats: Any = None
        #: The errors of NATS's client.
        self.errors = LinkErrors(str(address))
        self.describe_loss = self.errors.describe_loss
        #: Those that wait for what NATS has to say.
        self._flushing: set[asyncio.Future[bool]] = set()
        #: What sees to it that TLS is spoken, if it was asked for.
        self._tls: tls.Context | None = None
        self._received: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._delivery = ScheduledDelivery(self._deliver)
        self._sending_pipes: deque[Pipe] = deque()
        self._outbox: deque[tuple[str, bytes, str]] = deque()
        self._has_work = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writer: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opening = self._loop.create_task(self._open())
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())

    def __str__(self) -> str:
        return str(self._address)

    async def opened(self) -> None:
        """Waits until it is connected."""
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        client = import_nats()
        errors = (OSError, TimeoutError, client.errors.Error)
        try:
            arguments = self._address.arguments()
        except ValueError as error:
            self._forget()
            raise NatsMisconfigured(f"cannot log in to NATS at {self}: {error}") from None
        self._tls = arguments.get("tls")
        try:
            self._nats = self.errors.client = nats = guarded_client.make_client()
            if self._tls is not None:
                nats.options = tls.Options(self._tls)
            await nats.connect(
                **arguments,
                name="shmrpc",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # Each server is tried twice: once more after a moment.
                reconnect_time_wait=0.05,
                connect_timeout=CONNECT_TIMEOUT,
                ping_interval=max(0.5, self.heartbeat / 2),
                max_outstanding_pings=2,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                pending_size=8 << 20,
            )
            if self._tls is not None and not self._tls.has_begun:
                raise tls.NoTls
            await nats.subscribe(f"{self._prefix}.*", cb=self._on_message)
        except errors as error:
            self._forget()
            await self._close_nats()
            raise ServiceUnavailable(f"cannot reach NATS at {self}: {self.errors.explain_failure(error)}") from None
        except Exception as error:  # Of what it was given to log in with, such as a seed that is none.
            self._forget()
            await self._close_nats()
            raise ServiceUnavailable(f"cannot log in to NATS at {self}: {type(error).__name__}: {error}") from None
        self.largest = nats.max_payload
        self.piece = min(MAX_PIECE, self.largest - 2 * HEADER_RESERVE)
        if self.piece < HEADER_RESERVE:
            self._forget()
            await self._close_nats()
            least = 3 * HEADER_RESERVE
            raise ServiceUnavailable(
                f"NATS at {self} takes {nats.max_payload} bytes in a message, and {least} are needed: raise its "
                "max_payload"
            )
        self.is_open = True
        self._writer = self._loop.create_task(self._write())
        self._heartbeats.begin()

    def _forget(self) -> None:
        if self._links.get(self._address) is self:
            del self._links[self._address]

    async def _on_error(self, error: Exception) -> None:
        if not self.errors.record(error, is_open=self.is_open):
            return
        if not self.is_open and self._tls is not None:
            self._tls.has_begun = False  # The next server has to begin it, too.
        if self.errors.mentions(self._prefix):  # What was sent to ourselves does not come.
            for flushed in self._flushing:
                if not flushed.done():
                    flushed.set_result(False)

    async def _on_closed(self) -> None:
        self._lose(self.errors.recent_error())

    def add(self, pipe: Pipe) -> tuple[str, str]:
        """Return the subject of a pipe, and that of its notices. The pipe is a user until it is removed."""
        self.users += 1
        self._pipes.add(pipe)
        return (
            self._open_end(lambda data, _, is_undelivered: None if is_undelivered else pipe.receive(data)),
            self._open_end(lambda data, _, is_undelivered: pipe.receive_notice(data, is_undelivered=is_undelivered)),
        )

    def _open_end(self, take: _Receiver) -> str:
        """Return a subject that cannot be guessed, whose messages ``take`` gets."""
        end = subjects.end()
        self._receivers[end] = take
        return f"{self._prefix}.{end}"

    def open_inbox(self, take: OnMessage) -> str:
        """A subject whose messages are given to ``take``: no data means that one of ours has reached nobody."""
        subject = self._open_end(
            lambda data, sender, is_undelivered: take(data, sender) if data or is_undelivered else None
        )
        self._inboxes[subject] = take
        return subject

    def close_inbox(self, subject: str) -> None:
        """Nothing is wanted there any more."""
        del self._inboxes[subject]
        self._close_end(subject)

    def _close_end(self, subject: str) -> None:
        del self._receivers[subject.rpartition(".")[2]]

    def remove(self, pipe: Pipe) -> None:
        """It is closed. Its user leaves the link with it."""
        self._pipes.discard(pipe)
        self._close_end(pipe.subject)
        self._close_end(pipe.notices)
        self.release()

    def schedule_send(self, pipe: Pipe) -> None:
        """It has something to be sent."""
        if not pipe.is_queued:
            pipe.is_queued = True
            self._sending_pipes.append(pipe)
        self._has_work.set()

    def publish(self, subject: str, data: bytes, answers: str = "") -> None:
        """Sends a message that belongs to no connection; ``answers``: the subject where answers are wanted."""
        self._outbox.append((subject, data, answers))
        self._has_work.set()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Has something done that ends soon. It is never cancelled: NATS's client may break then."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self) -> None:
        """Sends what there is to send: what came in one turn of the loop goes together."""
        publish, outbox, sending_pipes = self._nats.publish, self._outbox, self._sending_pipes
        errors = importlib.import_module("nats.errors")
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while outbox or sending_pipes:
                    while outbox:
                        await publish(*outbox.popleft())
                    if not sending_pipes:
                        break
                    pipe = sending_pipes.popleft()
                    pipe.is_queued = False
                    message = pipe.next_message()
                    if message is not None:
                        await publish(pipe.peer, message, pipe.notices)
                        pipe.sent()
                        if pipe.has_more:
                            self.schedule_send(pipe)
                            await asyncio.sleep(0)  # What is there goes on its way meanwhile.
        except (errors.Error, OSError) as error:
            self._lose(f": {error_text(error)}")

    async def _on_message(self, message: Any) -> None:
        # NATS's client calls one after the other, and goes on when this is done: no work is done in here.
        end = message.subject.rpartition(".")[2]
        self._received.append((self._take, (end, message.data, message.reply, guarded_client.is_undelivered(message))))
        self._delivery.schedule()

    def _take(self, end: str, data: bytes, sender: str, is_undelivered: bool) -> None:
        take = self._receivers.get(end)
        if take is not None:
            take(data, sender, is_undelivered)
        elif len(data) > PROOF and subjects.is_end(sender):
            self.publish(sender, data[:PROOF])  # It speaks to a connection that has gone: now it knows.

    def _deliver(self) -> None:
        try:
            while self._received:
                take, message = self._received.popleft()
                take(*message)
            for tell in list(self.on_delivered):
                tell()
        finally:
            if self._received:
                self._delivery.schedule()

    async def subscribe(self, subject: str, take: OnMessage, group: str = "") -> Any:
        """Has what is sent to a subject given to ``take``; the subscription. Raises ConnectionLost."""

        async def on_message(message: Any) -> None:
            self._received.append((take, (message.data, message.reply)))
            self._delivery.schedule()

        errors = importlib.import_module("nats.errors")
        began = time.monotonic()
        try:
            subscription = await self._nats.subscribe(subject, queue=group, cb=on_message)
        except (errors.Error, OSError) as error:
            raise ConnectionLost(f"the connection to NATS at {self} broke: {error_text(error)}") from None
        if not await self.flush() or self.errors.mentions(f'"{subject}"', began):
            why = self.errors.recent_error().removeprefix(": ") or "it may not be permitted to publish to shmrpc.to.>"
            raise ConnectionLost(f"NATS at {self} does not bring us what is sent to {subject!r}: {why}")
        return subscription

    async def flush(self) -> bool:
        """Waits until NATS has done all that it was told before, and what it had to say has come; False if it has not.

        A message to ourselves goes there and back. NATS's client has flush() for that, and breaks when somebody who
        waits for it is cancelled or does not wait for long enough. False at once if NATS complains meanwhile.
        """
        back: asyncio.Future[bool] = self._loop.create_future()

        def take(data: bytes, _: str) -> None:
            if not back.done():
                back.set_result(True)

        inbox = self.open_inbox(take)
        self._flushing.add(back)
        try:
            if self.is_open:
                self.publish(inbox, b"?")
                await asyncio.wait([back], timeout=_FLUSH_TIMEOUT)
            return back.done() and back.result() and self.is_open
        finally:
            self._flushing.discard(back)
            self.close_inbox(inbox)

    def _lose(self, how: str) -> None:
        """The connection to NATS is gone, and with it all that went through it."""
        if not self.is_open:
            return
        reason = (
            f"the connection to NATS at {self} broke{how}; NATS was stopped, or cannot be reached, or has cut this "
            "process off since it read too slowly (a slow consumer): its log says which"
        )
        logger.warning("%s", reason)
        self.is_open = False
        self._forget()
        self._heartbeats.stop()
        for pipe in list(self._pipes):
            pipe.end(ConnectionLost(reason))
            pipe.discard()
        for inbox in list(self._inboxes.values()):
            inbox(b"", "")
        for tell in list(self.on_lost):
            tell()

    def release(self) -> None:
        """One user less. The last one closes the link."""
        self.users -= 1
        if self.users == 0 and self._closing is None:
            self._forget()
            if not self._loop.is_closed():
                self._closing = self._loop.create_task(self._close())

    async def _close(self) -> None:
        if not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        was_open, self.is_open = self.is_open, False
        if was_open:
            self._heartbeats.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        while was_open and self._outbox and self._nats.is_connected:
            await asyncio.sleep(0)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        for inbox in list(self._inboxes.values()):
            inbox(b"", "")
        self._delivery.cancel()
        await self._close_nats()

    async def _close_nats(self) -> None:
        if self._nats is not None and not self._nats.is_closed:
            # AssertionError: it never began to connect. After a handshake of TLS that failed it waits for ever.
            with contextlib.suppress(AssertionError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT if self._writer is not None else _CLOSE_TIMEOUT_UNOPENED):
                    await self._nats.close()

    async def wait_closed(self) -> None:
        """Waits until connections that close have said their last, and it is closed, if nobody needs it any more."""
        closing = [pipe.closed for pipe in self._pipes if pipe.is_closing]
        if closing:
            await asyncio.wait(closing)
        if self._closing is not None:
            await asyncio.shield(self._closing)
