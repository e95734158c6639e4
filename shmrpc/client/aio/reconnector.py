"""The sessions of a client in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Container
from typing import Any, Final

from shmrpc.basics.clock import seconds_until
from shmrpc.basics.loops import running_loop
from shmrpc.client.aio.session import LoopSession
from shmrpc.client.common.call_errors import closed_error
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.errors import ShmrpcError
from shmrpc.transport.connection import Connection, Dial, interrupted_error

logger = logging.getLogger("shmrpc.client")

#: Event loops that run a task now. Cheaper than asking for the running loop. Empty from CPython 3.14 on.
_LOOP_TASKS: Final[Container[asyncio.AbstractEventLoop]] = getattr(asyncio.tasks, "_current_tasks", {})


class _WeakCallbacks:
    """Callbacks of a session that refer weakly to its reconnector, so that the loop does not keep the client alive."""

    __slots__ = ("_reconnector",)

    def __init__(self, reconnector: LoopReconnector) -> None:
        self._reconnector = weakref.ref(reconnector)

    def on_end(self, session: LoopSession) -> None:
        """Report the end of a session."""
        if (reconnector := self._reconnector()) is not None:
            reconnector._on_end(session)

    def on_go_away(self, session: LoopSession) -> None:
        """Report that a session's server accepts no new calls."""
        if (reconnector := self._reconnector()) is not None:
            reconnector._on_go_away(session)


class LoopReconnector(Reconnector[LoopSession]):
    """The sessions in an event loop, where a task reconnects as soon as a session ends."""

    _connect_expression = "async with shmrpc.connect({})"

    def __init__(self, service: str, dial: Dial, timeout: float, *, reconnect: bool) -> None:
        super().__init__(service, timeout, reconnect=reconnect)
        #: Clients that have bound endpoints to the current session.
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self._dial = dial
        self._connecting: asyncio.Task[None] | None = None

    def usable_session(self) -> LoopSession | None:
        """Return the current session; see the base class. Raises LocalProtocolError outside of its event loop."""
        session = super().usable_session()
        if session is not None and session.loop not in _LOOP_TASKS:
            session.connection.check_loop()
        return session

    def _unbind_clients(self) -> None:
        """Let all clients on these sessions discard their bound endpoints."""
        for client in list(self.clients):
            client._unbind()

    async def open(self) -> None:
        """Make the first connection, in the running event loop; see the base class."""
        self._check_new()
        running_loop()
        connection = await self._dial(self._timeout, self._record_obstacle)
        if self.closed_error is not None:  # Closed while it was connecting.
            connection.close()
            raise closed_error(self.closed_error)
        self._start_session(connection)

    def _start_session(self, connection: Connection) -> None:
        """Make a session of a new connection the current one.

        If it is not the first, clients discard their bound endpoints.
        """
        callbacks = _WeakCallbacks(self)
        session = LoopSession(connection, callbacks.on_end, callbacks.on_go_away)
        is_first, self.session = self.session is None, session
        self.numbers = session.numbers
        if not is_first:
            self._unbind_clients()

    def close(self) -> None:
        """Close all connections; calls in flight fail with ConnectionLost. Idempotent."""
        if self._connecting is not None:
            self._connecting.cancel()
        super().close()

    async def wait_session(self, deadline: int | None = None, timeout: float | None = None) -> LoopSession:
        """Return the current session, after waiting for the task that connects; see the base class.

        Raises LocalProtocolError if no task connects, because it was cancelled.
        """
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        if deadline is not None:
            end = min(end, time.monotonic() + seconds_until(deadline))
        while (session := self.usable_session()) is None:
            if self._connecting is None:  # The task was cancelled with all tasks of its loop.
                raise self.not_connected()
            done, _ = await asyncio.wait([self._connecting], timeout=max(0.0, end - time.monotonic()))
            if not done:
                raise self._no_server_error()
        return session

    def _on_go_away(self, session: LoopSession) -> None:
        """With ``reconnect``, drain the session and connect again."""
        if self.reconnect and session is self.session:
            self._draining.add(session)
            self._reconnect()
            session.drain()

    def _on_end(self, session: LoopSession) -> None:
        """Connect again with ``reconnect``; otherwise let every further call raise the error of the session."""
        self._draining.discard(session)
        if session is not self.session:
            return
        if self.reconnect and self.closed_error is None:
            self._reconnect()
        elif self.closed_error is None:
            assert session.close_reason is not None
            self.closed_error = session.close_reason.error

    def _reconnect(self) -> None:
        """Start the task that connects again, unless it is running. Clients discard their bound endpoints."""
        self._unbind_clients()
        self._last_failure = ""
        if self._connecting is None:
            connecting = self._connect_again(weakref.ref(self), self._dial, self.service)
            self._connecting = asyncio.get_running_loop().create_task(connecting)

    @staticmethod
    async def _connect_again(reference: weakref.ref[LoopReconnector], dial: Dial, service: str) -> None:
        """Connect, with retries until there is a server; then make the session. Refers weakly to the reconnector.

        Retries after ShmrpcError and OSError. Any other error but a cancellation ends the client with ConnectionLost.
        """
        pause = 0.01

        def note(obstacle: str) -> None:
            if (reconnector := reference()) is not None:
                reconnector._record_obstacle(obstacle)

        try:
            while True:
                try:
                    connection = await dial(None, note)
                    break
                except (ShmrpcError, OSError) as error:  # For example too many open files.
                    logger.warning("connecting to %r again, in %.2g s: %s", service, pause, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 1.0)
            reconnector = reference()
            if reconnector is None or reconnector.closed_error is not None:
                connection.close()
            else:
                reconnector._start_session(connection)
        except BaseException as error:
            reconnector = reference()
            if (
                reconnector is not None
                and reconnector.closed_error is None
                and not isinstance(error, asyncio.CancelledError)
            ):
                reconnector.closed_error = interrupted_error(service, error)
            raise
        finally:
            reconnector = reference()
            if reconnector is not None:
                reconnector._connecting = None

    def __del__(self) -> None:
        """Close the connections of a client that was dropped open, with a ResourceWarning. Safe in any thread."""
        for session in self._sessions():
            session.drop()
        connecting = self._connecting
        if connecting is not None and not (loop := connecting.get_loop()).is_closed():
            loop.call_soon_threadsafe(connecting.cancel)

    async def wait_closed(self) -> None:
        """Wait until all tasks and connections have ended. Call :meth:`close` first."""
        if self._connecting is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        for session in self._sessions():
            await session.connection.wait_closed()
