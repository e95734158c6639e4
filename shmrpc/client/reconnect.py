"""A client's way to its service: one connection after the other, where it wants that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from shmrpc.basics.clock import seconds_until
from shmrpc.client.requests import ended_call, may_go_again, none_in_its_place
from shmrpc.client.session import Session
from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.transport.base import Connection, Dial, interruption

_T = TypeVar("_T")

logger = logging.getLogger("shmrpc.client")


def _weakly(method: Callable[[Session], None]) -> Callable[[Session], None]:
    """Calls a method for as long as its object lives: a loop knows sessions, and would keep what these know."""
    weak = weakref.WeakMethod(method)

    def call(session: Session) -> None:
        bound = weak()
        if bound is not None:
            bound(session)

    return call


class Bound(Protocol):
    """What is bound to a session."""

    def unbind(self) -> None:
        """The session is of no use any more."""
        ...


class Link:
    """The present session of a client; with ``reconnect`` a new one after each that ends."""

    def __init__(self, service: str, dial: Dial, timeout: float, *, reconnect: bool) -> None:
        self.service = service
        self.reconnect = reconnect
        self.session: Session | None = None
        #: Why there will be no further session.
        self.ended: ShmrpcError | None = None
        #: Those who bind what they know to a session.
        self.clients: weakref.WeakSet[Bound] = weakref.WeakSet()
        self._dial = dial
        self._timeout = timeout
        #: Sessions whose server goes, and which have calls under way yet.
        self._leaving: set[Session] = set()
        self._connecting: asyncio.Task[None] | None = None
        #: Why it has come to nothing so far.
        self._obstacle = ""
        self._numbers: dict[str, int] = {}

    @property
    def numbers(self) -> dict[str, int]:
        """The endpoints of the present session, or the last one."""
        return self._numbers

    def not_connected(self) -> LocalProtocolError:
        """The error for a call before there was a connection."""
        return LocalProtocolError(f"not connected: use `async with shmrpc.connect({self.service!r}) as client`")

    def _changed(self) -> None:
        for client in list(self.clients):
            client.unbind()

    async def open(self) -> None:
        """The first connection."""
        if self.session is not None or self.ended is not None:
            raise LocalProtocolError(f"this client of {self.service!r} was connected before; make another one")
        connection = await self._dial(self._timeout, self._note)
        if self.ended is not None:  # Closed while it was connecting.
            connection.close()
            raise ended_call(self.ended)
        self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        session = Session(connection, _weakly(self._on_end), _weakly(self._on_go_away))
        self.session = session
        self._numbers = session.numbers
        self._changed()

    def close(self) -> None:
        """Closes all connections; calls under way fail with ConnectionLost. Again: nothing."""
        error = ConnectionLost(f"this client of {self.service!r} was closed")
        if self.ended is None:
            self.ended = error
        if self._connecting is not None:
            self._connecting.cancel()
        sessions = {*self._leaving, *((self.session,) if self.session is not None else ())}
        for session in sessions:
            session.close(error)

    def current(self) -> Session | None:
        """The present session, if calls can be sent on it."""
        session = self.session
        return session if session is not None and session.ended is None and not session.leaving else None

    async def ready(self, deadline: int | None = None, timeout: float | None = None) -> Session:
        """The present session; if there is none, waits for the next one.

        ``deadline`` in nanoseconds of CLOCK_MONOTONIC. Raises why there will be none, or ServiceUnavailable
        after ``timeout`` seconds, as long as connecting may take if it is not given.
        """
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        if deadline is not None:
            end = min(end, time.monotonic() + seconds_until(deadline))
        while True:
            session = self.current()
            if session is not None:
                return session
            if self.ended is not None:
                raise ended_call(self.ended)
            if self._connecting is None:
                raise self.not_connected()
            done, _ = await asyncio.wait([self._connecting], timeout=max(0.0, end - time.monotonic()))
            if not done:
                raise none_in_its_place(self.service, self._obstacle)

    async def attempt(
        self, call: Call, once: Callable[[Session], Awaitable[_T]], is_spent: Callable[[], bool] = lambda: False
    ) -> _T:
        """Makes a call, on one session after the other as long as it certainly was not begun: what ``once`` gives.

        ``is_spent``: whether items of the call's sources are gone, so that it cannot be made again.
        """
        while True:
            session = await self.ready(call.deadline)
            call._peer, call.id = session, session.next_id()
            try:
                return await once(session)
            except BaseException as error:
                error = session.unsent(call.endpoint, error)
                if not may_go_again(error, reconnect=self.reconnect, spent=is_spent()):
                    raise error from error.__cause__

    def _note(self, obstacle: str) -> None:
        self._obstacle = obstacle

    def _on_go_away(self, session: Session) -> None:
        if self.reconnect and session is self.session:
            self._leaving.add(session)
            self._reconnect()
            session.leave()

    def _on_end(self, session: Session) -> None:
        self._leaving.discard(session)
        if session is not self.session:
            return
        if self.reconnect and self.ended is None:
            self._reconnect()
        elif self.ended is None:
            self.ended = session.ended

    def _reconnect(self) -> None:
        self._changed()
        self._obstacle = ""
        if self._connecting is None:
            connecting = self._connect_again(weakref.ref(self), self._dial, self.service)
            self._connecting = asyncio.get_running_loop().create_task(connecting)

    @staticmethod
    async def _connect_again(link_of: weakref.ref[Link], dial: Dial, service: str) -> None:
        """Connects until there is a server: for a client that may be dropped meanwhile."""
        pause = 0.01

        def note(obstacle: str) -> None:
            if (link := link_of()) is not None:
                link._note(obstacle)

        try:
            while True:
                try:
                    connection = await dial(None, note)
                    break
                except (ShmrpcError, OSError) as error:  # As for want of descriptors.
                    logger.warning("connecting to %r again, in %.2g s: %s", service, pause, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 1.0)
            link = link_of()
            if link is None or link.ended is not None:
                connection.close()
            else:
                link._begin(connection)
        except BaseException as error:
            link = link_of()
            if link is not None and link.ended is None and not isinstance(error, asyncio.CancelledError):
                link.ended = interruption(service, error)
            raise
        finally:
            link = link_of()
            if link is not None:
                link._connecting = None

    def __del__(self) -> None:
        """The client, and all that was made of it, was dropped open. Its loop knows its connections, and not us."""
        sessions = {*self._leaving, *((self.session,) if self.session is not None else ())}
        for session in sessions:
            session.drop()
        connecting = self._connecting
        if connecting is not None and not (loop := connecting.get_loop()).is_closed():
            loop.call_soon_threadsafe(connecting.cancel)

    async def wait_closed(self) -> None:
        """After :meth:`close`: waits until nothing runs any more."""
        if self._connecting is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
