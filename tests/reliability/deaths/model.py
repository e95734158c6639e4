"""The expected state of a server and its clients, in plain Python: no socket, no memory, no loop."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Final, Literal

import numpy as np

from tests.helpers.array_service import numbered, sum_of

#: The end of a call, as the driver names it.
Outcome = tuple[Any, ...]
#: The events that a call may have left in the journal, one letter each.
Histories = frozenset[str]

LOST: Final[Outcome] = ("lost", True)
NOT_BEGUN: Final[Outcome] = ("lost", False)
UNAVAILABLE: Final[Outcome] = ("ServiceUnavailable",)

PAGE: Final = 4096


@dataclasses.dataclass(eq=False)
class Block:
    """Shared memory that one side of a connection owns, for as long as it has holders."""

    client: int
    server: int
    of_client: bool
    size: int
    holders: set[str] = dataclasses.field(default_factory=set)

    @property
    def taken(self) -> int:
        """Return the bytes that the block occupies."""
        return -(-self.size // PAGE) * PAGE if self.holders else 0


@dataclasses.dataclass(frozen=True)
class Content:
    """The contents of an array."""

    seed: int
    size: int
    inverted: bool = False
    #: True if only every second byte after the tenth is seen.
    narrow: bool = False

    def array(self) -> np.ndarray[Any, Any]:
        """Return the array."""
        array = numbered(self.seed, self.size)
        array = ~array if self.inverted else array
        return array[10:][::2] if self.narrow else array

    @property
    def sum(self) -> int:
        """Return the checksum of the array."""
        return sum_of(self.array())

    @property
    def seen(self) -> Outcome:
        """Return the array as the outcome of a call."""
        return ("value", ("array", len(self.array()), self.sum))


@dataclasses.dataclass
class HeldArray:
    """An array that the test or the server holds. ``block``: its memory; None in ordinary memory."""

    content: Content
    block: Block | None


@dataclasses.dataclass
class Client:
    """A client with its options."""

    kind: Literal["async", "sync"]
    reconnect: bool
    #: The server that the client is connected to, or was last.
    server: int


@dataclasses.dataclass
class Flight:
    """A call that has not been answered."""

    ticket: int
    client: int
    endpoint: str
    gate: str | None
    #: The outcome of the call once it may end.
    result: Outcome
    #: running: in its handler; line: beyond the client's limit; nowhere: there is no server.
    place: Literal["running", "line", "nowhere"]
    #: Arguments of an ``add``.
    key: str = ""
    by: int = 0
    #: Items of a stream to the server.
    numbers: list[int] | None = None
    #: The memory of the argument at the server, and at the caller: different ones if it was copied.
    block: Block | None = None
    source: Block | None = None
    #: The call's last event in the journal.
    end: str = "f"
    cancelled: bool = False


@dataclasses.dataclass
class Stream:
    """A stream that a client takes item by item."""

    ticket: int
    client: int
    size: int
    #: Numbers of items: available, behind the gate, and taken.
    there: int
    gate: str | None
    more: int
    #: True while the handler runs.
    live: bool
    endless: bool
    taken: int = 0


class Model:
    """The expected state of the server and its clients."""

    def __init__(self) -> None:
        self.health: Literal["serving", "draining", "down"] = "down"
        self.generation = 0
        self.clients: dict[int, Client] = {}
        #: Calls, streams, and handlers whose callers have left, by ticket.
        self.flights: dict[int, Flight] = {}
        self.streams: dict[int, Stream] = {}
        self.orphans: dict[int, Flight] = {}
        self.store: dict[str, int] = {}
        self.kept: dict[str, HeldArray] = {}
        self.holds: dict[int, HeldArray] = {}
        self.blocks: list[Block] = []
        #: Possible contents of the journal, by ticket.
        self.histories: dict[int, Histories] = {}
        #: Possible outcomes of ended calls that the test has not compared so far, by ticket.
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}
        self.open_gates: set[str] = set()
        #: The number of one-way calls that failed.
        self.failed_one_way = 0
        self._tickets = itertools.count(1)

    # Queries.

    def route(self, client: int) -> Literal["runs", "waits"] | Outcome:
        """Return what happens to a call that is made now."""
        its_own = self.clients[client].server == self.generation
        if self.health == "serving" and its_own:
            return "runs"
        if self.clients[client].reconnect:
            return "waits"
        return UNAVAILABLE if self.health == "draining" and its_own else NOT_BEGUN

    def flights_of(self, client: int) -> list[Flight]:
        """Return the unanswered calls of a client."""
        return [flight for flight in self.flights.values() if flight.client == client]

    def running(self, client: int | None = None) -> list[Flight]:
        """Return the running handlers of calls, of one client or of all."""
        flights = [*self.flights.values(), *self.orphans.values()]
        return [f for f in flights if f.place == "running" and client in (None, f.client)]

    def live(self, client: int | None = None) -> list[Stream]:
        """Return the streams with running handlers."""
        return [s for s in self.streams.values() if s.live and client in (None, s.client)]

    def is_full(self, client: int, places: int) -> bool:
        """Return True if a call of this client has to wait."""
        return len(self.running(client)) + len(self.live(client)) >= places

    @property
    def in_flight(self) -> int:
        """Return the number of running handlers."""
        return len(self.running()) + len(self.live())

    @property
    def waiting(self) -> int:
        """Return the number of waiting calls."""
        return sum(flight.place == "line" for flight in self.flights.values())

    def is_connected(self, number: int) -> bool:
        """Return True if a client has a connection to the server."""
        client = self.clients[number]
        if self.health == "down" or client.server != self.generation:
            return False
        if self.health == "draining" and client.reconnect and client.kind == "async":
            # The connection stays only for the calls in flight.
            flights = [f for f in self.flights.values() if f.client == number and f.place != "nowhere"]
            return bool(flights) or any(s.client == number for s in self.streams.values())
        return True

    def memory(self, client: int, *, of_client: bool) -> int:
        """Return the bytes that one side of a client's connection has lent or holds."""
        return sum(
            block.taken
            for block in self.blocks
            if (block.client, block.server, block.of_client) == (client, self.generation, of_client)
        )

    @property
    def sums(self) -> dict[str, list[int]]:
        """Return the number and the sum of the items that have arrived, for each stream to the server."""
        return {
            str(f.ticket): [len(f.numbers), sum(f.numbers)]
            for f in self.flights.values()
            if f.numbers is not None and f.place == "running"
        }

    # Events.

    def ticket(self, *histories: str) -> int:
        """Return a number for a call, and store what the journal may contain about it."""
        ticket = next(self._tickets)
        self.histories[ticket] = frozenset(histories)
        return ticket

    def serve(self) -> None:
        """Start a server; waiting calls go there."""
        self.health = "serving"
        self.generation += 1
        for client in self.clients.values():
            if client.reconnect:
                client.server = self.generation
        for flight in [f for f in self.flights.values() if f.place == "nowhere"]:
            self._begin(flight)

    def connect(self, number: int, kind: Literal["async", "sync"], *, reconnect: bool) -> None:
        """Add a client."""
        self.clients[number] = Client(kind, reconnect, self.generation)

    def fly(self, flight: Flight, places: int) -> None:
        """Begin a call that may not be answered at once."""
        self.flights[flight.ticket] = flight
        if self.route(flight.client) == "waits":
            flight.place = "nowhere"
            self.histories[flight.ticket] = frozenset([""])
        elif self.is_full_but(flight, places):
            flight.place = "line"
            self.histories[flight.ticket] = frozenset([""])
        else:
            self._begin(flight)

    def is_full_but(self, flight: Flight, places: int) -> bool:
        """Return True if a client is at its limit without this call."""
        others = [f for f in self.running(flight.client) if f is not flight]
        return len(others) + len(self.live(flight.client)) >= places

    def _begin(self, flight: Flight) -> None:
        flight.place = "running"
        self.histories[flight.ticket] = frozenset(["b"])
        if flight.endpoint == "add":
            self.add(flight.key, flight.by)
            self._end(flight, flight.result)
        elif flight.gate in self.open_gates:
            self._end(flight, flight.result)

    def _end(self, flight: Flight, *outcomes: Outcome, history: Histories | None = None) -> None:
        """End a handler; its caller, if any, reads one of these outcomes."""
        if self.flights.pop(flight.ticket, None) is not None:
            self.outcomes[flight.ticket] = outcomes
        self.orphans.pop(flight.ticket, None)
        self._put_back(flight)
        before = "bs" if flight.cancelled else "b"
        self.histories[flight.ticket] = history or frozenset([before + flight.end])

    def _put_back(self, flight: Flight) -> None:
        for block in (flight.block, flight.source):
            self.let_go(block, f"flight {flight.ticket}")

    def refill(self, places: int) -> None:
        """Begin waiting calls while their clients are below the limit."""
        for number in self.clients:
            while line := [f for f in self.flights.values() if f.client == number and f.place == "line"]:
                if self.is_full(number, places):
                    break
                self._begin(line[0])

    def add(self, key: str, by: int) -> int:
        """Carry out the endpoint `add`."""
        self.store[key] = self.store.get(key, 0) + by
        return self.store[key]

    def open(self, gate: str) -> list[int]:
        """Open a gate; return the tickets of the calls that end."""
        self.open_gates.add(gate)
        ending = [f for f in self.running() if f.gate == gate]
        for flight in ending:
            self._end(flight, flight.result)
        for stream in self.live():
            if stream.gate == gate:
                stream.there += stream.more
                stream.live = False
                self.histories[stream.ticket] = frozenset(["bf"])
        return [flight.ticket for flight in ending]

    def finish(self, flight: Flight, *outcomes: Outcome, end: str = "f") -> None:
        """End a call by itself."""
        flight.end = end
        self._end(flight, *outcomes)

    def cancel(
        self, flight: Flight, *outcomes: Outcome, histories: Histories | None = None, at_once: bool = False
    ) -> None:
        """Cancel a call. ``at_once``: other calls are cancelled at the same time, in any order."""
        if flight.place == "running" and flight.endpoint == "stubborn":
            del self.flights[flight.ticket]
            self.outcomes[flight.ticket] = outcomes
            self.orphans[flight.ticket] = flight
            flight.cancelled = True
            self.histories[flight.ticket] = frozenset(["bs"])
            return
        # A generator may have let the loop run at an item when the cancellation arrived.
        cut_off = frozenset(["bc", "bx"] if flight.endpoint == "stream" else ["bc"])
        match flight.place:
            case "running":
                ends = cut_off
            case "line" if at_once:  # A slot that another call frees may go to this one before it is cancelled.
                ends = cut_off | {""}
            case _:
                ends = frozenset([""])
        self._end(flight, *outcomes, history=histories or ends)

    def is_chance(self, flights: list[Flight]) -> bool:
        """Return True if the number of calls that remain after cancelling all of these at once is unpredictable."""
        return len(flights) > 1 and any(f.endpoint == "stubborn" and f.place == "line" for f in flights)

    def leave(self, stream: Stream) -> None:
        """Close a stream at its reader."""
        del self.streams[stream.ticket]
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        if stream.live:
            stream.live = False
            # A gated generator may have let the loop run at an item when the cancellation arrived.
            self.histories[stream.ticket] = frozenset(["bx"] if stream.endless else ["bc", "bx"])

    def close(self, number: int) -> list[Stream]:
        """Close a client; return the streams that it had open."""
        # Each thread of the client cancels its own call.
        at_once = self.clients[number].kind == "sync"
        for flight in self.flights_of(number):
            outcomes = [NOT_BEGUN if flight.place == "nowhere" else LOST]
            if at_once and flight.place == "nowhere" and self.health == "draining":
                # The thread may be about to learn that this server takes no more calls: until then the outcome is open.
                outcomes.append(LOST)
            self.cancel(flight, *outcomes, at_once=at_once)
        streams = [s for s in self.streams.values() if s.client == number]
        for stream in streams:
            self.leave(stream)
        del self.clients[number]
        return streams

    def end(self, how: Literal["killed", "stopped", "drained"]) -> list[tuple[Stream, bool]]:
        """End the server; return the open streams, and True for each whose handler had ended."""
        assert how != "drained" or not self.in_flight
        for flight in [f for f in self.flights.values() if f.place != "nowhere"]:
            histories = self.histories[flight.ticket]
            if how == "stopped" and flight.place == "running":
                # A handler that ignores cancellation ends when its gate is opened.
                histories = frozenset(["bsf"] if flight.endpoint == "stubborn" else ["bc"])
            self._end(flight, LOST, history=histories)
        for orphan in list(self.orphans.values()):
            self._end(orphan, history=frozenset(["bsf"] if how == "stopped" else ["bs"]))
        streams = [(stream, not stream.live) for stream in self.streams.values()]
        for stream, _ in streams:
            if how == "stopped":
                self._close(stream)
            stream.live = False
        self.streams.clear()
        self.store.clear()
        self.kept.clear()
        self.health = "down"
        self.failed_one_way = 0
        return streams

    # Memory.

    def new_block(self, client: int, *, of_client: bool, size: int, holder: str) -> Block:
        """Allocate memory of one side of a client's connection."""
        block = Block(client, self.clients[client].server, of_client, size, {holder})
        self.blocks.append(block)
        return block

    def passed(self, held: HeldArray, client: int, *, by_client: bool, holder: str) -> Block:
        """Return the receiver's block of an array: the same one in this connection's memory, otherwise a copy."""
        block, server = held.block, self.clients[client].server
        if block is not None and (block.client, block.server) == (client, server):
            block.holders.add(holder)
            return block
        return self.new_block(client, of_client=by_client, size=held.content.size, holder=holder)

    def let_go(self, block: Block | None, holder: str) -> None:
        """Remove a holder of a block."""
        if block is not None:
            block.holders.discard(holder)


def consecutive(items: list[Any], start: int, size: int) -> bool:
    """Return True if these are the consecutive items of a stream from an index on."""
    return all(
        place == start + i and payload == bytes([place % 251]) * size for i, (place, payload) in enumerate(items)
    )
