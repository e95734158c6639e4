"""How many calls may be under way at a server, and the line of those that wait for their turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shmrpc.basics.checks import check_count
from shmrpc.server.served_client import InFlightCall, RunRequest, ServedClient, WaitingCall
from shmrpc.wire.codec import Body, body_weight
from shmrpc.wire.failure import CallRejected

DEFAULT_MAX_IN_FLIGHT: Final = 10_000
DEFAULT_MAX_PER_CONNECTION: Final = 1_000
DEFAULT_MAX_WAITING: Final = 10_000


class CallLimits(msgspec.Struct, frozen=True):
    """How many calls may be under way at a server, and wait. Raises ValueError for a number that is out of range."""

    #: Suspended handlers of the server, and of one connection.
    max_in_flight: int
    max_per_connection: int
    #: Calls that wait for their turn.
    max_waiting: int
    #: Bytes of the requests of one connection that are under way, and as many of those that wait.
    max_bytes: int

    def __post_init__(self) -> None:
        check_count("max_in_flight", self.max_in_flight, 1)
        check_count("max_per_connection", self.max_per_connection, 1)
        check_count("max_waiting", self.max_waiting, 0)


class CallLimiter:
    """Holds the calls of a server to its limits: counts those under way, and keeps the line of those that wait.

    ``begin`` begins a call that has waited, ``refuse`` answers one that has waited in vain, and ``set_busy`` is told
    when the first call needs the loop to turn, and when none does any more.
    """

    def __init__(
        self,
        limits: CallLimits,
        begin: Callable[[ServedClient, int, RunRequest, Body], None],
        refuse: Callable[[ServedClient, int, CallRejected], None],
        set_busy: Callable[[bool], None],
    ) -> None:
        self._limits = limits
        self._begin = begin
        self._refuse = refuse
        self._set_busy = set_busy
        #: Suspended handlers, streams included.
        self.in_flight = 0
        #: Calls that wait for their turn.
        self.waiting = 0
        #: Calls that need the loop to turn: suspended handlers, and streams that only let the others have a turn.
        self._busy = 0
        #: Clients of whom calls wait. Each has its turn before any has its second.
        self._waiting_clients: dict[ServedClient, None] = {}

    @property
    def max_per_client(self) -> int:
        """Handlers that may be suspended for one client."""
        return min(self._limits.max_in_flight, self._limits.max_per_connection)

    def close(self) -> None:
        """Drops the calls that wait."""
        for client in self._waiting_clients:
            client.waiting.clear()
            client.waiting_bytes = 0
            client.select_table()
        self._waiting_clients.clear()
        self.waiting = 0

    def is_full(self, client: ServedClient) -> bool:
        """Whether a call of this client has to wait."""
        limits = self._limits
        return (
            self.in_flight >= limits.max_in_flight
            or len(client.calls) >= limits.max_per_connection
            or client.bytes >= limits.max_bytes
        )

    def wait(self, client: ServedClient, call_id: int, run: RunRequest, body: Body, *, one_way: bool = False) -> None:
        """Lets a call wait for its turn; raises the rejection if too many do.

        A client with less than its fair share of the line displaces the newest waiting call of the busiest client.
        """
        if self.waiting >= self._limits.max_waiting and not self._displace_waiting(client):
            raise self._overloaded(client, one_way)
        size = body_weight(body)
        if client.waiting and client.waiting_bytes + size > self._limits.max_bytes:
            raise self._overloaded(client, one_way)
        self.waiting += 1
        client.waiting[call_id] = WaitingCall(run, body, one_way)
        client.waiting_bytes += size
        client.select_table()
        self._waiting_clients[client] = None

    def _displace_waiting(self, client: ServedClient) -> bool:
        share = self._limits.max_waiting // (len(self._waiting_clients) + (client not in self._waiting_clients))
        if len(client.waiting) >= share:
            return False
        longest = max(self._waiting_clients, key=lambda each: len(each.waiting))
        call_id, waiting = next(reversed(longest.waiting.items()))
        rejected = self._overloaded(longest, waiting.one_way)
        self.remove_waiting(longest, call_id)
        self._refuse(longest, call_id, rejected)
        return True

    def _overloaded(self, client: ServedClient, one_way: bool) -> CallRejected:
        return CallRejected(
            "overloaded",
            f"service {client.service!r} has {self.in_flight} calls under way and {self.waiting} waiting, of yours "
            f"{len(client.calls)} ({client.bytes:,} bytes) and {len(client.waiting)} ({client.waiting_bytes:,} bytes): "
            "it takes no more for now",
            one_way=one_way,
        )

    def remove_waiting(self, client: ServedClient, call_id: int) -> bool:
        """Drops a call that waits; False if it is none."""
        waiting = client.waiting.pop(call_id, None)
        if waiting is None:
            return False
        self.waiting -= 1
        client.waiting_bytes -= body_weight(waiting.body)
        if not client.waiting:
            self._waiting_clients.pop(client, None)
            client.select_table()
        return True

    def remove_client(self, client: ServedClient) -> None:
        """Drops what waits of a client that is gone, but for its one-way calls."""
        for call_id in [call_id for call_id, waiting in client.waiting.items() if not waiting.one_way]:
            self.remove_waiting(client, call_id)

    def add(self, in_flight: InFlightCall) -> None:
        """Counts a call that goes on after its first step."""
        client = in_flight.client
        client.calls[in_flight.call.id] = in_flight
        client.find_handler = client.tables.checked
        client.bytes += in_flight.size
        self.in_flight += 1
        if not in_flight.is_stream:
            self.change_busy(1)

    def remove(self, in_flight: InFlightCall) -> None:
        """Counts a call no longer, and begins those that wait for its place."""
        client = in_flight.client
        del client.calls[in_flight.call.id]
        if not client.calls:
            client.select_table()
        client.bytes -= in_flight.size
        self.in_flight -= 1
        while self._waiting_clients and self._begin_next():
            pass
        if not in_flight.is_stream:
            self.change_busy(-1)

    def change_busy(self, change: int) -> None:
        """Adjusts the count of calls that need the loop to turn, and tells when it becomes 0, or was 0."""
        before, self._busy = self._busy, self._busy + change
        if not before or not self._busy:
            self._set_busy(self._busy > 0)

    def _begin_next(self) -> bool:
        for client in self._waiting_clients:
            if not self.is_full(client):
                break
        else:
            return False
        call_id = next(iter(client.waiting))
        waiting = client.waiting[call_id]
        self.remove_waiting(client, call_id)
        if client.waiting:  # To the end of the line.
            self._waiting_clients.pop(client)
            self._waiting_clients[client] = None
        self._begin(client, call_id, waiting.run, waiting.body)
        return True
