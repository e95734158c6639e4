"""Link: a process's connection to NATS, one for each event loop and address, shared by clients and servers.

A broken link is not repaired: its connections end, and their users acquire a new link. A message that NATS's client
kept for later might be executed long after its caller got an error.
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
from shmrpc.transport.nats.link.dispatcher import Dispatcher, OnMessage
from shmrpc.transport.nats.link.heartbeats import Heartbeats
from shmrpc.transport.nats.link.link_errors import CONNECT_TIMEOUT, LinkErrors, error_text
from shmrpc.transport.nats.pipe.pipe import MAX_PIECE, Pipe
from shmrpc.transport.nats.pipe.send_queue import HEADER_RESERVE
from shmrpc.transport.nats.pipe.window_budget import WindowBudget

logger = logging.getLogger("shmrpc.nats")

#: Seconds that a message of this process to itself may take.
_FLUSH_TIMEOUT: Final = 2.0
#: Seconds that background tasks have to end when a link is closed.
_CLOSE_TIMEOUT: Final = 1.0
#: The same for a link that was never open, because a failed TLS handshake never ends.
_CLOSE_TIMEOUT_UNOPENED: Final = 0.1
_links: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[NatsAddress, Link]]] = (
    weakref.WeakKeyDictionary()
)


class NatsMisconfigured(ServiceUnavailable):
    """Error for a login or option of this side that cannot work, so that trying again is useless."""


async def acquire(address: NatsAddress, timeout: float | None = None) -> Link:
    """Return the event loop's link to an address, created on first use. The caller must call :meth:`Link.release`.

    Raises ServiceUnavailable if NATS cannot be reached, refuses access, or takes longer than ``timeout`` seconds;
    NatsMisconfigured for a mistake on this side; ImportError without nats-py. None: no limit but NATS's client's own.
    """
    links = _links.setdefault(asyncio.get_running_loop(), {})
    link = links.get(address)
    if link is None:
        link = links[address] = Link(address, links)
    link.users += 1
    try:
        async with asyncio.timeout(timeout):
            await link.wait_open()
    except BaseException as error:
        link.release()
        await link.wait_closed()
        if isinstance(error, TimeoutError):
            raise link.errors.timeout_error(error) from None
        raise
    return link


def import_nats() -> Any:
    """Return the nats package. Raises ImportError with instructions if it is not installed."""
    try:
        return importlib.import_module("nats")
    except ImportError as error:
        missing = "nats:// needs nats-py, which is not installed here: pip install 'shmrpc[nats]'"
        raise ImportError(describe_import_failure("nats", error, missing)) from None


class Link:
    """Connection to NATS, and the pipes that go through it."""

    def __init__(self, address: NatsAddress, links: dict[NatsAddress, Link]) -> None:
        self._address = address
        self._links = links
        self._loop = asyncio.get_running_loop()
        self.heartbeat = address.heartbeat
        #: Number of callers of :func:`acquire` and of pipes that have not released the link.
        self.users = 0
        #: Maximum bytes of a large frame in one message.
        self.piece = MAX_PIECE
        #: Maximum bytes of a message that NATS accepts.
        self.largest = 0
        self.is_open = False
        #: Called when the link breaks.
        self.on_lost: set[Callable[[], None]] = set()
        #: Distributes the bytes that may be in flight to this process.
        self.budget = WindowBudget()
        self._prefix = subjects.link_prefix(address.inbox, secrets.token_urlsafe(12))
        self._dispatcher = Dispatcher(self._prefix, self.publish)
        self.open_inbox, self.close_inbox = self._dispatcher.open_inbox, self._dispatcher.close_inbox
        #: Called after received messages were delivered, in the same iteration of the loop.
        self.on_delivered = self._dispatcher.on_delivered
        self._pipes: set[Pipe] = set()
        self._heartbeats = Heartbeats(self._pipes, self.heartbeat, self.budget, self._loop)
        self.describe_loop_stall = self._heartbeats.describe_loop_stall
        self._nats: Any = None
        #: Errors of NATS's client.
        self.errors = LinkErrors(str(address))
        self.describe_loss = self.errors.describe_loss
        #: Futures of flush() calls.
        self._flushing: set[asyncio.Future[bool]] = set()
        #: TLS context that ensures the use of TLS; None if it was not requested.
        self._tls: tls.Context | None = None
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

    async def wait_open(self) -> None:
        """Wait until the link is connected. Raises ServiceUnavailable; NatsMisconfigured for a mistake on this side."""
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        """Connect to NATS, subscribe to the link's subjects, and start to send. Raises as :meth:`wait_open`."""
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
                max_reconnect_attempts=1,  # Tries each server twice.
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
            await nats.subscribe(f"{self._prefix}.*", cb=self._dispatcher.on_message)
        except errors as error:
            self._forget()
            await self._close_nats()
            raise ServiceUnavailable(f"cannot reach NATS at {self}: {self.errors.explain_failure(error)}") from None
        except Exception as error:  # For example an invalid seed for the login.
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
                f"NATS at {self} accepts {nats.max_payload} bytes in a message, {least} are needed: raise its "
                "max_payload"
            )
        self.is_open = True
        self._writer = self._loop.create_task(self._write())
        self._heartbeats.begin()

    def _forget(self) -> None:
        """Have the next caller of :func:`acquire` create a new link."""
        if self._links.get(self._address) is self:
            del self._links[self._address]

    async def _on_error(self, error: Exception) -> None:
        """Record an error that NATS's client reports, and end flush() calls that it concerns."""
        if not self.errors.record(error, is_open=self.is_open):
            return
        if not self.is_open and self._tls is not None:
            self._tls.has_begun = False  # The next server must start TLS, too.
        if self.errors.mentions(self._prefix):  # Messages of this process to itself do not arrive.
            for flushed in self._flushing:
                if not flushed.done():
                    flushed.set_result(False)

    async def _on_closed(self) -> None:
        """Handle the end of NATS's client."""
        self._lose(self.errors.recent_error())

    def add(self, pipe: Pipe) -> tuple[str, str]:
        """Register a pipe, a user of the link until :meth:`remove`; return its subject, and that of its notices."""
        self.users += 1
        self._pipes.add(pipe)
        open_end = self._dispatcher.open_end
        return (
            open_end(lambda data, _, is_undelivered: None if is_undelivered else pipe.receive(data)),
            open_end(lambda data, _, is_undelivered: pipe.receive_notice(data, is_undelivered=is_undelivered)),
        )

    def remove(self, pipe: Pipe) -> None:
        """Unregister a closed pipe, and release its use of the link. Call this once for each pipe."""
        self._pipes.discard(pipe)
        self._dispatcher.close_end(pipe.subject)
        self._dispatcher.close_end(pipe.notices)
        self.release()

    def schedule_send(self, pipe: Pipe) -> None:
        """Have the messages of a pipe sent soon, by the link's own task. Does not wait."""
        if not pipe.is_queued:
            pipe.is_queued = True
            self._sending_pipes.append(pipe)
        self._has_work.set()

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Queue a message outside of any connection, of at most ``largest`` bytes: a longer one breaks the link.

        ``reply``: subject for replies. The message is lost if the link breaks or never opens.
        """
        self._outbox.append((subject, data, reply))
        self._has_work.set()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a short coroutine in a task that is never cancelled: cancelling could break NATS's client.

        The end of the link waits for the task, at most 1 s.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self) -> None:
        """Send scheduled messages until the link ends, those of one iteration of the loop together."""
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
                        pipe.on_sent()
                        if pipe.has_more:
                            self.schedule_send(pipe)
                            await asyncio.sleep(0)  # Sends the present messages meanwhile.
        except (errors.Error, OSError) as error:
            self._lose(f": {error_text(error)}")

    async def subscribe(self, subject: str, take: OnMessage, group: str = "") -> Any:
        """Pass the messages of a subject to ``take``; return the subscription once it works. ``group``: queue group.

        Raises ConnectionLost if the link breaks, or if NATS does not permit the subscription or takes over 2 s; the
        subscription then ends in the background.
        """

        async def on_message(message: Any) -> None:
            self._dispatcher.queue(take, message.data, message.reply)

        errors = importlib.import_module("nats.errors")
        began = time.monotonic()
        try:
            subscription = await self._nats.subscribe(subject, queue=group, cb=on_message)
        except (errors.Error, OSError) as error:
            raise ConnectionLost(f"the connection to NATS at {self} broke: {error_text(error)}") from None
        is_delivered = False
        try:
            is_delivered = await self.flush() and not self.errors.mentions(f'"{subject}"', began)
        finally:
            if not is_delivered:
                self.run(_unsubscribe(subscription))
        if not is_delivered:
            reason = self.errors.recent_error().removeprefix(": ") or "publishing to shmrpc.to.> may not be permitted"
            raise ConnectionLost(f"NATS at {self} does not deliver messages to {subject!r}: {reason}")
        return subscription

    async def flush(self) -> bool:
        """Wait until NATS has processed all sent messages, and its replies have arrived; return False after 2 s.

        The link sends a message to itself, because the flush() of NATS's client breaks when its caller is cancelled or
        times out. Returns False at once if NATS does not permit that message.
        """
        arrived: asyncio.Future[bool] = self._loop.create_future()

        def take(data: bytes, _: str) -> None:
            if not arrived.done():
                arrived.set_result(True)

        inbox = self.open_inbox(take)
        self._flushing.add(arrived)
        try:
            if self.is_open:
                self.publish(inbox, b"?")
                await asyncio.wait([arrived], timeout=_FLUSH_TIMEOUT)
            return arrived.done() and arrived.result() and self.is_open
        finally:
            self._flushing.discard(arrived)
            self.close_inbox(inbox)

    def _lose(self, how: str) -> None:
        """End all pipes, because the connection to NATS is lost. ``how``: reason after a colon, or ""."""
        if not self.is_open:
            return
        reason = (
            f"the connection to NATS at {self} broke{how}; NATS was stopped, cannot be reached, or has disconnected a "
            "slow consumer: see the log of NATS"
        )
        logger.warning("%s", reason)
        self.is_open = False
        self._forget()
        self._heartbeats.stop()
        for pipe in list(self._pipes):
            pipe.end(ConnectionLost(reason))
            pipe.discard()
        self._dispatcher.end_inboxes()
        for callback in list(self.on_lost):
            callback()

    def release(self) -> None:
        """Release a use of the link. After the last one, the link closes in the background, for good."""
        self.users -= 1
        if self.users == 0 and self._closing is None:
            self._forget()
            if not self._loop.is_closed():
                self._closing = self._loop.create_task(self._close())

    async def _close(self) -> None:
        """Send the last messages, and close the connection to NATS."""
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
        self._dispatcher.end_inboxes()
        self._dispatcher.cancel()
        await self._close_nats()

    async def _close_nats(self) -> None:
        """Close NATS's client, within a time limit."""
        if self._nats is not None and not self._nats.is_closed:
            # AssertionError: it never began to connect. After a failed TLS handshake close() would wait forever.
            with contextlib.suppress(AssertionError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT if self._writer is not None else _CLOSE_TIMEOUT_UNOPENED):
                    await self._nats.close()

    async def wait_closed(self) -> None:
        """Wait until closing pipes are closed, and the link, too, if it has no other user."""
        closing = [pipe.closed for pipe in self._pipes if pipe.is_closing]
        if closing:
            await asyncio.wait(closing)
        if self._closing is not None:
            await asyncio.shield(self._closing)


async def _unsubscribe(subscription: Any) -> None:
    """End a subscription at once, and drop its messages."""
    errors = importlib.import_module("nats.errors")
    with contextlib.suppress(errors.Error, OSError):  # The connection broke, and the subscription with it.
        await subscription.unsubscribe()
