"""The way of a client in threads to its service."""

from __future__ import annotations

import time
from typing import Final

from shmrpc import _core
from shmrpc.basics.clock import seconds_until
from shmrpc.client.common.call_errors import ended_call
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.client.threads.session import ThreadSession, stopped_call
from shmrpc.errors import ConnectionLost, ServiceUnavailable
from shmrpc.transport.connection import ThreadDial
from shmrpc.wire import control

#: Seconds between two looks of a thread whether another one has connected.
PAUSE: Final = 0.002


class ThreadReconnector(Reconnector[ThreadSession]):
    """In threads: the first that needs a session connects, and the others wait for it."""

    _how = "with shmrpc.sync.connect({})"

    def __init__(self, service: str, dial: ThreadDial, timeout: float, *, reconnect: bool) -> None:
        super().__init__(service, timeout, reconnect=reconnect)
        #: Not empty while no call may wait.
        self.stopped: list[bool] = []
        #: How often stop() was called: a thread that waits for a server then waits no longer.
        self.stops = 0
        self._dial = dial
        #: Whose turn it is to connect.
        self._connecting = _core.Turns()

    async def open(self) -> None:
        """Makes the first connection."""
        self._check_new()
        self._connect(self._timeout, self.stops)

    def _connect(self, timeout: float, stops: int) -> ThreadSession:
        def check() -> None:
            if self.ended is not None:
                raise ended_call(self.ended)
            if self.stops != stops:
                raise stopped_call(self.service)

        before = self.session
        session = ThreadSession(self._dial(timeout, check, self._note), self.stopped)
        newer = self.session
        if newer is not None and newer is not before:  # The handler of a signal that came meanwhile has connected.
            session.close(ended_call(ConnectionLost(f"this client of {self.service!r} has another connection")))
            return newer
        self.numbers = session.numbers
        self.session = session
        if self.ended is not None:  # Closed by another thread while we connected, which may not have seen it.
            session.close(self.ended)
            raise ended_call(self.ended)
        return session

    async def ready(self, deadline: int | None = None, timeout: float | None = None) -> ThreadSession:
        """The present session; with ``reconnect`` a new one if that has ended."""
        session = self.usable()
        if session is not None:
            return session
        stops = self.stops
        limit = self._timeout if timeout is None else timeout
        if limit == 0 and deadline is not None:  # One try, which is over by the deadline too.
            limit = control.MOMENT
        end = time.monotonic() + limit
        if deadline is not None:
            end = min(end, time.monotonic() + seconds_until(deadline))
        while (turn := self._connecting.take()) is None:
            if time.monotonic() >= end:
                raise self._none_came()
            if self.stops != stops:
                raise stopped_call(self.service)
            time.sleep(PAUSE)  # noqa: ASYNC251
            session = self.usable()
            if session is not None:
                return session
        try:
            session = self.usable()
            if session is not None:
                return session
            self._leaving = {left for left in self._sessions() if not left.is_over()}
            left = end - time.monotonic()
            if limit > 0 and left <= 0:
                raise self._none_came()
            self._obstacle = ""
            return self._connect(max(0.0, left), stops)
        finally:
            turn.end()

    def look(self) -> bool:
        """Learn what the server has said beside its answers; return whether new calls belong on another session."""
        session = self.session
        if not self.reconnect or session is None:
            return False
        session.hear()
        return session.is_leaving()

    def may_go_again(self, session: ThreadSession, error: BaseException) -> bool:
        """Whether a call that failed so on this session is to be sent again: on the next one, or with another id."""
        again = super().may_go_again(session, error)
        if again and isinstance(error, ServiceUnavailable):  # It takes no more calls.
            session.connection.draining = True
        return again
