"""What a server and its clients should do, in plain Python: no socket, no memory, no loop."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Final, Literal

import numpy as np

from tests.helpers.array_service import numbered, sum_of

#: How a call ended, as the driver names it.
Outcome = tuple[Any, ...]
#: The events that a call may have left in the journal, one letter each.
Histories = frozenset[str]

LOST: Final[Outcome] = ("lost", True)
NOT_BEGUN: Final[Outcome] = ("lost", False)
UNAVAILABLE: Final[Outcome] = ("ServiceUnavailable",)

PAGE: Final = 4096


@dataclasses.dataclass(eq=False)
class Block:
    """Shared memory that one side of a connection owns, for as long as anybody has it."""

    client: int
    server: int
    of_client: bool
    size: int
    holders: set[str] = dataclasses.field(default_factory=set)

    @property
    def taken(self) -> int:
        """Bytes that it takes."""
        return -(-self.size // PAGE) * PAGE if self.holders else 0


@dataclasses.dataclass(frozen=True)
class Content:
    """What an array shows."""

    seed: int
    size: int
    inverted: bool = False
    #: Only every second byte behind the tenth.
    narrow: bool = False

    def array(self) -> np.ndarray[Any, Any]:
        """The array itself."""
        array = numbered(self.seed, self.size)
        array = ~array if self.inverted else array
        return array[10:][::2] if self.narrow else array

    @property
    def sum(self) -> int:
        """Its checksum."""
        return sum_of(self.array())

    @property
    def seen(self) -> Outcome:
        """As the outcome of a call."""
        return ("value", ("array", len(self.array()), self.sum))


@dataclasses.dataclass
class Held:
    """An array in somebody's hands. ``block``: where it lies; None in ordinary memory."""

    content: Content
    block: Block | None


@dataclasses.dataclass
class Client:
    """A client as it was asked for."""

    kind: Literal["async", "sync"]
    reconnect: bool
    #: The server that it is connected to, or was at last.
    server: int


@dataclasses.dataclass
class Flight:
    """A call that has not been answered."""

    ticket: int
    client: int
    endpoint: str
    gate: str | None
    #: What its caller reads once it may end.
    result: Outcome
    #: running: in its handler; line: the client has too many; nowhere: there is no server.
    place: Literal["running", "line", "nowhere"]
    #: Of an ``add``.
    key: str = ""
    by: int = 0
    #: Of a stream to the server.
    numbers: list[int] | None = None
    #: The memory of its argument as the server sees it, and as the caller has it: another's, if it was copied.
    block: Block | None = None
    source: Block | None = None
    #: How it ends in the journal.
    end: str = "f"
    cancelled: bool = False


@dataclasses.dataclass
class Stream:
    """A stream to a client that takes it item by item."""

    ticket: int
    client: int
    size: int
    #: Items that there are; behind the gate; and taken.
    there: int
    gate: str | None
    more: int
    #: Whether its handler has yet to end.
    live: bool
    endless: bool
    taken: int = 0


