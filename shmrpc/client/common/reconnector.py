"""A client's sessions with its service: the first one, and with ``reconnect`` each of its successors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar

from shmrpc.client.common.call_errors import closed_error, was_not_executed
from shmrpc.client.common.session import Session
from shmrpc.errors import ConnectionLost, LocalProtocolError, ServiceUnavailable, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.transport.errors import Overtaken

_S = TypeVar("_S", bound=Session[Any])
_T = TypeVar("_T")


class Reconnector(ABC, Generic[_S]):
    """The current session of a client, and its replacement after the connection ends."""

    #: Format of the expression that connects, with a placeholder for the service.
    _connect_expression: ClassVar[str]

    def __init__(self, service: str, timeout: float, *, reconnect: bool) -> None:
        self.service = service
        self.reconnect = reconnect
        #: The current session, or the last one.
        self.session: _S | None = None
        #: Endpoint numbers of the current session, by name.
        self.numbers: dict[str, int] = {}
        #: Error that every further call raises; None while there may be further sessions.
        self.closed_error: ShmrpcError | None = None
        self._timeout = timeout
        #: Sessions whose server is draining, and which may still have calls in flight.
        self._draining: set[_S] = set()
        #: Reason why the last attempt to connect failed.
        self._last_failure = ""

    def not_connected(self) -> LocalProtocolError:
        """Return the error for a call on a client that was never connected."""
        return LocalProtocolError(
            f"not connected: use `{self._connect_expression.format(repr(self.service))} as client`"
        )

    @abstractmethod
    async def open(self) -> None:
        """Make the first connection. Raises LocalProtocolError if the client was connected or closed before.

        Raises the errors of connecting: ServiceUnavailable, SharedMemoryError and ProtocolError; ConnectionLost if the
        client is closed meanwhile.
        """

    def _check_new(self) -> None:
        """Raise LocalProtocolError if the client was connected or closed before."""
        if self.session is not None or self.closed_error is not None:
            raise LocalProtocolError(f"this client of {self.service!r} was connected before; make another one")

    def close(self) -> None:
        """Close all connections; calls in flight and all later ones fail with ConnectionLost. Idempotent.

        A client that has already ended with another error keeps that error for later calls.
        """
        error = ConnectionLost(f"this client of {self.service!r} was closed")
        if self.closed_error is None:
            self.closed_error = error
        for session in self._sessions():
            session.close(error)

    def _sessions(self) -> set[_S]:
        """Return the current session and the draining ones."""
        return {*self._draining, *((self.session,) if self.session is not None else ())}

    def current_session(self) -> _S | None:
        """Return the current session if it accepts calls; None otherwise.

        A draining session counts as none only with ``reconnect``.
        """
        session = self.session
        if session is None or session.close_reason is not None or (self.reconnect and session.is_draining()):
            return None
        return session

    def usable_session(self) -> _S | None:
        """Return the current session if it accepts calls, None while there will be another one.

        A draining session counts as none only with ``reconnect``. Raises the error of the connection, or of the closed
        client, if there will be no further session, and LocalProtocolError if the client was never connected. Does not
        wait.
        """
        session = self.current_session()
        if self.closed_error is not None:
            raise closed_error(self.closed_error)
        if self.session is None:
            raise self.not_connected()
        if self.session.close_reason is not None and not self.reconnect:
            raise closed_error(self.session.close_reason.error)
        return session

    @abstractmethod
    async def wait_session(self, deadline: int | None = None, timeout: float | None = None) -> _S:
        """Return the current session, after waiting for the next one if there is none.

        ``deadline`` is in nanoseconds of the host's clock. ``timeout`` is in seconds and defaults to the timeout of
        connecting. Raises ServiceUnavailable after either, and the errors of :meth:`usable_session`.
        """

    def _no_server_error(self) -> ServiceUnavailable:
        """Return the error for a call that waited too long for the next server."""
        why = f": {self._last_failure}" if self._last_failure else ""
        return ServiceUnavailable(f"the server of {self.service!r} is gone, and no other has appeared{why}")

    def _record_obstacle(self, obstacle: str) -> None:
        """Record why the last attempt to connect failed."""
        self._last_failure = obstacle

    async def call_with_retry(
        self, call: Call, send: Callable[[_S], Awaitable[_T]], has_consumed_sources: Callable[[], bool] = lambda: False
    ) -> _T:
        """Make a call with ``send``. If a call failed and may_retry() allows that, repeat it on the next session.

        Returns the value that ``send`` returned. Raises the errors of :meth:`wait_session`, and the error of a call
        that cannot be repeated, converted by :meth:`Session.convert_error`. Sets the id and the peer of ``call``.
        ``has_consumed_sources`` returns True if the call's sources have yielded items, which prevents a repetition.
        """
        while True:
            session = self.usable_session() or await self.wait_session(call.deadline)
            call._peer, call.id = session, session.next_id()
            try:
                return await send(session)
            except BaseException as error:
                session.forget_call(call.id)
                error = session.convert_error(call.endpoint, error)
                if has_consumed_sources() or not self.may_retry(session, error):
                    raise error from error.__cause__

    def may_retry(self, session: _S, error: BaseException) -> bool:
        """Return True if a call that failed with this error on this session can be repeated.

        True for Overtaken, and with ``reconnect`` for an error of was_not_executed(). A derived class may mark
        ``session`` as draining.
        """
        # Overtaken: another thread sent a call with a higher id first. The call is repeated with a new id.
        return isinstance(error, Overtaken) or (self.reconnect and was_not_executed(error))
