"""Faults between a client and its server, for tests of how callers handle them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from shmrpc.basics.checks import check_count
from shmrpc.client.common.requests import find_endpoint
from shmrpc.errors import ConnectionLost, ShmrpcError
from shmrpc.transport.connection import CloseReason, Connection, Dial, Frame, OnEnd, OnFrame
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.errors import ChannelError, check_size
from shmrpc.transport.memory import MemoryRegistry, MemoryTransport
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.failure import encode_failure

#: Opcodes of frames that begin a call.
_REQUESTS: Final = frozenset({frames.CALL, frames.CALL_KEYWORDS, frames.CALL_DEADLINE, frames.CALL_WITH, frames.BATCH})
_ANSWERS: Final = frozenset({frames.RESULT, frames.FAILURE, frames.RESULT_WITH})


@dataclasses.dataclass
class _Fault:
    """Fault for the next calls."""

    #: Only endpoint that the fault applies to; None for any.
    endpoint: str | None
    #: Number of further calls that the fault applies to.
    times: int
    #: Exception to raise instead of the call; None to drop the reply.
    error: Exception | None


class Faults:
    """Deterministic faults between a client and its server.

    ::

        faults = shmrpc.testing.Faults()
        async with shmrpc.testing.connect(calculator, faults=faults, call_timeout=0.1) as client:
            faults.drop(endpoint="add")
            with pytest.raises(shmrpc.DeadlineExceeded):
                await client.add(1, 2)
            assert await client.add(1, 2) == 3

    Faults may be added at any time, and apply to calls that begin afterwards. ``endpoint`` limits a fault to one
    endpoint. The first :meth:`drop` or :meth:`fail` that applies to a call and is not used up takes effect, in addition
    to a :meth:`delay`. A frame of many calls, such as that of ``client.map()``, counts as one call; the frame of
    ``client.batch()`` has no endpoint. Several clients of one service may share the same faults.

    :meth:`delay`, :meth:`drop` and :meth:`fail` raise TypeError or ValueError for an invalid number, and
    EndpointNotFound for an endpoint that a connected service lacks.
    """

    def __init__(self) -> None:
        self._delays: dict[str | None, float] = {}
        self._queue: list[_Fault] = []
        self._connections: dict[_FaultyConnection, None] = {}

    def delay(self, seconds: float, *, endpoint: str | None = None) -> None:
        """Delay calls by ``seconds``, finite; 0 for none. A later delay of the same endpoint replaces this one.

        The delay of an endpoint takes precedence over the delay of all endpoints.

        A call that is cancelled in the meantime never reaches the server.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"delay: expected seconds, 0 or more, got {seconds}")
        self._check_endpoint(endpoint)
        self._delays[endpoint] = seconds

    def drop(self, times: int = 1, *, endpoint: str | None = None) -> None:
        """Drop the replies of the next ``times`` calls. The server runs the calls, and only a deadline ends them."""
        self._add(_Fault(endpoint, times, None))

    def fail(self, error: Exception, times: int = 1, *, endpoint: str | None = None) -> None:
        """Fail the next ``times`` calls with ``error``. The calls do not reach the server.

        Each call raises a copy of an error of shmrpc. Any other error arrives as from an endpoint that raises it: as a
        :class:`shmrpc.RemoteError` that is also the builtin. Raises TypeError unless ``error`` is an Exception.
        """
        if not isinstance(error, Exception):
            raise TypeError(f"fail: expected an exception to raise, as in fail(ValueError('no')), got {error!r}")
        self._add(_Fault(endpoint, times, error))

    def disconnect(self) -> None:
        """Break the connections at once. Calls in flight fail with ConnectionLost, and may have been executed.

        The server cancels their handlers. A client with ``reconnect=True`` connects again.
        """
        for connection in list(self._connections):
            connection.disconnect()

    def clear(self) -> None:
        """Remove all faults, for calls that begin afterwards.

        Calls that are already delayed still reach the server after their delay, or fail if :meth:`fail` applies to
        them, and the replies of calls to which :meth:`drop` applies stay dropped.
        """
        self._delays.clear()
        self._queue.clear()

    def _add(self, rule: _Fault) -> None:
        """Add a fault.

        Raises TypeError for a count that is no whole number, ValueError for one below 1, and EndpointNotFound for an
        unknown endpoint.
        """
        rule.times = check_count("times", rule.times, 1)
        self._check_endpoint(rule.endpoint)
        self._queue.append(rule)

    def _check_endpoint(self, endpoint: str | None) -> None:
        """Raise EndpointNotFound if a connected service lacks an endpoint; None stands for all endpoints."""
        if endpoint is not None:
            for connection in self._connections:
                find_endpoint(connection.service, endpoint, dict.fromkeys(connection.endpoints, 0))

    def between(self, dial: Dial) -> Dial:
        """Return a function that connects like ``dial``, with these faults on the connection."""

        async def connect(timeout: float | None, note: Callable[[str], None]) -> Connection:
            return _FaultyConnection(await dial(timeout, note), self)

        return connect

    def attach(self, connection: _FaultyConnection) -> None:
        """Register a connection. Closes the connection and raises EndpointNotFound for a fault of an unknown endpoint.

        The connection calls :meth:`detach` at its end.
        """
        self._connections[connection] = None
        try:
            for endpoint in [*self._delays, *(rule.endpoint for rule in self._queue)]:
                self._check_endpoint(endpoint)
        except ShmrpcError:
            connection.close()
            raise

    def detach(self, connection: _FaultyConnection) -> None:
        """Unregister a connection that has ended."""
        self._connections.pop(connection, None)

    def next_for(self, endpoint: str | None) -> tuple[float, _Fault | None]:
        """Return the delay in seconds and the fault, if any, of a call that begins now; use up the fault once.

        ``endpoint`` is None for a frame of several endpoints, to which only faults of all endpoints apply.
        """
        seconds = self._delays.get(endpoint, self._delays.get(None, 0.0))
        for rule in self._queue:
            if rule.endpoint in (None, endpoint):
                rule.times -= 1
                if rule.times == 0:
                    self._queue.remove(rule)
                return seconds, rule
        return seconds, None


