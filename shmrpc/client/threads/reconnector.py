"""The sessions of a client in threads."""

from __future__ import annotations

import time
from typing import Final

from shmrpc import _core
from shmrpc.basics.clock import seconds_until
from shmrpc.client.common.call_errors import closed_error
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.client.threads.session import ThreadSession, stopped_error
from shmrpc.errors import ConnectionLost, ServiceUnavailable
from shmrpc.transport.connection import ThreadDial
from shmrpc.wire import control

#: Seconds between checks for the connection that another thread makes.
PAUSE: Final = 0.002


class ThreadReconnector(Reconnector[ThreadSession]):
    """The sessions in threads, where the first thread that needs a session connects, and the others wait for it."""

    _connect_expression = "with shmrpc.sync.connect({})"

    def __init__(self, service: str, dial: ThreadDial, timeout: float, *, reconnect: bool) -> None:
        super().__init__(service, timeout, reconnect=reconnect)
        #: Empty list while calls are allowed; holds True between stop() and resume(). The core reads it.
        self.stopped: list[bool] = []
        #: Number of calls of stop(), each of which ends the waits for a server.
        self.stop_count = 0
        self._dial = dial
        #: Lock of the thread that connects.
        self._connecting = _core.ReentrantLock()

    async def open(self) -> None:
        """Make the first connection; see the base class. Also raises CallStopped."""
        self._check_new()
        self._connect(self._timeout, self.stop_count)

    def _connect(self, timeout: float, stop_count: int) -> ThreadSession:
        """Connect, and return the new current session, or the one that a signal handler has made meanwhile.

        Raises CallStopped if stop() was called since ``stop_count`` was read, and the errors of connecting.
        """

        def check() -> None:
            if self.closed_error is not None:
                raise closed_error(self.closed_error)
            if self.stop_count != stop_count:
                raise stopped_error(self.service)

        before = self.session
        session = ThreadSession(self._dial(timeout, check, self._record_obstacle), self.stopped)
        newer = self.session
        if newer is not None and newer is not before:  # A signal handler has connected meanwhile.
            session.close(closed_error(ConnectionLost(f"this client of {self.service!r} has another connection")))
            return newer
        self.numbers = session.numbers
        self.session = session
        if (
            self.closed_error is not None
        ):  # Another thread has closed the client meanwhile, and may not have seen this session.
            session.close(self.closed_error)
            raise closed_error(self.closed_error)
        return session

    async def wait_session(self, deadline: int | None = None, timeout: float | None = None) -> ThreadSession:
        """Return the current session, after connecting again with ``reconnect``; see the base class.

        Also raises CallStopped, if stop() is called during the wait.
        """
        session = self.usable_session()
        if session is not None:
            return session
        stop_count = self.stop_count
        limit = self._timeout if timeout is None else timeout
        if limit == 0 and deadline is not None:  # A single attempt, which also ends at the deadline.
            limit = control.MOMENT
        end = time.monotonic() + limit
        if deadline is not None:
            end = min(end, time.monotonic() + seconds_until(deadline))
        while (guard := self._connecting.try_acquire()) is None:
            if time.monotonic() >= end:
                raise self._no_server_error()
            if self.stop_count != stop_count:
                raise stopped_error(self.service)
            time.sleep(PAUSE)  # noqa: ASYNC251
            session = self.usable_session()
            if session is not None:
                return session
        try:
            session = self.usable_session()
            if session is not None:
                return session
            self._draining = {left for left in self._sessions() if not left.is_closed()}
            left = end - time.monotonic()
            if limit > 0 and left <= 0:
                raise self._no_server_error()
            self._last_failure = ""
            return self._connect(max(0.0, left), stop_count)
        finally:
            guard.release()

    def look(self) -> bool:
        """With ``reconnect``, poll for the end of the session; return True if new calls must go to another session."""
        session = self.session
        if not self.reconnect or session is None:
            return False
        session.poll_close()
        return session.is_draining()

    def may_retry(self, session: ThreadSession, error: BaseException) -> bool:
        """Return True if a call that failed with this error on this session can be repeated.

        After ServiceUnavailable, marks the session as draining.
        """
        again = super().may_retry(session, error)
        if again and isinstance(error, ServiceUnavailable):  # The server accepts no new calls.
            session.connection.draining = True
        return again
