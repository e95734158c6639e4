"""How many calls are under way at a server, and those that wait for their turn."""

from __future__ import annotations

from collections.abc import Callable

from shmrpc.server.connection import Caller, RunRequest, Underway, Waiting
from shmrpc.transport.options import check_count
from shmrpc.wire.codec import Body
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import Rejected


class Load:
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
        self._line: dict[Caller, None] = {}
        #: Called when ``busy`` becomes 0, or was 0.
        self.on_change: Callable[[], None] = lambda: None
        #: What begins a call that has waited.
        self.begin: Callable[[Caller, int, RunRequest, Body], None]
        #: What answers one that has waited in vain.
        self.refuse: Callable[[Caller, int, Rejected], None]

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
        for caller in self._line:
            caller.waiting.clear()
            caller.waiting_bytes = 0
            caller.choose_table()
        self._line.clear()
        self._waiting = 0

    def is_full(self, caller: Caller) -> bool:
        """Whether a call of this caller's has to wait."""
        return (
            self.in_flight >= self._max_in_flight
            or len(caller.calls) >= self._max_per_connection
            or caller.bytes >= self._max_bytes
        )

    def wait(self, caller: Caller, call_id: int, run: RunRequest, body: Body, *, one_way: bool = False) -> None:
        """Lets a call wait for its turn; raises the rejection if too many do.

        Who has less than a fair share of the line takes the place of the last call of who has most.
        """
        if self._waiting >= self._max_waiting and not self._make_room(caller):
            raise self._overloaded(caller, one_way)
        size = len(body)
        if caller.waiting and caller.waiting_bytes + size > self._max_bytes:
            raise self._overloaded(caller, one_way)
        self._waiting += 1
        caller.waiting[call_id] = Waiting(run, body, one_way)
        caller.waiting_bytes += size
        caller.choose_table()
        self._line[caller] = None

    def _make_room(self, caller: Caller) -> bool:
        share = self._max_waiting // (len(self._line) + (caller not in self._line))
        if len(caller.waiting) >= share:
            return False
        longest = max(self._line, key=lambda each: len(each.waiting))
        call_id, waiting = next(reversed(longest.waiting.items()))
        rejected = self._overloaded(longest, waiting.one_way)
        self.give_up(longest, call_id)
        self.refuse(longest, call_id, rejected)
        return True

    def _overloaded(self, caller: Caller, one_way: bool) -> Rejected:
        rejected = Rejected(
            "overloaded",
            f"service {caller.service!r} has {self.in_flight} calls under way and {self._waiting} waiting, of yours "
            f"{len(caller.calls)} ({caller.bytes:,} bytes) and {len(caller.waiting)} ({caller.waiting_bytes:,} bytes): "
            "it takes no more for now",
        )
        rejected.one_way = one_way
        return rejected

    def give_up(self, caller: Caller, call_id: int) -> bool:
        """The caller does not want a call any more; whether it was one that waits."""
        waiting = caller.waiting.pop(call_id, None)
        if waiting is None:
            return False
        self._waiting -= 1
        caller.waiting_bytes -= len(waiting.body)
        if not caller.waiting:
            self._line.pop(caller, None)
            caller.choose_table()
        return True

    def leave(self, caller: Caller) -> None:
        """The caller is gone: nothing of it waits any more, but for its one-way calls."""
        for call_id in [call_id for call_id, waiting in caller.waiting.items() if not waiting.one_way]:
            self.give_up(caller, call_id)

    def started(self, under: Underway) -> None:
        """A call goes on after its first step."""
        caller = under.caller
        caller.calls[under.call.id] = under
        caller.run_of = caller.tables.checked
        caller.bytes += under.size
        self.in_flight += 1
        if not under.is_stream:
            self.change_busy(1)

    def ended(self, under: Underway) -> None:
        """It has ended: those that wait have their turn."""
        caller = under.caller
        del caller.calls[under.call.id]
        if not caller.calls:
            caller.choose_table()
        caller.bytes -= under.size
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
        for caller in self._line:
            if not self.is_full(caller):
                break
        else:
            return False
        call_id = next(iter(caller.waiting))
        run, body, _ = caller.waiting[call_id]
        self.give_up(caller, call_id)
        if caller.waiting:  # To the end of the line.
            self._line.pop(caller)
            self._line[caller] = None
        self.begin(caller, call_id, run, body)
        return True
