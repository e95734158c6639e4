"""Limits of the calls in flight at a server, and the queue of waiting calls."""

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
    """Limits of calls in flight and waiting at a server. Raises ValueError or TypeError for an invalid count."""

    #: Maximum number of suspended handlers of the server, and of one connection.
    max_in_flight: int
    max_per_connection: int
    #: Maximum number of waiting calls.
    max_waiting: int
    #: Maximum bytes of the requests in flight of one connection; the same limit applies to its waiting requests.
    max_bytes: int

    def __post_init__(self) -> None:
        check_count("max_in_flight", self.max_in_flight, 1)
        check_count("max_per_connection", self.max_per_connection, 1)
        check_count("max_waiting", self.max_waiting, 0)


class CallLimiter:
    """The count of a server's calls in flight, and the queue of the calls that wait for the limits.

    ``begin`` starts a call that has waited; ``refuse`` rejects one. ``set_busy`` receives True when a first call needs
    the event loop to run, and False when no call does any longer.
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
        #: Number of suspended handlers, including streams.
        self.in_flight = 0
        #: Number of waiting calls.
        self.waiting = 0
        #: Number of calls that need the event loop to run: suspended handlers, and streams that yield to other calls.
        self._busy = 0
        #: Clients with waiting calls, in round-robin order.
        self._waiting_clients: dict[ServedClient, None] = {}

    @property
    def max_per_client(self) -> int:
        """Maximum number of suspended handlers for one client."""
        return min(self._limits.max_in_flight, self._limits.max_per_connection)

    def close(self) -> None:
        """Discard the waiting calls without replies. The calls in flight still count."""
        for client in self._waiting_clients:
            client.waiting.clear()
            client.waiting_bytes = 0
            client.select_table()
        self._waiting_clients.clear()
        self.waiting = 0

    def is_full(self, client: ServedClient) -> bool:
        """Return True if the next call of this client has to wait.

        A call may exceed ``max_bytes``: it waits only if the requests in flight have reached the limit without it.
        """
        limits = self._limits
        return (
            self.in_flight >= limits.max_in_flight
            or len(client.calls) >= limits.max_per_connection
            or client.bytes >= limits.max_bytes
        )

    def wait(self, client: ServedClient, call_id: int, run: RunRequest, body: Body, *, one_way: bool = False) -> None:
        """Queue a call. Raises CallRejected, with this ``one_way``, if too many calls or bytes of this client wait.

        A client's first waiting call may have any size. In a full queue, a client with less than its fair share
        displaces the newest waiting call of the client with the most.
        """
        size = body_weight(body)
        if client.waiting and client.waiting_bytes + size > self._limits.max_bytes:
            raise self._overloaded(client, one_way)
        # Last, because only a call that the queue takes may displace another client's.
        if self.waiting >= self._limits.max_waiting and not self._displace_waiting(client):
            raise self._overloaded(client, one_way)
        self.waiting += 1
        client.waiting[call_id] = WaitingCall(run, body, one_way)
        client.waiting_bytes += size
        client.select_table()
        self._waiting_clients[client] = None

    def _displace_waiting(self, client: ServedClient) -> bool:
        """Reject the newest waiting call of the client with the most, in favor of ``client``.

        Returns False if ``client`` has its share of the queue already.
        """
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
        """Return the rejection of a call of ``client``."""
        return CallRejected(
            "overloaded",
            f"service {client.service!r} has {self.in_flight} calls in flight and {self.waiting} waiting, of yours "
            f"{len(client.calls)} ({client.bytes:,} bytes) and {len(client.waiting)} ({client.waiting_bytes:,} bytes); "
            "retry later",
            one_way=one_way,
        )

    def remove_waiting(self, client: ServedClient, call_id: int) -> bool:
        """Remove a waiting call. Returns False if the call is not waiting."""
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
        """Remove the waiting calls of a disconnected client, except for one-way calls."""
        for call_id in [call_id for call_id, waiting in client.waiting.items() if not waiting.one_way]:
            self.remove_waiting(client, call_id)

    def add(self, in_flight: InFlightCall) -> None:
        """Count a call whose handler is suspended after its first step. A call with a stream does not count as busy."""
        client = in_flight.client
        client.calls[in_flight.call.id] = in_flight
        client.find_handler = client.tables.checked
        client.bytes += in_flight.size
        self.in_flight += 1
        if not in_flight.is_stream:
            self.change_busy(1)

    def remove(self, in_flight: InFlightCall) -> None:
        """Stop counting a call, and begin the waiting calls that the limits then admit."""
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
        """Add to the number of calls that need the event loop. Calls ``set_busy`` at the first and after the last."""
        before, self._busy = self._busy, self._busy + change
        if not before or not self._busy:
            self._set_busy(self._busy > 0)

    def _begin_next(self) -> bool:
        """Begin the first waiting call that the limits admit. Returns False if there is none."""
        for client in self._waiting_clients:
            if not self.is_full(client):
                break
        else:
            return False
        call_id = next(iter(client.waiting))
        waiting = client.waiting[call_id]
        self.remove_waiting(client, call_id)
        if client.waiting:  # Moves the client to the end of the queue.
            self._waiting_clients.pop(client)
            self._waiting_clients[client] = None
        self._begin(client, call_id, waiting.run, waiting.body)
        return True
