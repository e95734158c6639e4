"""How many calls are under way at a server, and those that wait for their turn."""

from __future__ import annotations

from collections.abc import Callable

from shmrpc.server.served_client import RunRequest, ServedClient, Underway, Waiting
from shmrpc.transport.options import check_count
from shmrpc.wire.codec import Body, body_weight
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import Rejected


class Limits:
    """The limits of a server: those under way, those that wait, and whose turn it is."""

    def __init__(
        self, max_in_flight: int, max_per_connection: int, max_waiting: int, max_bytes: int = DEFAULT_MAX_MEMORY
    ) -> None:
        limits = {"max_in_flight": max_in_flight, "max_per_connection": max_per_connection, "max_waiting": max_waiting}
        for name, value in limits.items():
            check_count(name, value, 0 if name == "max_waiting" else 1)
        self.in_flight = 0
        #: Those that need the loop to turn: suspended handlers, and streams that only let the others have a turn.
        self.busy = 0
        self._waiting = 0
        self._max_in_flight = max_in_flight
        self._max_per_connection = max_per_connection
        self._max_waiting = max_waiting
        #: Bytes of the requests of one connection that are under way, and of those that wait.
        self._max_bytes = max_bytes
        #: Callers of whom calls wait. Each has its turn before any has its second.
        self._line: dict[ServedClient, None] = {}
        #: Called when ``busy`` becomes 0, or was 0.
        self.on_change: Callable[[], None] = lambda: None
        #: What begins a call that has waited.
        self.begin: Callable[[ServedClient, int, RunRequest, Body], None]
        #: What answers one that has waited in vain.
        self.refuse: Callable[[ServedClient, int, Rejected], None]

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._waiting

    @property
    def places(self) -> int:
        """Handlers that may be suspended for one client."""
        return min(self._max_in_flight, self._max_per_connection)

    def close(self) -> None:
        """Nothing that waits begins any more."""
        for client in self._line:
            client.waiting.clear()
            client.waiting_bytes = 0
            client.choose_table()
        self._line.clear()
        self._waiting = 0

    def is_full(self, client: ServedClient) -> bool:
        """Whether a call of this caller's has to wait."""
        return (
            self.in_flight >= self._max_in_flight
            or len(client.calls) >= self._max_per_connection
            or client.bytes >= self._max_bytes
        )

    def wait(self, client: ServedClient, call_id: int, run: RunRequest, body: Body, *, one_way: bool = False) -> None:
        """Lets a call wait for its turn; raises the rejection if too many do.

        Who has less than a fair share of the line takes the place of the last call of who has most.
        """
        if self._waiting >= self._max_waiting and not self._make_room(client):
            raise self._overloaded(client, one_way)
        size = body_weight(body)
        if client.waiting and client.waiting_bytes + size > self._max_bytes:
            raise self._overloaded(client, one_way)
        self._waiting += 1
        client.waiting[call_id] = Waiting(run, body, one_way)
        client.waiting_bytes += size
        client.choose_table()
        self._line[client] = None

    def _make_room(self, client: ServedClient) -> bool:
        share = self._max_waiting // (len(self._line) + (client not in self._line))
        if len(client.waiting) >= share:
            return False
        longest = max(self._line, key=lambda each: len(each.waiting))
        call_id, waiting = next(reversed(longest.waiting.items()))
        rejected = self._overloaded(longest, waiting.one_way)
        self.give_up(longest, call_id)
        self.refuse(longest, call_id, rejected)
        return True

    def _overloaded(self, client: ServedClient, one_way: bool) -> Rejected:
        rejected = Rejected(
            "overloaded",
            f"service {client.service!r} has {self.in_flight} calls under way and {self._waiting} waiting, of yours "
            f"{len(client.calls)} ({client.bytes:,} bytes) and {len(client.waiting)} ({client.waiting_bytes:,} bytes): "
            "it takes no more for now",
        )
        rejected.one_way = one_way
        return rejected

    def give_up(self, client: ServedClient, call_id: int) -> bool:
        """The caller does not want a call any more; whether it was one that waits."""
        waiting = client.waiting.pop(call_id, None)
        if waiting is None:
            return False
        self._waiting -= 1
        client.waiting_bytes -= body_weight(waiting.body)
        if not client.waiting:
            self._line.pop(client, None)
            client.choose_table()
        return True

    def leave(self, client: ServedClient) -> None:
        """The caller is gone: nothing of it waits any more, but for its one-way calls."""
        for call_id in [call_id for call_id, waiting in client.waiting.items() if not waiting.one_way]:
            self.give_up(client, call_id)

    def started(self, under: Underway) -> None:
        """A call goes on after its first step."""
        client = under.client
        client.calls[under.call.id] = under
        client.run_of = client.tables.checked
        client.bytes += under.size
        self.in_flight += 1
        if not under.is_stream:
            self.change_busy(1)

    def ended(self, under: Underway) -> None:
        """It has ended: those that wait have their turn."""
        client = under.client
        del client.calls[under.call.id]
        if not client.calls:
            client.choose_table()
        client.bytes -= under.size
        self.in_flight -= 1
        while self._line and self._begin_next():
            pass
        if not under.is_stream:
            self.change_busy(-1)

    def change_busy(self, change: int) -> None:
        """So many more, or fewer, need the loop to turn."""
        before, self.busy = self.busy, self.busy + change
        if not before or not self.busy:
            self.on_change()

    def _begin_next(self) -> bool:
        for client in self._line:
            if not self.is_full(client):
                break
        else:
            return False
        call_id = next(iter(client.waiting))
        run, body, _ = client.waiting[call_id]
        self.give_up(client, call_id)
        if client.waiting:  # To the end of the line.
            self._line.pop(client)
            self._line[client] = None
        self.begin(client, call_id, run, body)
        return True
