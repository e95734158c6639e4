"""Faults between a client and its server, for tests of what a caller does about them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from shmrpc.client.common.requests import find_endpoint
from shmrpc.errors import ConnectionLost, ShmrpcError
from shmrpc.transport.connection import CloseReason, Connection, Dial, Frame, OnEnd, OnFrame
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.errors import ChannelError, check_size
from shmrpc.transport.memory import MemoryRegistry, MemoryTransport
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.failure import encode_failure

#: The frames that begin a call.
_REQUESTS: Final = frozenset({frames.CALL, frames.CALL_KEYWORDS, frames.CALL_DEADLINE, frames.CALL_WITH, frames.BATCH})
_ANSWERS: Final = frozenset({frames.RESULT, frames.FAILURE, frames.RESULT_WITH})


@dataclasses.dataclass
class _Rule:
    """What becomes of the next calls."""

    #: The only endpoint that it is for; None: any.
    endpoint: str | None
    #: How many more calls it is for.
    times: int
    #: What is raised instead of the call; None: its answer is lost.
    error: Exception | None


class Faults:
    """What is to go wrong between a client and its server. Nothing here is random.

    ::

        faults = shmrpc.testing.Faults()
        async with shmrpc.testing.connect(calculator, faults=faults, call_timeout=0.1) as client:
            faults.drop(endpoint="add")
            with pytest.raises(shmrpc.DeadlineExceeded):
                await client.add(1, 2)
            assert await client.add(1, 2) == 3

    They may be told at any time, and are for calls that begin after that. ``endpoint`` is the name of the only
    one meant. Each call meets the first :meth:`drop` or :meth:`fail` that means it and is not used up; a
    :meth:`delay` comes on top. A frame of many calls, as of ``client.map()``, counts as one call, and that of
    ``client.batch()`` is of no particular endpoint. Several clients of one service may share it.
    """

    def __init__(self) -> None:
        self._delays: dict[str | None, float] = {}
        self._rules: list[_Rule] = []
        self._connections: dict[_Faulty, None] = {}

    def delay(self, seconds: float, *, endpoint: str | None = None) -> None:
        """Holds calls back for ``seconds``; one that is cancelled meanwhile never reaches the server."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"delay: expected seconds, 0 or more, got {seconds}")
        self._check(endpoint)
        self._delays[endpoint] = seconds

    def drop(self, times: int = 1, *, endpoint: str | None = None) -> None:
        """Loses the answers of the next ``times`` calls: the server runs them, and a deadline has to end them."""
        self._add(_Rule(endpoint, times, None))

    def fail(self, error: Exception, times: int = 1, *, endpoint: str | None = None) -> None:
        """Fails the next ``times`` calls with ``error``; they do not reach the server.

        An error of shmrpc's own is raised as it is. Any other one arrives as it does from an endpoint that
        raises it: as :class:`shmrpc.RemoteError` and the builtin that it is.
        """
        if not isinstance(error, Exception):
            raise TypeError(f"fail: expected an exception to raise, as in fail(ValueError('no')), got {error!r}")
        self._add(_Rule(endpoint, times, error))

    def disconnect(self) -> None:
        """Breaks the connections: calls under way fail with ConnectionLost, and perhaps were executed.

        The server cancels their handlers. A client with ``reconnect=True`` connects again.
        """
        for connection in list(self._connections):
            connection.disconnect()

    def clear(self) -> None:
        """Lets nothing go wrong from now on. What a delay holds back still comes when its time has come."""
        self._delays.clear()
        self._rules.clear()

    def _add(self, rule: _Rule) -> None:
        if rule.times < 1:
            raise ValueError(f"times: expected 1 or more, got {rule.times}")
        self._check(rule.endpoint)
        self._rules.append(rule)

    def _check(self, endpoint: str | None) -> None:
        """Raises EndpointNotFound for a fault that would never come."""
        if endpoint is not None:
            for connection in self._connections:
                find_endpoint(connection.service, endpoint, dict.fromkeys(connection.endpoints, 0))

    def between(self, dial: Dial) -> Dial:
        """The same way to a server, with these faults on it."""

        async def connect(timeout: float | None, note: Callable[[str], None]) -> Connection:
            return _Faulty(await dial(timeout, note), self)

        return connect

    def attach(self, connection: _Faulty) -> None:
        """Puts the faults on a connection that a client has made."""
        self._connections[connection] = None
        try:
            for endpoint in [*self._delays, *(rule.endpoint for rule in self._rules)]:
                self._check(endpoint)
        except ShmrpcError:
            connection.close()
            raise

    def detach(self, connection: _Faulty) -> None:
        """Forgets a connection that is over."""
        self._connections.pop(connection, None)

    def next_for(self, endpoint: str | None) -> tuple[float, _Rule | None]:
        """What becomes of a call that begins now: seconds that it is held back, and what then."""
        seconds = self._delays.get(endpoint, self._delays.get(None, 0.0))
        for rule in self._rules:
            if rule.endpoint in (None, endpoint):
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
                return seconds, rule
        return seconds, None


