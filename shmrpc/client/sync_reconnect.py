"""The way to its service of a client without a loop: one connection after the other, where it wants that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from shmrpc import _core
from shmrpc.basics.clock import seconds_until
from shmrpc.client.requests import ended_call, may_go_again, none_in_its_place
from shmrpc.client.sync_session import ThreadSession, stopped_call
from shmrpc.errors import ConnectionLost, LocalProtocolError, ServiceUnavailable
from shmrpc.service.call import Call
from shmrpc.transport.base import ThreadDial
from shmrpc.wire import control

_T = TypeVar("_T")

#: Seconds between two looks of a thread whether another one has connected.
PAUSE: Final = 0.002


class ThreadLink:
    """The present session of a client; with ``reconnect`` a new one after each that ends."""

    def __init__(self, service: str, dial: ThreadDial, timeout: float, *, reconnect: bool) -> None:
        self.service = service
        self.reconnect = reconnect
        self.session: ThreadSession | None = None
        self.ended: ConnectionLost | None = None
        self.numbers: dict[str, int] = {}
        self.stopped: list[bool] = []
        #: How often stop() was called: who waits for a server then waits no longer.
        self.stops = 0
        self._dial = dial
        self._timeout = timeout
        #: Sessions whose server goes, and which may have calls under way yet.
        self._leaving: list[ThreadSession] = []
        #: Why connecting has come to nothing so far.
        self._obstacle = ""
        #: Whose turn it is to connect.
        self._connecting = _core.Turns()

    def not_connected(self) -> LocalProtocolError:
        """The error for a call before there was a connection."""
        return LocalProtocolError(f"not connected: use `with shmrpc.sync.connect({self.service!r}) as client`")

    def open(self) -> None:
        """The first connection."""
        if self.session is not None or self.ended is not None:
            raise LocalProtocolError(f"this client of {self.service!r} was connected before; make another one")
        self._connect(self._timeout, self.stops)

    def _note(self, obstacle: str) -> None:
        self._obstacle = obstacle

    def _connect(self, timeout: float, stops: int) -> ThreadSession:
        def check() -> None:
            if self.ended is not None:
                raise ended_call(self.ended)
            if self.stops != stops:
                raise stopped_call(self.service)

        before = self.session
        session = ThreadSession(self._dial(timeout, check, self._note))
        session.stopped = self.stopped
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

    def ready(self, deadline: int | None = None, timeout: float | None = None) -> ThreadSession:
        """The present session; with ``reconnect`` a new one if that has ended."""
        session = self._usable()
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
                raise none_in_its_place(self.service, self._obstacle)
            if self.stops != stops:
                raise stopped_call(self.service)
            time.sleep(PAUSE)
            session = self._usable()
            if session is not None:
                return session
        try:
            session = self._usable()
            if session is not None:
                return session
            if self.session is not None and self.session not in self._leaving:
                self._leaving.append(self.session)
            self._leaving = [left for left in self._leaving if not left.is_over()]
            left = end - time.monotonic()
            if limit > 0 and left <= 0:
                raise none_in_its_place(self.service, self._obstacle)
            self._obstacle = ""
            return self._connect(max(0.0, left), stops)
        finally:
            turn.end()

    def _usable(self) -> ThreadSession | None:
        """The present session, if calls can be sent on it; raises why there will be none."""
        session = self.session
        if self.ended is not None:
            raise ended_call(self.ended)
        if session is None:
            raise self.not_connected()
        if session.ended is not None and not self.reconnect:
            raise ended_call(session.ended.error)
        if session.ended is not None or (self.reconnect and session.connection.draining):
            return None
        return session

    def attempt(
        self,
        call: Call,
        once: Callable[[ThreadSession], _T],
        is_spent: Callable[[], bool] = lambda: False,
        begun_on: ThreadSession | None = None,
    ) -> _T:
        """Makes a call, on one session after the other as long as it certainly was not begun: what ``once`` gives.

        ``is_spent``: whether items of the call's sources are gone, so that it cannot be made again. ``begun_on``: the
        session on which it is under way: ``once`` goes on with it there.
        """
        while True:
            session, begun_on = begun_on, None
            if session is None:
                session = self.ready(call.deadline)
                call._peer, call.id = session, session.next_id()
            try:
                return once(session)
            except BaseException as error:
                session.calls.close(call.id)  # It may have come at any point, from a signal's handler.
                error = session.unsent(call.endpoint, error)
                if not self.may_go_again(session, error, spent=is_spent()):
                    raise error from error.__cause__

    def may_go_again(self, session: ThreadSession, error: BaseException, *, spent: bool = False) -> bool:
        """Whether a call that failed so on this session is to be sent again: on the next one, or with another id."""
        again = may_go_again(error, reconnect=self.reconnect, spent=spent)
        if again and isinstance(error, ServiceUnavailable):  # It takes no more calls.
            session.connection.draining = True
        return again

    def close(self) -> None:
        """Closes all connections; threads that wait for one are told."""
        self.ended = error = ConnectionLost(f"this client of {self.service!r} was closed")
        for session in (self.session, *self._leaving):
            if session is not None:
                session.close(error)
