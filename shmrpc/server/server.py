"""Serving: a server's life, and the pump of what its clients send."""

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

#: Seconds that calls under way have to end when a server drains.
DEFAULT_GRACE: Final = 30.0
#: Seconds that handlers have to end once they are cancelled.
CLOSE_TIMEOUT: Final = 5.0
#: Seconds after_call two looks whether the answers have been read.
_DRAIN_POLL_INTERVAL: Final = 0.005


class Server:
    """Services that are being served; made by :func:`serve`, used as ``async with``."""

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
        #: Where frames come from: one for each place where the services are met.
        self._inboxes: list[Inbox] = []
        self._on_change: Callable[[], None] = lambda: None
        #: What its values travel by.
        self.codec: Codec = get_codec(codec)
        self._interceptors = check_interceptors(interceptors)
        self._limits = limits
        self._adopting = adopting
        self._validate_results = validate_results
        #: Whether it is told which endpoints hold the loop for long.
        self.tells_of_holds = True
        #: Made when the server is entered.
        self._runner: CallRunner | None = None
        self._lifespans = contextlib.AsyncExitStack()
        #: The service whose lifespan is just ending.
        self._ending_lifespan = ""
        self._dispatchers: list[Dispatcher] = []

    @property
    def health(self) -> Health | None:
        """``"starting"``, ``"serving"``, ``"draining"``; None before and after."""
        return self._dispatchers[0].listener.health if self._dispatchers else None

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return sum(dispatcher.listener.connections for dispatcher in self._dispatchers)

    @property
    def connections_by_service(self) -> dict[str, int]:
        """Clients that are connected to each service."""
        connections = Counter[str]()
        for dispatcher in self._dispatchers:
            connections[dispatcher.listener.service] += dispatcher.listener.connections
        return dict(connections)

    @property
    def arriving(self) -> int:
        """Clients that are about to be connected."""
        return sum(len(dispatcher.listener.peers) for dispatcher in self._dispatchers) - self.connections

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` whenever a client comes, is connected, or goes."""
        self._on_change = changed

    @property
    def in_flight(self) -> int:
        """Calls whose handlers are suspended, streams included."""
        return self._runner.limiter.in_flight if self._runner is not None else 0

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._runner.limiter.waiting if self._runner is not None else 0

    async def __aenter__(self) -> Server:
        """Takes the services' names, enters their lifespans, and begins to serve.

        Raises ServiceInUse if another live server has a name, LocalProtocolError if the directory where
        services meet is not safely this user's, or if this server was used before; and what a lifespan raises.
        """
        if self._runner is not None:
            raise LocalProtocolError(
                f"this server of {', '.join(s.name for s in self.services)} was used before; make another one"
            )
        running_loop()
        self._inboxes = [self._opened(open_inbox) for open_inbox in self._open_inboxes]
        self._runner = runner = CallRunner(
            self.codec,
            self._limits,
            self._interceptors,
            validate_results=self._validate_results,
            set_busy=self._set_busy,
            after_call=self._after_call,
            tells_of_holds=self.tells_of_holds,
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

    def _opened(self, open_inbox: OpenInbox) -> Inbox:
        inbox: Inbox = open_inbox(lambda: self._pump(inbox.poller))
        return inbox

    def _set_busy(self, busy: bool) -> None:
        for inbox in self._inboxes:
            inbox.set_spinning(not busy)

    def _after_call(self) -> None:
        for inbox in self._inboxes:
            inbox.poll_if_due()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def adopt(self, accepted: socket.socket, service: str | None = None) -> None:
        """Serves a client that another process has accepted, as for a worker. ``service``: the one that it wants."""
        for dispatcher in self._dispatchers:
            if dispatcher.listener.adopts and service in (None, dispatcher.listener.service):
                dispatcher.listener.adopt(accepted)
                return
        accepted.close()

    def shed(self, clients: int) -> None:
        """Tells so many clients to go to another process of the server, as for a worker. With ``reconnect`` they go."""
        for dispatcher in self._dispatchers:
            if dispatcher.listener.adopts:
                clients -= dispatcher.listener.shed(clients)

    async def drain(self, grace: float = DEFAULT_GRACE) -> None:
        """Stops gently: no new calls, those under way have ``grace`` seconds to end, then :meth:`close`.

        Clients are told at once. One with ``reconnect=True`` goes to the next server of the name, and no
        call of it is lost.
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
        """What a draining server waits for, in words."""
        clients = [client for dispatcher in self._dispatchers for client in dispatcher.clients]
        names = Counter(f"{c.service}.{in_flight.call.endpoint}" for c in clients for in_flight in c.calls.values())
        calls = _join_counts(names)
        count, waiting = self.in_flight, self.waiting
        return f"{count} call{'' if count == 1 else 's'}: {calls}" + (f"; {waiting} more wait" if waiting else "")

    def _has_pending_replies(self) -> bool:
        """Whether answers still wait for their readers."""
        return any(dispatcher.listener.has_pending_replies for dispatcher in self._dispatchers)

    def still_running(self) -> list[str]:
        """What the end of the server waits for, in words. From any thread."""
        calls = Counter(self._runner.still_running() if self._runner is not None else ())
        running = [f"{calls.total()} call{'' if calls.total() == 1 else 's'}: {_join_counts(calls)}"] if calls else []
        if self._ending_lifespan:
            running.append(f"the lifespan of service {self._ending_lifespan!r}")
        return running

    async def close(self) -> None:
        """Stops: gives the names back, tells the clients, and cancels suspended handlers. Again: nothing.

        A handler that has not ended :data:`CLOSE_TIMEOUT` seconds later is not waited for any longer. A lifespan is.
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
                    "closed, and %g s after they were cancelled these calls have not ended: %s", CLOSE_TIMEOUT, calls
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
        if service.lifespan is None:
            return None
        manager: object = service.lifespan(service)
        if not isinstance(manager, contextlib.AbstractAsyncContextManager):
            if inspect.iscoroutine(manager):
                manager.close()
            raise TypeError(
                f"lifespan of {service.name!r}: expected an async context manager, as contextlib.asynccontextmanager "
                f"makes one of an async def that yields once; it gave {manager!r}"
            )
        state = await self._lifespans.enter_async_context(manager)
        self._lifespans.callback(setattr, self, "_ending_lifespan", service.name)
        return state

    def _pump(self, inbox: Poller) -> None:
        """Takes frames and answers them until there are no more."""
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
                    answer = client.find_handler(opcode)(body, client, call_id)
                    if answer is None:
                        frame = inbox.next()
                    else:
                        frame = send_next(client.channel, frames.RESULT, call_id, answer)
                        if frame is True:  # A large answer is on its way, and there is something to free meanwhile.
                            last_result[0] = None
                            frame = inbox.next()
                    continue
                except BaseException as error:
                    last_result[0] = None
                    fail(client, call_id, error)
                    if is_program_exit(error):
                        raise
                # Not within the clause: the fault of a peer that breaks the rules would have this error as its context,
                # whose traceback has this frame, and they would keep the connection.
                frame = inbox.next()
        finally:
            seconds = time.monotonic() - began
            # The pump lets the loop turn soon after: if it took long, the last call did.
            blocking_endpoint = runner.blocking_endpoint() if seconds > BLOCKING_THRESHOLD else None
            current_call.frame = None
            contexts.leave()
        if blocking_endpoint is not None:
            runner.report_blocking(*blocking_endpoint, seconds)


def _join_counts(names: Counter[str]) -> str:
    """The endpoints, each with its count."""
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
    """Serves one or more services in the running loop: ``async with shmrpc.serve(calculator): ...``.

    ``codec`` is this side's MessagePack: ``"msgspec"``, or ``"msgpack"`` for the reference package; ``"pickle"``,
    which both sides must say, also pickles what MessagePack does not carry, and trusts the peer with that.
    ``max_frame`` is the largest body accepted or sent, in bytes; arrays and large ``bytes`` are not part of it.
    They lie in shared memory, of which each side sets aside up to ``max_memory`` bytes for a connection, as they
    are needed, and gives them back when they are not; of the two sides' limits the smaller one holds. The requests
    that a client has under way may take as many bytes, or one largest body; so may those that wait, and the answers
    that it does not read. ``spin`` is the longest that one wait for the
    next request may spin, in microseconds; it does so only while requests come quickly one after another, and
    0 means never. ``interceptors`` wrap each call, the first one outermost,
    outside those of its service.

    Up to ``max_in_flight`` handlers may be suspended, ``max_per_connection`` of them for one client; beyond
    that up to ``max_waiting`` calls wait in order, and further ones fail with Overloaded. ``adopting``: takes
    no names; clients come by :meth:`Server.adopt` alone. ``validate_results``: a result, or an item of a stream, that
    is not of the endpoint's declared type fails its call with EncodeError. Otherwise it is sent as it is, and in
    debug mode (``python -X dev``, or asyncio's own) the first of each endpoint is warned of.

    Processes of this user and of root may call, and those of the users in ``allow_uids``; they are met in the
    directory that ``$SHMRPC_DIRECTORY`` names. SECURITY.md says what they are trusted with.

    ``at`` says where they are served, as a URL or a list of several. This host's shared memory, ``"shm"``, is meant if
    it is not given; ``"memory://"``
    is for clients in the same event loop, shares nothing with other processes, and has no ``max_memory``, ``spin``,
    ``allow_uids`` and ``adopting``. ``"nats://HOST:PORT"`` is for other hosts that reach the same NATS, needs
    ``shmrpc[nats]``, and does not use ``spin`` and ``allow_uids``; any number of servers share a name there.
    :mod:`shmrpc.transport.nats.address` has its URL.

    Raises ValueError for an option out of range or that the transport does not have, TypeError for an endpoint with
    ``run_in="process"`` that cannot be pickled. What entering it raises: :meth:`Server.__aenter__`.
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
