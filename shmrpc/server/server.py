"""A server: its start and end, and the pump that handles the frames of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Final

from shmrpc.basics.checks import check_seconds
from shmrpc.basics.loops import running_loop
from shmrpc.errors import LocalProtocolError
from shmrpc.server.call_limiter import (
    DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_MAX_PER_CONNECTION,
    DEFAULT_MAX_WAITING,
    CallLimits,
)
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.dispatch import Dispatcher
from shmrpc.server.eager_start import BLOCKING_THRESHOLD
from shmrpc.server.program_exit import is_program_exit
from shmrpc.service.interceptors import Interceptor, check_interceptors
from shmrpc.service.service import Service
from shmrpc.transport.addresses import At, inboxes
from shmrpc.transport.connection_options import DEFAULT_SPIN, ConnectionOptions
from shmrpc.transport.listener import Inbox, OpenInbox, Poller
from shmrpc.wire import frames
from shmrpc.wire.codec import Codec, CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY, Health

logger = logging.getLogger("shmrpc.server")

#: Seconds that calls in flight have to end when a server drains.
DEFAULT_GRACE: Final = 30.0
#: Seconds that handlers have to end after their cancellation.
CLOSE_TIMEOUT: Final = 5.0
#: Seconds between checks that the clients have read the replies.
_DRAIN_POLL_INTERVAL: Final = 0.005


class Server:
    """A server of one or more services in an event loop; made by :func:`serve`, used as ``async with``."""

    def __init__(
        self,
        services: Sequence[Service],
        open_inboxes: Sequence[OpenInbox],
        codec: CodecName,
        interceptors: Sequence[Interceptor],
        limits: CallLimits,
        *,
        adopting: bool,
        validate_results: bool,
    ) -> None:
        if not services:
            raise TypeError("serve() expected at least one shmrpc.Service")
        for service in services:
            if not isinstance(service, Service):
                hint = ": write serve(*services)" if isinstance(service, (list, tuple)) else ""
                raise TypeError(f"serve() expected a shmrpc.Service, got {type(service).__qualname__}{hint}")
            service.check_reachable()
        self.services = tuple(services)
        self._open_inboxes = open_inboxes
        #: Inboxes of frames, one for each address of the services.
        self._inboxes: list[Inbox] = []
        self._on_change: Callable[[], None] = lambda: None
        #: Codec of arguments and results.
        self.codec: Codec = get_codec(codec)
        self._interceptors = check_interceptors(interceptors)
        self._limits = limits
        self._adopting = adopting
        self._validate_results = validate_results
        #: True if endpoints that block the event loop are logged.
        self.logs_blocking = True
        #: Runner of the calls; None before the server was entered.
        self._runner: CallRunner | None = None
        self._lifespans = contextlib.AsyncExitStack()
        #: Service whose lifespan is ending.
        self._ending_lifespan = ""
        self._dispatchers: list[Dispatcher] = []

    @property
    def health(self) -> Health | None:
        """``"starting"``, ``"serving"``, ``"draining"``; None before and after."""
        return self._dispatchers[0].listener.health if self._dispatchers else None

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return sum(dispatcher.listener.connections for dispatcher in self._dispatchers)

    @property
    def connections_by_service(self) -> dict[str, int]:
        """Number of connected clients of each service; empty while the server is not open."""
        connections = Counter[str]()
        for dispatcher in self._dispatchers:
            connections[dispatcher.listener.service] += dispatcher.listener.connections
        return dict(connections)

    @property
    def arriving(self) -> int:
        """Number of clients whose handshake is in progress."""
        return sum(len(dispatcher.listener.peers) for dispatcher in self._dispatchers) - self.connections

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever a client arrives, is connected, or leaves. Replaces the previous function."""
        self._on_change = changed

    @property
    def in_flight(self) -> int:
        """Number of calls whose handlers are suspended, including streams."""
        return self._runner.limiter.in_flight if self._runner is not None else 0

    @property
    def waiting(self) -> int:
        """Number of calls that wait to begin."""
        return self._runner.limiter.waiting if self._runner is not None else 0

    async def __aenter__(self) -> Server:
        """Claim the services' names, enter their lifespans, and start serving.

        Raises ServiceInUse for a name that is taken, LocalProtocolError without an event loop, in an unsafe directory
        or for a used server, ServiceUnavailable without NATS, and what lifespans raise. A failure closes the server.
        """
        if self._runner is not None:
            raise LocalProtocolError(
                f"this server of {', '.join(s.name for s in self.services)} was used before; make another one"
            )
        running_loop()
        self._inboxes = [self._make_inbox(open_inbox) for open_inbox in self._open_inboxes]
        self._runner = runner = CallRunner(
            self.codec,
            self._limits,
            self._interceptors,
            validate_results=self._validate_results,
            set_busy=self._set_busy,
            after_call=self._after_call,
            logs_blocking=self.logs_blocking,
        )
        for service in self.services:
            service.servers.add(self)
        try:
            for service in self.services:
                for inbox in self._inboxes:
                    self._dispatchers.append(
                        Dispatcher(service, runner, inbox, lambda: self._on_change(), claim=not self._adopting)
                    )
            for inbox in self._inboxes:
                await inbox.open()
            for service in self.services:
                state = await self._enter_lifespan(service)
                runner.capture_context()
                for dispatcher in self._dispatchers:
                    if dispatcher.listener.service == service.name:
                        dispatcher.begin(state)
            for inbox in self._inboxes:
                await inbox.announce()
        except BaseException:
            await self.close()
            raise
        return self

    def __repr__(self) -> str:
        names = ", ".join(repr(service.name) for service in self.services)
        return f"<shmrpc.Server of {names}, {self.connections} connections>"

    def _make_inbox(self, open_inbox: OpenInbox) -> Inbox:
        """Return the inbox of an address, which calls the pump for new frames."""
        inbox: Inbox = open_inbox(lambda: self._pump(inbox.poller))
        return inbox

    def _set_busy(self, busy: bool) -> None:
        """Let the inboxes spin for frames only while no call needs the event loop."""
        for inbox in self._inboxes:
            inbox.set_spinning(not busy)

    def _after_call(self) -> None:
        """Let the inboxes poll for frames if the last poll was long ago."""
        for inbox in self._inboxes:
            inbox.poll_if_due()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def adopt(self, accepted: socket.socket, service: str | None = None) -> None:
        """Serve a client whose connection another process has accepted. Takes ownership of the socket.

        ``service``: the requested one, None for any. Closes the socket if this server does not serve the service now.
        """
        for dispatcher in self._dispatchers:
            if dispatcher.listener.adopts and service in (None, dispatcher.listener.service):
                dispatcher.listener.adopt(accepted)
                return
        accepted.close()

    def shed(self, clients: int) -> None:
        """Ask clients of shared memory, each at most once, to reconnect elsewhere. Those without ``reconnect`` stay."""
        for dispatcher in self._dispatchers:
            if dispatcher.listener.adopts:
                clients -= dispatcher.listener.shed(clients)

    async def drain(self, grace: float = DEFAULT_GRACE) -> None:
        """Reject new calls, wait up to ``grace`` seconds for calls and unread replies, then :meth:`close`.

        Notifies the clients at once. A client with ``reconnect=True`` moves to the next server of the name and loses
        no call that ends in time. Raises ValueError or TypeError for an invalid ``grace``.
        """
        check_seconds("grace", grace)
        for dispatcher in self._dispatchers:
            dispatcher.drain()
        end = time.monotonic() + grace
        if self.in_flight or self.waiting:
            logger.info("stopping: waiting up to %g s for %s", grace, self._describe_in_flight())
        while (self.in_flight or self.waiting or self._has_pending_replies()) and time.monotonic() < end:
            await asyncio.sleep(_DRAIN_POLL_INTERVAL)
        if self.in_flight or self.waiting:
            logger.warning("stopping now: after %g s there are still %s", grace, self._describe_in_flight())
        await self.close()

    def _describe_in_flight(self) -> str:
        """Return a description of the calls in flight, for messages."""
        clients = [client for dispatcher in self._dispatchers for client in dispatcher.clients]
        names = Counter(f"{c.service}.{in_flight.call.endpoint}" for c in clients for in_flight in c.calls.values())
        calls = _join_counts(names)
        count, waiting = self.in_flight, self.waiting
        return f"{count} call{'' if count == 1 else 's'}: {calls}" + (f"; {waiting} more wait" if waiting else "")

    def _has_pending_replies(self) -> bool:
        """Return True if clients have unread replies."""
        return any(dispatcher.listener.has_pending_replies for dispatcher in self._dispatchers)

    def still_running(self) -> list[str]:
        """Return descriptions of the calls and the lifespan that delay the end of the server. Safe in any thread."""
        calls = Counter(self._runner.still_running() if self._runner is not None else ())
        running = [f"{calls.total()} call{'' if calls.total() == 1 else 's'}: {_join_counts(calls)}"] if calls else []
        if self._ending_lifespan:
            running.append(f"the lifespan of service {self._ending_lifespan!r}")
        return running

    async def close(self) -> None:
        """Stop: release the names, tell the clients, and cancel suspended handlers. Idempotent.

        Waits for handlers up to :data:`CLOSE_TIMEOUT` seconds after their cancellation, and for lifespans without
        limit. Raises the exceptions of lifespans.
        """
        dispatchers, self._dispatchers = self._dispatchers, []
        runner, tasks = self._runner, []
        if dispatchers and runner is not None:
            tasks = runner.cancel_all()
            for dispatcher in dispatchers:
                dispatcher.close()
            for inbox in self._inboxes:
                inbox.close()
            runner.close()
        try:
            if tasks and runner is not None and (await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT))[1]:
                calls = _join_counts(Counter(runner.still_running()))
                logger.error(
                    "closed, but %g s after their cancellation these calls have not ended: %s", CLOSE_TIMEOUT, calls
                )
        finally:
            try:
                if runner is not None:
                    await runner.executors.close_processes()
                for inbox in self._inboxes:
                    await inbox.wait_closed()
                await self._lifespans.aclose()
            finally:
                self._ending_lifespan = ""
                for service in self.services:
                    service.servers.discard(self)

    async def _enter_lifespan(self, service: Service) -> Any:
        """Enter the lifespan of a service; return the value that it yields, None without a lifespan.

        Raises TypeError if the lifespan is no async context manager.
        """
        if service.lifespan is None:
            return None
        manager: object = service.lifespan(service)
        if not isinstance(manager, contextlib.AbstractAsyncContextManager):
            if inspect.iscoroutine(manager):
                manager.close()
            raise TypeError(
                f"lifespan of {service.name!r}: expected an async context manager, such as an async def with yield and "
                f"@contextlib.asynccontextmanager; got {manager!r}"
            )
        state = await self._lifespans.enter_async_context(manager)
        self._lifespans.callback(setattr, self, "_ending_lifespan", service.name)
        return state

    def _pump(self, inbox: Poller) -> None:
        """Handle received frames and send the replies until no frame is left. Raises an error that ends the program."""
        runner = self._runner
        assert runner is not None
        current_call, send_next, last_result, fail = (
            runner.current_call,
            inbox.send_next,
            runner.last_result,
            runner.fail,
        )
        began = time.monotonic()
        contexts = runner.contexts
        renew_context = contexts.renew
        try:
            frame: Any = inbox.next()
            while frame is not None:
                current_call.frame = frame
                client, opcode, call_id, body = frame
                renew_context()
                try:
                    reply = client.find_handler(opcode)(body, client, call_id)
                    if reply is None:
                        frame = inbox.next()
                    else:
                        frame = send_next(client.channel, frames.RESULT, call_id, reply)
                        if frame is True:  # A large reply was sent: free its result before the next frame.
                            last_result[0] = None
                            frame = inbox.next()
                    continue
                except BaseException as error:
                    last_result[0] = None
                    fail(client, call_id, error)
                    if is_program_exit(error):
                        raise
                # Outside of the except clause: the error of a faulty peer would otherwise have this error as its
                # context, and with its traceback keep this frame and the connection.
                frame = inbox.next()
        finally:
            seconds = time.monotonic() - began
            # The pump returns to the loop soon after a long call, so that the last call is the one that took long.
            blocking_endpoint = runner.blocking_endpoint() if seconds > BLOCKING_THRESHOLD else None
            current_call.frame = None
            contexts.leave()
        if blocking_endpoint is not None:
            runner.report_blocking(*blocking_endpoint, seconds)