class Model:
    """The state that everybody should be in."""

    def __init__(self) -> None:
        self.health: Literal["serving", "draining", "down"] = "down"
        self.generation = 0
        self.clients: dict[int, Client] = {}
        #: By ticket: calls, streams, and handlers whose callers have gone.
        self.flights: dict[int, Flight] = {}
        self.streams: dict[int, Stream] = {}
        self.orphans: dict[int, Flight] = {}
        self.store: dict[str, int] = {}
        self.kept: dict[str, Held] = {}
        self.holds: dict[int, Held] = {}
        self.blocks: list[Block] = []
        #: By ticket, what the journal may say.
        self.histories: dict[int, Histories] = {}
        #: By ticket, how calls have ended of whom the caller is still to be asked.
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}
        self.open_gates: set[str] = set()
        #: One-way calls that failed.
        self.told = 0
        self._tickets = itertools.count(1)

    # What can be asked.

    def route(self, client: int) -> Literal["runs", "waits"] | Outcome:
        """What becomes of a call that is made now."""
        its_own = self.clients[client].server == self.generation
        if self.health == "serving" and its_own:
            return "runs"
        if self.clients[client].reconnect:
            return "waits"
        return UNAVAILABLE if self.health == "draining" and its_own else NOT_BEGUN

    def flights_of(self, client: int) -> list[Flight]:
        """The calls of a client that have not been answered."""
        return [flight for flight in self.flights.values() if flight.client == client]

    def running(self, client: int | None = None) -> list[Flight]:
        """Handlers that are under way for calls, of one client or of all."""
        flights = [*self.flights.values(), *self.orphans.values()]
        return [f for f in flights if f.place == "running" and client in (None, f.client)]

    def live(self, client: int | None = None) -> list[Stream]:
        """Handlers that are under way for streams."""
        return [s for s in self.streams.values() if s.live and client in (None, s.client)]

    def is_full(self, client: int, places: int) -> bool:
        """Whether a call of this client's has to wait in line."""
        return len(self.running(client)) + len(self.live(client)) >= places

    @property
    def in_flight(self) -> int:
        """Handlers that are under way."""
        return len(self.running()) + len(self.live())

    @property
    def waiting(self) -> int:
        """Calls that wait in line."""
        return sum(flight.place == "line" for flight in self.flights.values())

    def is_connected(self, number: int) -> bool:
        """Whether a client has a connection to the server."""
        client = self.clients[number]
        if self.health == "down" or client.server != self.generation:
            return False
        if self.health == "draining" and client.reconnect and client.kind == "async":
            # It stays for what is under way alone.
            flights = [f for f in self.flights.values() if f.client == number and f.place != "nowhere"]
            return bool(flights) or any(s.client == number for s in self.streams.values())
        return True

    def memory(self, client: int, *, of_client: bool) -> int:
        """Bytes that one side of a client's connection has lent or holds."""
        return sum(
            block.taken
            for block in self.blocks
            if (block.client, block.server, block.of_client) == (client, self.generation, of_client)
        )

    @property
    def sums(self) -> dict[str, list[int]]:
        """What has come of streams to the server: how many, and their sum."""
        return {
            str(f.ticket): [len(f.numbers), sum(f.numbers)]
            for f in self.flights.values()
            if f.numbers is not None and f.place == "running"
        }

    # What happens.

    def ticket(self, *histories: str) -> int:
        """A number for a call, and what the journal may say of it."""
        ticket = next(self._tickets)
        self.histories[ticket] = frozenset(histories)
        return ticket

    def serve(self) -> None:
        """A server begins; those that waited for one go there."""
        self.health = "serving"
        self.generation += 1
        for client in self.clients.values():
            if client.reconnect:
                client.server = self.generation
        for flight in [f for f in self.flights.values() if f.place == "nowhere"]:
            self._begin(flight)

    def connect(self, number: int, kind: Literal["async", "sync"], *, reconnect: bool) -> None:
        """A client has come."""
        self.clients[number] = Client(kind, reconnect, self.generation)

    def fly(self, flight: Flight, places: int) -> None:
        """A call that may not be answered at once."""
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
        """Whether a client is full without this call."""
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
        """A handler has ended, and its caller, if there is one, reads one of these."""
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
        """Those in line have their turn, where there are places."""
        for number in self.clients:
            while line := [f for f in self.flights.values() if f.client == number and f.place == "line"]:
                if self.is_full(number, places):
                    break
                self._begin(line[0])

    def add(self, key: str, by: int) -> int:
        """What the endpoint does."""
        self.store[key] = self.store.get(key, 0) + by
        return self.store[key]

    def open(self, gate: str) -> list[int]:
        """A gate opens; the tickets of calls that end."""
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
        """A call ends by itself."""
        flight.end = end
        self._end(flight, *outcomes)

    def cancel(
        self, flight: Flight, *outcomes: Outcome, histories: Histories | None = None, at_once: bool = False
    ) -> None:
        """Its caller wants it no more. ``at_once``: others are given up at the same time, in any order."""
        if flight.place == "running" and flight.endpoint == "stubborn":
            del self.flights[flight.ticket]
            self.outcomes[flight.ticket] = outcomes
            self.orphans[flight.ticket] = flight
            flight.cancelled = True
            self.histories[flight.ticket] = frozenset(["bs"])
            return
        # A generator may have let the loop turn at an item when it was told.
        cut_off = frozenset(["bc", "bx"] if flight.endpoint == "stream" else ["bc"])
        match flight.place:
            case "running":
                ends = cut_off
            case "line" if at_once:  # A place that one of the others leaves may be given to it before it is given up.
                ends = cut_off | {""}
            case _:
                ends = frozenset([""])
        self._end(flight, *outcomes, history=histories or ends)

    def is_chance(self, flights: list[Flight]) -> bool:
        """Whether what stays of these, when they are given up at once, cannot be known."""
        return len(flights) > 1 and any(f.endpoint == "stubborn" and f.place == "line" for f in flights)

    def leave(self, stream: Stream) -> None:
        """Its reader wants no more of it."""
        del self.streams[stream.ticket]
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        if stream.live:
            stream.live = False
            # A gated one may have let the loop turn at an item when it was told.
            self.histories[stream.ticket] = frozenset(["bx"] if stream.endless else ["bc", "bx"])

    def close(self, number: int) -> list[Stream]:
        """A client goes; the streams that it had open, with how they may end."""
        # Each thread of its says on its own that it gives up.
        at_once = self.clients[number].kind == "sync"
        for flight in self.flights_of(number):
            outcomes = [NOT_BEGUN if flight.place == "nowhere" else LOST]
            if at_once and flight.place == "nowhere" and self.health == "draining":
                # Its thread may be about to hear that this server takes no more calls: until then it cannot know.
                outcomes.append(LOST)
            self.cancel(flight, *outcomes, at_once=at_once)
        streams = [s for s in self.streams.values() if s.client == number]
        for stream in streams:
            self.leave(stream)
        del self.clients[number]
        return streams

    def end(self, how: Literal["killed", "stopped", "drained"]) -> list[tuple[Stream, bool]]:
        """The server is gone. The streams that were open, and whether their handlers had ended."""
        assert how != "drained" or not self.in_flight
        for flight in [f for f in self.flights.values() if f.place != "nowhere"]:
            histories = self.histories[flight.ticket]
            if how == "stopped" and flight.place == "running":
                # What will not be cancelled ends when its gate is opened for it.
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
        self.told = 0
        return streams

    # Memory.

    def new_block(self, client: int, *, of_client: bool, size: int, holder: str) -> Block:
        """Memory that one side of a client's connection has taken."""
        block = Block(client, self.clients[client].server, of_client, size, {holder})
        self.blocks.append(block)
        return block

    def passed(self, held: Held, client: int, *, by_client: bool, holder: str) -> Block:
        """Where the receiver sees an array: where it lies, if that is this connection's memory; else in a copy."""
        block, server = held.block, self.clients[client].server
        if block is not None and (block.client, block.server) == (client, server):
            block.holders.add(holder)
            return block
        return self.new_block(client, of_client=by_client, size=held.content.size, holder=holder)

    def let_go(self, block: Block | None, holder: str) -> None:
        """Somebody has it no more."""
        if block is not None:
            block.holders.discard(holder)


def consecutive(items: list[Any], start: int, size: int) -> bool:
    """Whether these are the items of a stream from a place on."""
    return all(
        place == start + i and payload == bytes([place % 251]) * size for i, (place, payload) in enumerate(items)
    )