class FaultyMemoryTransport(MemoryTransport):
    """A network of one loop, with faults between its clients and its servers."""

    def __init__(self, find: Callable[[], MemoryRegistry], faults: Faults) -> None:
        super().__init__(find)
        self._faults = faults

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """What connects a client, with the faults on its way."""
        return self._faults.between(super().dial(service, options))


class _Faulty(Connection):
    """A connection with faults on it, of a transport that shares nothing: every frame comes by here."""

    def __init__(self, connection: Connection, faults: Faults) -> None:
        super().__init__(
            connection.service,
            connection.pid,
            connection.uid,
            connection.max_frame,
            connection.endpoints,
            connection.shapes,
        )
        self.place, self.max_memory = connection.place, connection.max_memory
        self._connection = connection
        self._faults = faults
        #: By call id: frames of calls that are held back, and when each goes on.
        self._held: dict[int, list[Frame]] = {}
        self._timers: dict[int, asyncio.Handle] = {}
        #: Calls of which nothing comes back.
        self._dropped: set[int] = set()
        faults.attach(self)

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Gives frames to ``on_frame`` from now on, but for what is dropped, and the end to ``on_end``."""
        super().start(pending, on_frame, on_end, on_go_away)
        self._connection.start(pending, self._receive, self._end, on_go_away)

    async def wait_for_room(self) -> None:
        """Waits until all that was sent, and is not held back, has found room."""
        await self._connection.wait_for_room()

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Sends a frame, or holds it back."""
        if not self._open:
            raise ChannelError("the connection is closed")
        check_size(body, self.max_frame)
        if call_id in self._held:
            if opcode == frames.CANCEL:
                self._forget(call_id)
            else:
                self._held[call_id].append((opcode, call_id, body))
            return True
        if opcode & 0xFF in _REQUESTS:
            seconds, rule = self._faults.next_for(self._endpoint(opcode))
            error = rule.error if rule is not None else None
            if rule is not None and error is None:
                self._dropped.add(call_id)
            if seconds or error is not None:
                self._held[call_id] = [(opcode, call_id, body)]
                self._timers[call_id] = self._loop.call_later(seconds, self._go_on, call_id, error)
                return True
        return self._connection.send(opcode, call_id, body)

    def _endpoint(self, opcode: int) -> str | None:
        number = opcode >> 8
        return self.endpoints[number] if number != frames.ANY_ENDPOINT else None

    def _forget(self, call_id: int) -> None:
        """Forgets a call, which then never reaches the server."""
        self._held.pop(call_id, None)
        self._dropped.discard(call_id)
        timer = self._timers.pop(call_id, None)
        if timer is not None:
            timer.cancel()

    def _go_on(self, call_id: int, error: Exception | None) -> None:
        """Sends a call that was held back, or fails it with ``error``."""
        held = self._held[call_id]
        if error is not None:
            self._forget(call_id)
            self._fail(call_id, error)
            return
        del self._held[call_id], self._timers[call_id]
        for frame in held:
            with contextlib.suppress(ChannelError):  # If the connection ends, its calls are told so.
                self._connection.send(*frame)

    def _fail(self, call_id: int, error: Exception) -> None:
        waiting = self._pending.get(call_id)
        if not isinstance(error, ShmrpcError):
            self._on_frame(frames.FAILURE, call_id, encode_failure(error, self.max_frame))
        elif waiting is not None and not waiting.done():
            waiting.set_exception(copy.copy(error))  # Each call has its own, with its own traceback.

    def _receive(self, opcode: int, call_id: int, body: Body) -> None:
        if call_id not in self._dropped:
            self._on_frame(opcode, call_id, body)
        elif opcode in _ANSWERS:
            self._dropped.discard(call_id)

    def disconnect(self) -> None:
        """Breaks the connection."""
        if self._open:
            self.close()
            self._on_end(
                CloseReason(ConnectionLost(f"the connection to the server of {self.service!r} broke (Faults)"))
            )

    def _end(self, end: CloseReason) -> None:
        self._stop()
        self._on_end(end)

    def _stop(self) -> None:
        self._open = False
        for call_id in list(self._held):
            self._forget(call_id)
        self._faults.detach(self)

    def close(self) -> None:
        """Closes. Again: nothing."""
        if self._open:
            self._stop()
            self._connection.close()

    def fault(self, error: Exception) -> None:
        """Closes, and tells the server which rule it broke."""
        self._connection.fault(error)