def _join_counts(names: Counter[str]) -> str:
    """Return a text with the names of endpoints, each with its count."""
    return ", ".join(f"{name} ({count})" for name, count in names.most_common())


def serve(
    *services: Service,
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    max_memory: int = DEFAULT_MAX_MEMORY,
    spin: float = DEFAULT_SPIN,
    interceptors: Sequence[Interceptor] = (),
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    max_per_connection: int = DEFAULT_MAX_PER_CONNECTION,
    max_waiting: int = DEFAULT_MAX_WAITING,
    allow_uids: Collection[int] = (),
    adopting: bool = False,
    validate_results: bool = False,
    at: At = None,
) -> Server:
    """Make a server of one or more services, which starts on entering: ``async with shmrpc.serve(calculator): ...``.

    ``codec``: ``"msgspec"``, or ``"msgpack"`` for the reference implementation of MessagePack. ``"pickle"``, which both
    sides must choose, also pickles values that MessagePack does not support, and trusts the peer with that.
    ``max_frame``: bytes of the largest body to accept or send, without arrays and large ``bytes``, which are in shared
    memory. ``max_memory``: bytes of shared memory that each side allocates at most for a connection, as needed. The
    smaller limits of the two sides apply. The requests in flight of a client may take as many bytes, or one largest
    body; so may its waiting requests, and its unread replies. ``spin``: longest time in microseconds that a wait for
    the next request may spin; waits spin only while requests follow each other quickly, and 0 disables spinning.
    ``interceptors`` wrap each call, the first one outermost, outside of those of its service.

    Up to ``max_in_flight`` handlers may be suspended, ``max_per_connection`` of them for one client. Up to
    ``max_waiting`` further calls wait in order, and all others fail with Overloaded. ``adopting``: claim no names, and
    serve only clients that are passed to :meth:`Server.adopt`. ``validate_results``: fail a call with EncodeError if
    its result, or an item of its stream, is not of the declared type. Without it, such values are sent, and debug mode
    (``python -X dev``, or asyncio's own) logs a warning for the first one of each endpoint.

    Processes of this user, of root, and of the users in ``allow_uids`` may call. They meet in the directory that
    ``$SHMRPC_DIRECTORY`` names. SECURITY.md explains how far they are trusted.

    ``at``: address to serve at, as a URL, or a list of several. The default ``"shm"`` is this host's shared memory.
    ``"memory://"`` serves clients in the same event loop, shares nothing with other processes, and has no
    ``max_memory``, ``spin``, ``allow_uids`` and ``adopting``. ``"nats://HOST:PORT"`` serves other hosts that reach the
    same NATS, raises ImportError without ``shmrpc[nats]``, and does not use ``spin`` and ``allow_uids``; any number of
    servers share a name there. :mod:`shmrpc.transport.nats.address` describes the URL.

    Raises ValueError for an invalid address or option; TypeError for one of a wrong type, without a Service, and for an
    endpoint with ``run_in="process"`` that cannot be pickled. Errors of entering: :meth:`Server.__aenter__`.
    """
    options = ConnectionOptions(max_frame, max_memory, spin, codec, allow_uids)
    limits = CallLimits(max_in_flight, max_per_connection, max_waiting, max(max_memory, max_frame))
    return Server(
        services,
        inboxes(at, options),
        codec,
        interceptors,
        limits,
        adopting=adopting,
        validate_results=validate_results,
    )
