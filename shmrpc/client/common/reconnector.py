"""A client's way to its service: one session after the other, where it wants that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar

from shmrpc.client.common.call_errors import ended_call, not_begun
from shmrpc.client.common.session import Session
from shmrpc.errors import ConnectionLost, LocalProtocolError, ServiceUnavailable, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.transport.errors import Overtaken

_S = TypeVar("_S", bound=Session[Any])
_T = TypeVar("_T")


class Reconnector(ABC, Generic[_S]):
    """The present session of a client; with ``reconnect`` a new one after each that ends."""

    #: How one connects, with a place for the service.
    _how: ClassVar[str]

    def __init__(self, service: str, timeout: float, *, reconnect: bool) -> None:
        self.service = service
        self.reconnect = reconnect
        #: The present session, or the last one.
        self.session: _S | None = None
        #: Its endpoints.
        self.numbers: dict[str, int] = {}
        #: Why there will be no further session.
        self.ended: ShmrpcError | None = None
        self._timeout = timeout
        #: Sessions whose server goes, and which may still have calls under way.
        self._leaving: set[_S] = set()
        #: Why connecting has come to nothing so far.
        self._obstacle = ""

    def not_connected(self) -> LocalProtocolError:
        """The error for a call before there was a connection."""
        return LocalProtocolError(f"not connected: use `{self._how.format(repr(self.service))} as client`")

    @abstractmethod
    async def open(self) -> None:
        """Makes the first connection."""

    def _check_new(self) -> None:
        if self.session is not None or self.ended is not None:
            raise LocalProtocolError(f"this client of {self.service!r} was connected before; make another one")

    def close(self) -> None:
        """Closes all connections; calls under way fail with ConnectionLost. Again: nothing."""
        error = ConnectionLost(f"this client of {self.service!r} was closed")
        if self.ended is None:
            self.ended = error
        for session in self._sessions():
            session.close(error)

    def _sessions(self) -> set[_S]:
        return {*self._leaving, *((self.session,) if self.session is not None else ())}

    def current(self) -> _S | None:
        """The present session, if calls can be sent on it."""
        session = self.session
        if session is None or session.ended is not None or (self.reconnect and session.is_leaving()):
            return None
        return session

    def usable(self) -> _S | None:
        """As :meth:`current`; raises why there will be none."""
        session = self.current()
        if self.ended is not None:
            raise ended_call(self.ended)
        if self.session is None:
            raise self.not_connected()
        if self.session.ended is not None and not self.reconnect:
            raise ended_call(self.session.ended.error)
        return session

    @abstractmethod
    async def ready(self, deadline: int | None = None, timeout: float | None = None) -> _S:
        """The present session; if there is none, waits for the next one.

        ``deadline`` in nanoseconds of CLOCK_MONOTONIC. Raises why there will be none, or ServiceUnavailable
        after ``timeout`` seconds, as long as connecting may take if it is not given.
        """

    def _none_came(self) -> ServiceUnavailable:
        """The error for a call that has waited in vain for the next server."""
        why = f": {self._obstacle}" if self._obstacle else ""
        return ServiceUnavailable(f"the server of {self.service!r} is gone, and still none has come in its place{why}")

    def _note(self, obstacle: str) -> None:
        self._obstacle = obstacle

    async def attempt(
        self, call: Call, once: Callable[[_S], Awaitable[_T]], is_spent: Callable[[], bool] = lambda: False
    ) -> _T:
        """Makes a call, on one session after the other as long as it certainly was not begun: what ``once`` gives.

        ``is_spent``: whether items of the call's sources are gone, so that it cannot be made again.
        """
        while True:
            session = self.usable() or await self.ready(call.deadline)
            call._peer, call.id = session, session.next_id()
            try:
                return await once(session)
            except BaseException as error:
                session.drop_call(call.id)
                error = session.unsent(call.endpoint, error)
                if is_spent() or not self.may_go_again(session, error):
                    raise error from error.__cause__

    def may_go_again(self, session: _S, error: BaseException) -> bool:
        """Whether a call that failed so on this session is to be sent again: on the next one, or with another id."""
        # Overtaken: another thread has sent a call with a higher id meanwhile.
        return isinstance(error, Overtaken) or (self.reconnect and not_begun(error))
