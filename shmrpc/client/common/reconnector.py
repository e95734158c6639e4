"""A client's way to its service: one session after the other, where it wants that."""

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
    """The present session of a client; with ``reconnect`` a new one after each that ends."""

    #: How one connects, with a place for the service.
    _connect_expression: ClassVar[str]

    def __init__(self, service: str, timeout: float, *, reconnect: bool) -> None:
        self.service = service
        self.reconnect = reconnect
        #: The present session, or the last one.
        self.session: _S | None = None
        #: Its endpoints.
        self.numbers: dict[str, int] = {}
        #: Why there will be no further session.
        self.closed_error: ShmrpcError | None = None
        self._timeout = timeout
        #: Sessions whose server goes, and which may still have calls under way.
        self._draining: set[_S] = set()
        #: Why connecting has come to nothing so far.
        self._last_failure = ""

    def not_connected(self) -> LocalProtocolError:
        """The error for a call before there was a connection."""
        return LocalProtocolError(
            f"not connected: use `{self._connect_expression.format(repr(self.service))} as client`"
        )

    @abstractmethod
    async def open(self) -> None:
        """Makes the first connection."""

    def _check_new(self) -> None:
        if self.session is not None or self.closed_error is not None:
            raise LocalProtocolError(f"this client of {self.service!r} was connected before; make another one")

    def close(self) -> None:
        """Closes all connections; calls under way fail with ConnectionLost. Again: nothing."""
        error = ConnectionLost(f"this client of {self.service!r} was closed")
        if self.closed_error is None:
            self.closed_error = error
        for session in self._sessions():
            session.close(error)

    def _sessions(self) -> set[_S]:
        return {*self._draining, *((self.session,) if self.session is not None else ())}

    def current_session(self) -> _S | None:
        """The present session, if calls can be sent on it."""
        session = self.session
        if session is None or session.close_reason is not None or (self.reconnect and session.is_draining()):
            return None
        return session

    def usable_session(self) -> _S | None:
        """As :meth:`current_session`; raises why there will be none."""
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
        """The present session; if there is none, waits for the next one.

        ``deadline`` in nanoseconds of CLOCK_MONOTONIC. Raises why there will be none, or ServiceUnavailable
        after ``timeout`` seconds, as long as connecting may take if it is not given.
        """

    def _no_server_error(self) -> ServiceUnavailable:
        """The error for a call that has waited in vain for the next server."""
        why = f": {self._last_failure}" if self._last_failure else ""
        return ServiceUnavailable(f"the server of {self.service!r} is gone, and still none has come in its place{why}")

    def _note(self, obstacle: str) -> None:
        self._last_failure = obstacle

    async def call_with_retry(
        self, call: Call, once: Callable[[_S], Awaitable[_T]], has_consumed_sources: Callable[[], bool] = lambda: False
    ) -> _T:
        """Makes a call, on one session after the other as long as it certainly was not begun: what ``once`` gives.

        ``has_consumed_sources``: whether items of the call's sources are gone, so that it cannot be made again.
        """
        while True:
            session = self.usable_session() or await self.wait_session(call.deadline)
            call._peer, call.id = session, session.next_id()
            try:
                return await once(session)
            except BaseException as error:
                session.forget_call(call.id)
                error = session.convert_error(call.endpoint, error)
                if has_consumed_sources() or not self.may_retry(session, error):
                    raise error from error.__cause__

    def may_retry(self, session: _S, error: BaseException) -> bool:
        """Whether a call that failed so on this session is to be sent again: on the next one, or with another id."""
        # Overtaken: another thread has sent a call with a higher id meanwhile.
        return isinstance(error, Overtaken) or (self.reconnect and was_not_executed(error))