class FaultyMemoryTransport(MemoryTransport):
    """A transport within one event loop, with faults between clients and servers."""

    def __init__(self, find: Callable[[], MemoryRegistry], faults: Faults) -> None:
        super().__init__(find)
        self._faults = faults

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """Return the function that connects a client, with the faults on the connection."""
        return self._faults.between(super().dial(service, options))


class _FaultyConnection(Connection):
    """A connection with faults, of a transport without shared memory, so that every frame passes through here."""

    def __init__(self, connection: Connection, faults: Faults) -> None:
        super().__init__(
            connection.service,
            connection.pid,
            connection.uid,
            connection.max_frame,
            connection.endpoints,
            connection.shapes,
        )
        self.address, self.max_memory = connection.address, connection.max_memory
        self._connection = connection
        self._faults = faults
        #: Frames of delayed calls, and the timer of each call, by call id.
        self._delayed: dict[int, list[Frame]] = {}
        self._timers: dict[int, asyncio.Handle] = {}
        #: Ids of calls whose answers are dropped.
        self._dropped: set[int] = set()
        faults.attach(self)

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Pass frames that are not dropped to ``on_frame`` from now on, and the end to ``on_end``."""
        super().start(pending, on_frame, on_end, on_go_away)
        self._connection.start(pending, self._on_connection_frame, self._on_connection_end, on_go_away)

    async def wait_for_room(self) -> None:
        """Wait until all frames that were sent and are not delayed have found room."""
        await self._connection.wait_for_room()

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Send a frame, or delay it; return True unless the connection has no room for it. A delayed one needs no room.

        Raises Oversize, or ChannelError if the connection is closed.
        """
        if not self._open:
            raise ChannelError("the connection is closed")
        check_size(body, self.max_frame)
        if call_id in self._delayed:
            if opcode == frames.CANCEL:
                self._drop_delayed(call_id)
            else:
                self._delayed[call_id].append((opcode, call_id, body))
            return True
        if opcode & 0xFF in _REQUESTS:
            seconds, rule = self._faults.next_for(self._endpoint(opcode))
            error = rule.error if rule is not None else None
            if rule is not None and error is None:
                self._dropped.add(call_id)
            if seconds or error is not None:
                self._delayed[call_id] = [(opcode, call_id, body)]
                self._timers[call_id] = self._loop.call_later(seconds, self._send_delayed, call_id, error)
                return True
        return self._connection.send(opcode, call_id, body)

    def _endpoint(self, opcode: int) -> str | None:
        """Return the endpoint that a frame calls; return None for a frame of several endpoints."""
        number = opcode >> 8
        return self.endpoints[number] if number != frames.ANY_ENDPOINT else None

    def _drop_delayed(self, call_id: int) -> None:
        """Drop a delayed call, which then never reaches the server."""
        self._delayed.pop(call_id, None)
        self._dropped.discard(call_id)
        timer = self._timers.pop(call_id, None)
        if timer is not None:
            timer.cancel()

    def _send_delayed(self, call_id: int, error: Exception | None) -> None:
        """Send a delayed call, or fail it with ``error``."""
        held = self._delayed[call_id]
        if error is not None:
            self._drop_delayed(call_id)
            self._fail_call(call_id, error)
            return
        del self._delayed[call_id], self._timers[call_id]
        for frame in held:
            with contextlib.suppress(ChannelError):  # If the connection ends, its calls fail.
                self._connection.send(*frame)

    def _fail_call(self, call_id: int, error: Exception) -> None:
        """Fail a call as the server would, or with an error of shmrpc."""
        waiting = self._pending.get(call_id)
        if not isinstance(error, ShmrpcError):
            self._on_frame(frames.FAILURE, call_id, encode_failure(error, self.max_frame))
        elif waiting is not None and not waiting.done():
            waiting.set_exception(copy.copy(error))  # Each call needs its own exception, with its own traceback.

    def _on_connection_frame(self, opcode: int, call_id: int, body: Body) -> None:
        """Pass on a frame, unless the reply of its call is dropped."""
        if call_id not in self._dropped:
            self._on_frame(opcode, call_id, body)
        elif opcode in _ANSWERS:
            self._dropped.discard(call_id)

    def disconnect(self) -> None:
        """Close the connection, and report its end as a ConnectionLost. Idempotent."""
        if self._open:
            self.close()
            self._on_end(
                CloseReason(ConnectionLost(f"the connection to the server of {self.service!r} broke (Faults)"))
            )

    def _on_connection_end(self, end: CloseReason) -> None:
        """Pass on the end of the connection."""
        self._disable()
        self._on_end(end)

    def _disable(self) -> None:
        """Drop all delayed calls, and unregister from the faults."""
        self._open = False
        for call_id in list(self._delayed):
            self._drop_delayed(call_id)
        self._faults.detach(self)

    def close(self) -> None:
        """Close the connection, without a report of its end. Idempotent."""
        if self._open:
            self._disable()
            self._connection.close()

    def fault(self, error: Exception) -> None:
        """Close the connection, and report the broken rule to the server and, as RemoteProtocolError, to ``on_end``."""
        self._connection.fault(error)
