"""Steps that change the model and the real processes in the same way, and a comparison after each."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.array_service import extents_mapped, numbered, sum_of
from tests.reliability.deaths.model import (
    LOST,
    NOT_BEGUN,
    UNAVAILABLE,
    Content,
    Flight,
    HeldArray,
    Model,
    Outcome,
    Stream,
    consecutive,
)
from tests.reliability.deaths.model_driver import Driver, Handle, Nursery, Real, RealServer, Source
from tests.reliability.deaths.model_server import ENDLESS, MAX_PER_CONNECTION

#: Seconds for reality to match the model; fewer after the first difference, because shrinking would take too long.
_patience = [60.0, 3.0]

#: Concurrent clients, held arrays, and closed gates.
CLIENTS = 4
HOLDS = 6
GATES = 3

#: An index that the rules take modulo the number of candidates.
choice = st.integers(0, 11)
sizes = st.sampled_from([3000, 20_000, 100_000, 300_000])

ANY_VALUE: Outcome = ("any value",)


def _serves(machine: Machine) -> bool:
    return machine.model.health == "serving"


def _is_mature(machine: Machine) -> bool:
    """Return True if the server has done enough for a kill to matter."""
    return _serves(machine) and machine.age > 4 and bool(machine.reals)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Machine(RuleBasedStateMachine):
    """A server and its clients, and the model of them."""

    nursery: ClassVar[Nursery]
    loop_factory: ClassVar[Callable[[], asyncio.AbstractEventLoop]]
    server_loop: ClassVar[str]
    #: The number of runs of each rule.
    ran: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        type(self).loop_factory().close()  # The first loop of a process opens descriptors that stay.
        gc.collect()
        self.before = (_descriptors(), extents_mapped())
        time.sleep(0.005)
        while (now := (_descriptors(), extents_mapped())) != self.before:  # Earlier tests' objects.
            self.before = now
            time.sleep(0.005)
        self.driver = Driver(self.nursery, type(self).loop_factory)
        self.model = Model()
        self.reals: dict[int, Real] = {}
        self.handles: dict[int, Handle] = {}
        self.open_streams: dict[int, Any] = {}
        self.sources: dict[int, Source] = {}
        self.arrays: dict[int, Any] = {}
        self.journal: dict[int, str] = {}
        self.gates: Counter[int] = Counter()
        #: Numbers of arrays and clients that were created.
        self.seeds = self.came = 0
        #: Clients that had a stream of large items.
        self.flooded: set[int] = set()
        #: Steps since the server began.
        self.age = 0
        self.sound = True
        self.nursery.new_events()
        self.server: RealServer = self.nursery.start(self.server_loop)
        self.model.serve()

    # Helpers of the steps.

    def begins(self, what: str) -> None:
        """Begin a step; the state counts as unknown until it has been compared."""
        self.sound = False
        self.age += 1
        self.ran[what] += 1

    def gate(self, number: int) -> str:
        """Return the name of the current closed gate of this number."""
        return f"gate {number}.{self.gates[number]}"

    def pick(self, number: int, *, running: bool = False) -> int:
        """Return a client whose calls end at once: with a server, or without any hope of one."""
        wanted = [c for c in self.model.clients if self.model.route(c) == "runs" or not running]
        wanted = [c for c in wanted if self.model.route(c) != "waits"]
        return wanted[number % len(wanted)] if wanted else -1

    def is_full(self, client: int) -> bool:
        """Return True if calls that take a slot have to wait."""
        return self.model.is_full(client, MAX_PER_CONNECTION)

    def expect(self, what: str, real: Outcome, *expected: Outcome) -> None:
        """Raise AssertionError unless the outcome is one of these."""
        if not (real in expected or (real[0] == "value" and ANY_VALUE in expected)):
            raise AssertionError(f"{what}: expected {' or '.join(map(str, expected))}, got {real}")

    def call(
        self, client: int, way: str, name: str, args: tuple[Any, ...], expected: Outcome, **kwargs: Any
    ) -> tuple[bool, Any]:
        """Make a call that ends at once; return True if it was executed, and its value."""
        route = self.model.route(client)
        assert route != "waits"
        handle = self.reals[client].begin(way, name, args, kwargs)
        if not self.driver.until(handle.done):
            raise AssertionError(f"{way} {name}{args} hangs")
        outcome, value = handle.outcome()
        self.expect(f"{way} {name}{args} of client {client}", outcome, expected if route == "runs" else route)
        return route == "runs", value

    def fly(self, flight: Flight, way: str, args: tuple[Any, ...]) -> None:
        """Begin a call that is not answered at once."""
        self.model.fly(flight, MAX_PER_CONNECTION)
        self.handles[flight.ticket] = self.reals[flight.client].begin(way, _endpoint_of(flight), args, {})

    # Clients.

    @initialize(kinds=st.lists(st.tuples(st.sampled_from(["async", "sync"]), st.booleans()), min_size=1, max_size=3))
    def first_clients(self, kinds: list[tuple[Literal["async", "sync"], bool]]) -> None:
        for kind, reconnect in kinds:
            self.connect(kind, reconnect)

    @precondition(lambda self: len(self.reals) < CLIENTS)
    @rule(kind=st.sampled_from(["async", "sync"]), reconnect=st.booleans())
    def connect(self, kind: Literal["async", "sync"], reconnect: bool) -> None:
        if not _serves(self):  # The client does not wait for a server: connecting fails.
            reconnect = False
        self.begins("connect" if _serves(self) else "connect without a server")
        real = self.driver.real(kind, reconnect=reconnect)
        outcome = real.connect()
        if _serves(self):
            assert outcome[0] == "value", outcome
            self.came += 1
            number = self.came
            self.model.connect(number, kind, reconnect=reconnect)
            self.reals[number] = real
        else:
            self.expect("connecting", outcome, UNAVAILABLE)
            real.close()

    @precondition(lambda self: self.reals)
    @rule(which=choice)
    def close(self, which: int) -> None:
        number = sorted(self.reals)[which % len(self.reals)]
        if self.is_close_chance(number):
            return
        self.begins("close")
        self._close(number)

    def is_close_chance(self, number: int) -> bool:
        """Return True if the state after closing this client is unpredictable."""
        return self.model.clients[number].kind == "sync" and self.model.is_chance(self.model.flights_of(number))

    def _close(self, number: int) -> None:
        streams = [(stream, not stream.live) for stream in self.model.streams.values() if stream.client == number]
        real = self.reals[number]
        self.model.close(number)
        real.close()
        for stream, was_over in streams:
            self.read_to_the_end(real, stream, *((("end",), LOST) if was_over else (LOST,)), partly=True)
        self.settle_outcomes()
        del self.reals[number]

    # Calls.

    @precondition(lambda self: self.pick(0) > 0)
    @rule(
        which=choice,
        way=st.sampled_from(["call", "attribute", "keywords", "deadline 100", "metadata", "batch", "map", "notify"]),
        key=st.sampled_from("ab"),
        by=st.integers(1, 3),
    )
    def add(self, which: int, way: str, key: str, by: int) -> None:
        client = self.pick(which)
        model = self.model
        if way in ("metadata", "batch", "map", "notify") and (self.is_full(client) or model.health == "draining"):
            way = "call"  # The others would wait; a refused one-way call leaves no trace.
        self.begins(f"add, {way}")
        if way in ("batch", "map"):
            tickets = [model.ticket("bf") for _ in range(5)]
            runs = model.route(client) == "runs"
            values = [model.add(key, by) for _ in tickets] if runs else []
            if way == "batch":
                bad = model.ticket("")
                args: tuple[Any, ...] = (*((t, key, by) for t in tickets), (bad, key, "much"))
                expected: list[Any] = [*(("value", value) for value in values), ("InvalidArguments",)]
            else:
                args, expected = tuple((t, key, by) for t in tickets), values
            self.call(client, way, "add", args, ("value", expected))
            if not runs:
                for ticket in tickets:
                    model.histories[ticket] = frozenset([""])
            return
        ticket = model.ticket("bf")
        if model.route(client) != "runs":
            model.histories[ticket] = frozenset([""])
            self.call(client, "call" if way == "keywords" else way, "add", (ticket, key, by), ANY_VALUE)
        elif way == "keywords":
            self.call(client, "call", "add", (ticket, key), ("value", model.add(key, by * 2)), by=by, twice=True)
        else:
            value = model.add(key, by)
            self.call(client, way, "add", (ticket, key, by), ("value", None if way == "notify" else value))

    @precondition(lambda self: self.pick(0, running=True) > 0)
    @rule(which=choice, kind=st.sampled_from(["ValueError", "KeyError", "LookupError"]), one_way=st.booleans())
    def fail(self, which: int, kind: str, one_way: bool) -> None:
        client = self.pick(which, running=True)
        one_way = one_way and not self.is_full(client)
        self.begins("fail, one way" if one_way else "fail")
        ticket = self.model.ticket("be")
        expected = ("value", None) if one_way else ("raised", f"builtins.{kind}", kind, f"text {ticket}")
        self.call(client, "notify" if one_way else "call", "fail", (ticket, kind, f"text {ticket}"), expected)
        self.model.failed_one_way += one_way

    @precondition(lambda self: self.pick(0, running=True) > 0)
    @rule(which=choice, how=st.sampled_from(["type", "missing", "name", "unencodable", "result", "deadline"]))
    def rejected(self, which: int, how: str) -> None:
        client = self.pick(which, running=True)
        self.begins(f"rejected, {how}")
        ticket = self.model.ticket("bf" if how == "result" else "")
        match how:
            case "type":
                self.call(client, "call", "add", (ticket, "a", "much"), ("InvalidArguments",))
            case "missing":
                self.call(client, "call", "add", (ticket,), ("InvalidArguments",))
            case "name":
                self.call(client, "call", "ad", (ticket, "a"), ("EndpointNotFound",))
            case "unencodable":
                self.call(client, "call", "wait", (ticket, "never", object()), ("EncodeError",))
            case "result":
                self.call(client, "call", "odd", (ticket,), ("EncodeError",))
            case "deadline":
                if self.is_full(client):
                    self.call(client, "deadline 0", "add", (ticket, "a"), ("DeadlineExceeded",))
                else:
                    self.call(client, "deadline 0", "wait", (ticket, "never"), ("DeadlineExceeded",))

    @precondition(lambda self: self.pick(0, running=True) > 0)
    @rule(which=choice, milliseconds=st.integers(1, 20))
    def deadline_that_passes(self, which: int, milliseconds: int) -> None:
        self.begins("deadline that passes")
        client = self.pick(which, running=True)
        ticket = self.model.ticket("") if self.is_full(client) else self.model.ticket("", "bc")
        way = f"deadline {milliseconds / 1000}"
        self.call(client, way, "wait", (ticket, "never"), ("DeadlineExceeded",))

    # Calls that last.

    @precondition(lambda self: self.reals and len(self.model.flights) < 12)
    @rule(
        which=choice,
        number=st.integers(0, GATES - 1),
        what=st.sampled_from(["wait", "wait", "array", "held", "fails", "stubborn", "collect", "add"]),
        size=sizes,
    )
    def begin(self, which: int, number: int, what: str, size: int) -> None:
        model = self.model
        client = sorted(self.reals)[which % len(self.reals)]
        route, gate = model.route(client), self.gate(number)
        if route not in ("runs", "waits") or (what in ("array", "held") and route != "runs"):
            return
        if (what == "add" and route == "runs") or (what == "held" and not self.keepable()):
            what = "wait"
        ticket = model.ticket()
        flight = Flight(ticket, client, "wait", gate, ("value", None), "running")
        args: tuple[Any, ...] = (ticket, gate)
        way = "call"
        if what == "array":
            self.seeds += 1
            content = Content(self.seeds, size)
            flight.result = content.seen
            args = (*args, numbered(content.seed, content.size))
            if size >= PAGE:
                flight.block = model.new_block(client, of_client=True, size=size, holder=f"flight {ticket}")
        elif what == "held":
            hold = self.keepable()[which % len(self.keepable())]
            held = model.holds[hold]
            flight.result = held.content.seen
            args = (*args, self.arrays[hold])
            if _is_shared(held):
                flight.block = model.passed(held, client, by_client=True, holder=f"flight {ticket}")
            if held.block is not None:
                flight.source = held.block
                held.block.holders.add(f"flight {ticket}")
        elif what == "fails":
            way, flight.end = "fails", "e"
            flight.result = ("raised", "builtins.ValueError", "ValueError", f"behind {gate}")
        elif what == "stubborn":
            flight.endpoint, flight.result = "stubborn", ("value", gate)
        elif what == "collect":
            flight.endpoint, way = "stream", "collect"
            flight.result = ("value", [[i, bytes([i]) * 10] for i in range(5)])
            args = (ticket, 3, 10, gate, 2)
        elif what == "add":
            flight.endpoint, flight.key, flight.by, flight.result = "add", "a", 1, ANY_VALUE
            args = (ticket, "a", 1)
        self.begins(f"begin, {what}" + ("" if route == "runs" else " (no server)"))
        self.fly(flight, way, args)

    @precondition(lambda self: self.model.flights or self.model.orphans or self.model.live())
    @rule(number=st.integers(0, GATES - 1))
    def open_gate(self, number: int) -> None:
        self.begins("open a gate")
        self._open(self.gate(number))
        self.gates[number] += 1

    def _open(self, gate: str) -> None:
        self.model.open(gate)
        if self.model.health != "down":
            self.server.open(gate)

    def cancellable(self) -> list[Flight]:
        """Return calls that their callers may cancel."""
        return list(self.model.flights.values())

    @precondition(lambda self: self.cancellable())
    @rule(which=choice)
    def cancel(self, which: int) -> None:
        flights = self.cancellable()
        flight = flights[which % len(flights)]
        real = self.reals[flight.client]
        is_async = self.model.clients[flight.client].kind == "async"
        ended = [flight] if is_async else self.model.flights_of(flight.client)
        if self.model.is_chance(ended):
            return
        self.begins("cancel" if is_async else "stop a client's threads")
        for each in ended:
            self.model.cancel(each, ("cancelled",) if is_async else ("CallStopped",), at_once=not is_async)
        real.stop([self.handles[each.ticket] for each in ended])
        if not is_async:
            self.end_stopped_streams(flight.client)

    def end_stopped_streams(self, client: int) -> None:
        """Take an item of each stream of a stopped client: it ends."""
        for stream in [each for each in self.model.streams.values() if each.client == client]:
            items, end = self.reals[client].take(self.open_streams.pop(stream.ticket), 1)
            assert (items, end) == ([], ("CallStopped",)), (stream, items, end)
            self.model.leave(stream)

    @precondition(lambda self: any(f.endpoint == "wait" and f.place == "running" for f in self.model.flights.values()))
    @rule(which=choice, turns=st.integers(0, 3), first=st.booleans())
    def cancel_while_it_ends(self, which: int, turns: int, first: bool) -> None:
        flights = [
            f
            for f in self.model.flights.values()
            if f.endpoint == "wait" and f.place == "running" and self.model.clients[f.client].kind == "async"
        ]
        if not flights:
            return
        self.begins("cancel while it ends")
        flight = flights[which % len(flights)]
        handle = self.handles[flight.ticket]
        assert flight.gate is not None
        number = int(flight.gate[5])
        if first:
            handle.cancel()
        self.server.open(flight.gate)
        for _ in range(turns):
            self.driver.turn()
        handle.cancel()
        self.model.cancel(flight, ("cancelled",), flight.result, histories=frozenset(["bc", "b" + flight.end]))
        self.model.open(flight.gate)
        self.gates[number] += 1

    # Streams.

    @precondition(lambda self: self.pick(0, running=True) > 0 and len(self.model.streams) < 5)
    @rule(
        which=choice,
        kind=st.sampled_from(["short", "plain", "gated", "endless", "endless"]),
        n=st.integers(1, 8),
        number=st.integers(0, GATES - 1),
        size=st.sampled_from([0, 500, 2000, 40_000]),
    )
    def open_stream(self, which: int, kind: str, n: int, number: int, size: int) -> None:
        model, client = self.model, self.pick(which, running=True)
        if self.is_full(client):
            return
        self.begins(f"open a stream, {kind}")
        gate = self.gate(number) if kind == "gated" else None
        size = size if kind == "endless" else min(size, 2000)
        live = kind in ("gated", "endless")
        ticket = model.ticket("b" if live else "bf")
        n = ENDLESS if kind == "endless" else n
        more = 3 if gate is not None else 0
        model.streams[ticket] = Stream(ticket, client, size, n, gate, more, live, kind == "endless")
        if size >= LARGE:
            self.flooded.add(client)
        name = "plain_stream" if kind == "plain" else "stream"
        self.open_streams[ticket] = self.reals[client].stream(name, (ticket, n, size, gate, more))
        self._take(model.streams[ticket], 1)

    def _take(self, stream: Stream, n: int) -> None:
        """Take n items, or as many as are available."""
        left = stream.there - stream.taken
        n = min(n, left) if stream.live else n
        items, end = self.reals[stream.client].take(self.open_streams[stream.ticket], n)
        assert consecutive(items, stream.taken, stream.size), (stream, [item[0] for item in items])
        assert len(items) == min(n, left), (stream, len(items), end)
        stream.taken += len(items)
        if n > left:
            assert end == ("end",), (stream, end)
            self.model.leave(stream)
            del self.open_streams[stream.ticket]
        else:
            assert end is None, (stream, end)

    @precondition(lambda self: self.model.streams)
    @rule(which=choice, n=st.sampled_from([1, 2, 5, 40, 5000]))
    def take(self, which: int, n: int) -> None:
        self.begins("take from a stream")
        stream = list(self.model.streams.values())[which % len(self.model.streams)]
        self._take(stream, min(n, 100) if stream.size > 2000 else n)

    @precondition(lambda self: self.model.streams)
    @rule(which=choice, drops=st.booleans())
    def leave(self, which: int, drops: bool) -> None:
        self.begins("drop a stream" if drops else "leave a stream")
        stream = list(self.model.streams.values())[which % len(self.model.streams)]
        self.model.leave(stream)
        generator = self.open_streams.pop(stream.ticket)
        if not drops:
            outcome = self.reals[stream.client].leave(generator)
            assert outcome == ("value", None), outcome

    def read_to_the_end(self, real: Real, stream: Stream, *ends: Outcome, partly: bool = False) -> None:
        """Read the rest of a stream whose connection has ended."""
        items, end = real.take(self.open_streams.pop(stream.ticket), 1 << 30)
        assert consecutive(items, stream.taken, stream.size), (stream, [item[0] for item in items])
        assert end is not None
        self.expect(f"the end of {stream}", end, *ends)
        assert stream.taken + len(items) <= stream.there, (stream, len(items))
        if end == ("end",):
            assert stream.taken + len(items) == stream.there, (stream, len(items))

    # Streams to the server.

    @precondition(lambda self: self.pick(0, running=True) > 0)
    @rule(which=choice, what=st.sampled_from(["total", "first", "doubled"]), n=st.integers(0, 5))
    def send_a_stream(self, which: int, what: str, n: int) -> None:
        client = self.pick(which, running=True)
        if self.is_full(client):
            return
        self.begins(f"send a stream, {what}")
        ticket, numbers = self.model.ticket("bf"), list(range(10, 20))
        match what:
            case "total":
                self.call(client, "call", "total", (ticket, numbers), ("value", sum(numbers)))
            case "first":
                self.call(client, "call", "first", (ticket, n + 1, numbers), ("value", numbers[: n + 1]))
            case _:
                self.call(client, "collect", "doubled", (ticket, numbers), ("value", [2 * i for i in numbers]))

    def feeders(self) -> list[int]:
        """Return clients that may send a stream item by item."""
        clients = self.model.clients
        return [c for c in clients if clients[c].kind == "async" and self.model.route(c) in ("runs", "waits")]

    @precondition(lambda self: self.feeders() and len(self.sources) < 4)
    @rule(which=choice)
    def begin_to_send(self, which: int) -> None:
        model, clients = self.model, self.feeders()
        self.begins("begin to send a stream")
        client = clients[which % len(clients)]
        ticket = model.ticket()
        source = self.sources[ticket] = Source()
        flight = Flight(ticket, client, "total", f"end {ticket}", ("value", 0), "running", numbers=[])
        self.fly(flight, "call", (ticket, source.items()))

    def feeding(self) -> list[Flight]:
        """Return the unfinished calls with streams to the server."""
        return [f for f in self.model.flights.values() if f.numbers is not None and f.gate not in self.model.open_gates]

    @precondition(lambda self: self.feeding())
    @rule(which=choice, values=st.lists(st.integers(0, 1000), min_size=1, max_size=5))
    def put(self, which: int, values: list[int]) -> None:
        self.begins("put into a stream")
        flight = self.feeding()[which % len(self.feeding())]
        assert flight.numbers is not None
        flight.numbers += values
        flight.result = ("value", sum(flight.numbers))
        for value in values:
            self.sources[flight.ticket].queue.put_nowait(value)

    @precondition(lambda self: self.feeding())
    @rule(which=choice, fails=st.booleans())
    def end_sending(self, which: int, fails: bool) -> None:
        self.begins("break a stream to the server" if fails else "end a stream to the server")
        flight = self.feeding()[which % len(self.feeding())]
        assert flight.gate is not None
        if fails:
            flight.end, flight.result = "e", ("odd", "LookupError('broken')")
        self.sources[flight.ticket].queue.put_nowait(LookupError("broken") if fails else None)
        self.model.open(flight.gate)

    # Arrays.

    def hold(self, array: Any, held: HeldArray) -> None:
        """Hold an array from now on."""
        number = max(self.arrays, default=0) + 1
        self.arrays[number] = array
        self.model.holds[number] = held
        if held.block is not None:
            held.block.holders.add(f"hold {number}")

    @precondition(lambda self: self.pick(0, running=True) > 0 and len(self.arrays) < HOLDS)
    @rule(which=choice, size=sizes, built=st.booleans())
    def receive_array(self, which: int, size: int, built: bool) -> None:
        self.begins("receive an array")
        client = self.pick(which, running=True)
        self.seeds += 1
        content = Content(self.seeds, size)
        ticket = self.model.ticket("bf")
        _, array = self.call(client, "call", "make", (ticket, self.seeds, size, built), content.seen)
        block = None
        if built or size >= PAGE:
            block = self.model.new_block(client, of_client=False, size=size, holder="")
            block.holders.clear()
        self.hold(array, HeldArray(content, block))

    @precondition(lambda self: self.pick(0, running=True) > 0 and len(self.arrays) < HOLDS)
    @rule(which=choice, size=sizes, inverted=st.booleans())
    def build_in_place(self, which: int, size: int, inverted: bool) -> None:
        client = self.pick(which, running=True)
        inverted = inverted and not self.is_full(client)
        self.begins("build in place" + (", and let it be written" if inverted else ""))
        self.seeds += 1
        content = Content(self.seeds, size, inverted)
        array = self.reals[client].client.empty(size, "uint8")
        array[:] = numbered(self.seeds, size)
        block = self.model.new_block(client, of_client=True, size=size, holder="")
        block.holders.clear()
        self.hold(array, HeldArray(content, block))
        if inverted:
            self.call(client, "call", "invert", (self.model.ticket("bf"), array), ("value", None))

    @precondition(lambda self: self.pick(0, running=True) > 0 and any(self.keepable()))
    @rule(which=choice, array=choice, name=st.sampled_from("xyz"))
    def let_the_server_keep(self, which: int, array: int, name: str) -> None:
        self.begins("let the server keep an array")
        model, client = self.model, self.pick(which, running=True)
        hold = self.keepable()[array % len(self.keepable())]
        held = model.holds[hold]
        block = model.passed(held, client, by_client=True, holder=f"kept {name}") if _is_shared(held) else None
        if name in model.kept and model.kept[name].block is not block:
            model.let_go(model.kept[name].block, f"kept {name}")
        model.kept[name] = HeldArray(held.content, block)
        self.call(client, "call", "keep", (model.ticket("bf"), name, self.arrays[hold]), ("value", held.content.sum))

    def keepable(self) -> list[int]:
        """Return arrays that are passed unchanged."""
        return [number for number, held in self.model.holds.items() if not held.content.narrow]

    @precondition(lambda self: self.pick(0, running=True) > 0 and self.model.kept)
    @rule(which=choice, name=choice, forgets=st.booleans())
    def fetch_what_is_kept(self, which: int, name: int, forgets: bool) -> None:
        model, client = self.model, self.pick(which, running=True)
        key = sorted(model.kept)[name % len(model.kept)]
        held = model.kept[key]
        if forgets or len(self.arrays) >= HOLDS:
            self.begins("let the server forget an array")
            self.call(client, "call", "forget", (model.ticket("bf"), key), ("value", None))
            model.let_go(held.block, f"kept {key}")
            del model.kept[key]
            return
        self.begins("fetch what the server keeps")
        block = model.passed(held, client, by_client=False, holder="") if _is_shared(held) else None
        if block is not None:
            block.holders.discard("")
        _, array = self.call(client, "call", "give", (model.ticket("bf"), key), held.content.seen)
        self.hold(array, HeldArray(held.content, block))

    @precondition(lambda self: self.arrays)
    @rule(which=choice, how=st.sampled_from(["drop", "drop", "narrow"]))
    def let_go(self, which: int, how: str) -> None:
        number = sorted(self.arrays)[which % len(self.arrays)]
        held = self.model.holds[number]
        if how == "narrow" and not held.content.narrow:
            self.begins("keep a part of an array")
            self.arrays[number] = self.arrays[number][10:][::2]
            content = Content(held.content.seed, held.content.size, held.content.inverted, narrow=True)
            self.model.holds[number] = HeldArray(content, held.block)
            return
        self.begins("let an array go")
        self.model.let_go(held.block, f"hold {number}")
        del self.model.holds[number], self.arrays[number]

    # The server.

    @precondition(lambda self: _is_mature(self) and (self.model.in_flight or self.model.streams))
    @rule()
    def drain(self) -> None:
        self.begins("drain")
        self.server.command("drain")
        self.model.health = "draining"
        if self.model.in_flight:
            assert self.driver.until(lambda: (self.server.state() or {"health": None})["health"] == "draining")
        for number, client in self.model.clients.items():
            if client.reconnect:  # Otherwise the call might die with this server.
                assert self.driver.until(lambda number=number: not self.reals[number].is_ready())  # type: ignore[misc]

    @precondition(lambda self: _is_mature(self) or self.model.health == "draining")
    @rule()
    def kill(self) -> None:
        self.begins("kill" if _serves(self) else "kill while it drains")
        unsent = self.unsent()
        self.server.kill()
        self.ended("killed", unsent)

    @precondition(_is_mature)
    @rule()
    def kill_and_call_at_once(self) -> None:
        """Clients call before they learn of the death; the next server starts at once."""
        self.begins("kill, and call at once")
        unsent = self.unsent()
        self.server.kill()
        calls = {}
        for number, real in self.reals.items():
            if self.model.route(number) != "runs":
                continue
            ticket = self.model.ticket("")
            calls[number] = ticket, real.begin("call", "fail", (ticket, "ValueError", "text"), {})
        self.ended("killed", unsent)
        self.restart()
        for number, (ticket, handle) in calls.items():
            outcome = self.driver.result(handle)
            if self.model.clients[number].reconnect and outcome[0] == "raised":
                self.model.histories[ticket] = frozenset(["be"])
            else:
                self.expect(f"a call of client {number} after the death", outcome, LOST, NOT_BEGUN)

    @precondition(_is_mature)
    @rule()
    def stop(self) -> None:
        self.begins("stop")
        unsent = self.unsent()
        self.server.command("stop")
        self.ended("stopped", unsent)

    def unsent(self) -> bool:
        """Return True if frames wait at the server for its clients to read: they are lost with the server."""
        real = self.server.state()
        assert real is not None
        return bool(real["unsent"])

    def ended(self, how: Literal["killed", "stopped", "drained"], unsent: bool = False) -> None:
        """Wait for the end of the server, and until all clients know of it."""

        def is_over() -> bool:
            if how == "drained":  # The server waits until its answers are read.
                for real in self.reals.values():
                    real.is_ready()
            return self.server.state() is None

        assert self.driver.until(is_over), f"a server that is {how} does not end"
        assert self.server.code == (-9 if how == "killed" else 0), f"a server that was {how}: {self.server.code}"
        streams = self.model.end(how)
        for number, real in self.reals.items():
            assert self.driver.until(real.hears_of_the_end), f"client {number} does not hear of the end"
        for stream, was_over in streams:
            ends = [*([("end",)] if was_over else []), *([LOST] if unsent or not was_over else [])]
            self.read_to_the_end(self.reals[stream.client], stream, *ends)

    @precondition(lambda self: self.model.health == "down")
    @rule()
    def serve_again(self) -> None:
        self.begins("serve again")
        self.restart()

    def restart(self) -> None:
        """Start the next server."""
        self.age = 0
        self.server = self.nursery.start(self.server_loop)
        for flight in self.model.flights.values():
            if flight.gate in self.model.open_gates:  # The gate was opened while there was no server.
                self.server.open(flight.gate)
        self.model.serve()
        for number, client in self.model.clients.items():
            if client.reconnect:
                self.expect(f"client {number} comes to the next server", self.reals[number].notice(), ("value", None))

    # The comparison.

    @invariant()
    def alike(self) -> None:
        self.settle()
        self.sound = True

    def settle(self) -> None:
        """Wait until reality matches the model."""
        self.model.refill(MAX_PER_CONNECTION)
        if self.model.health == "draining" and not self.model.in_flight and not self.model.waiting:
            self.ended("drained")
        began = time.monotonic()
        while differences := self.differences():
            if time.monotonic() - began > _patience[0]:
                _patience[0] = _patience[1]
                raise AssertionError("\n".join(["the model and reality differ:", *differences]))
            self.driver.turn(0.001)

    def differences(self) -> list[str]:
        """Return the differences between the model and reality."""
        return [*self._answers(), *self._handlers(), *self._state(), *self._memory()]

    def settle_outcomes(self) -> None:
        """Wait for the end of the calls that have ended in the model."""
        assert self.driver.until(lambda: not self._answers()), self._answers()

    def _answers(self) -> list[str]:
        found = []
        self.driver.turn()
        for ticket in list(self.model.outcomes):
            handle = self.handles[ticket]
            if not handle.done():
                found.append(f"call {ticket} should have ended: {self.model.outcomes[ticket]}")
                continue
            self.expect(f"call {ticket}", handle.outcome()[0], *self.model.outcomes.pop(ticket))
            del self.handles[ticket]
            source = self.sources.pop(ticket, None)
            if source is not None and source.begun and not source.closed:
                found.append(f"the stream of call {ticket} to the server was not closed")
        for ticket in self.model.flights:
            if self.handles[ticket].done():
                found.append(f"call {ticket} should be under way: {self.handles[ticket].outcome()[0]}")
        return found

    def _handlers(self) -> list[str]:
        for ticket, event in self.nursery.new_events():
            history = self.journal.get(ticket, "")
            if not (event == history[-1:] == "s"):
                self.journal[ticket] = history + event
        histories = self.model.histories
        return [
            f"the handler of call {ticket} should have done {set(allowed)}, and did {self.journal.get(ticket, '')!r}"
            for ticket, allowed in histories.items()
            if self.journal.get(ticket, "") not in allowed
        ] + [f"call {ticket} is unknown" for ticket in self.journal if ticket not in histories]

    def _state(self) -> list[str]:
        model = self.model
        real = self.server.state()
        if real is None or model.health == "down":
            return [] if real is None and model.health == "down" else [f"server: {model.health}, and it is {real}"]
        expected: dict[str, Any] = {
            "health": model.health,
            "in flight": model.in_flight,
            "waiting": model.waiting,
            "connections": sum(map(model.is_connected, model.clients)),
            "store": model.store,
            "sums": model.sums,
            "kept": {name: held.content.sum for name, held in model.kept.items()},
            "lent": sum(model.memory(c, of_client=False) for c in model.clients if model.is_connected(c)),
            "failed one way": model.failed_one_way,
            "complaints": [],
        }
        connected = [client for client in model.clients if model.is_connected(client)]
        if any(client in self.flooded or self.reals[client].memory()[1] for client in connected):
            # Large items in flight occupy memory too, and so do unread frames in the ring.
            expected["lent"] = max(expected["lent"], real["lent"])
        return [
            f"{what}: expected {expected[what]}, got {real[what]}" for what in expected if real[what] != expected[what]
        ]

    def _memory(self) -> list[str]:
        found = []
        for number, array in self.arrays.items():
            if sum_of(array) != self.model.holds[number].content.sum:
                found.append(f"array {number} has changed: {self.model.holds[number]}")
        for number in self.model.clients:
            if self.model.is_connected(number) and _serves(self):
                expected, (real, unread) = self.model.memory(number, of_client=True), self.reals[number].memory()
                # The notice of a returned loan may stand behind frames that the client leaves unread.
                if real < expected or (real > expected and not unread):
                    found.append(f"client {number} should have {expected} bytes in use, and has {real}")
        return found

    # The end.

    def teardown(self) -> None:
        if not self.sound:
            self.clear_away()
            return
        self.sound = False
        try:
            if any(map(self.is_close_chance, self.reals)):
                for number in range(GATES):
                    self._open(self.gate(number))
                self.settle()
            for number in sorted(self.reals):
                self._close(number)
            self.settle()
            if self.model.health != "down":
                if self.model.health == "serving":
                    self.server.command("stop")
                    self.ended("stopped")
                else:
                    self.server.kill()
                    self.ended("killed")
            self.settle()
            self.sound = True
        finally:
            if not self.sound:
                self.clear_away()
        self.arrays.clear()
        self.handles.clear()
        left = self.driver.close()
        assert not left, left
        gc.collect()
        end = time.monotonic() + _patience[0]
        while (now := (_descriptors(), extents_mapped())) != self.before:
            assert time.monotonic() < end, f"descriptors and extents: {self.before} before, {now} after"
            time.sleep(0.001)

    def clear_away(self) -> None:
        """Close everything after a difference, regardless of the state."""
        self.server.kill()
        self.arrays.clear()
        for real in self.reals.values():
            real.close()
        for handle in self.handles.values():
            handle.cancel()
        self.handles.clear()
        self.open_streams.clear()
        self.driver.turn()
        self.driver.close()


#: Bytes from which on each array lies in shared memory.
PAGE = 4096
#: Bytes from which on a bytes object lies in shared memory.
LARGE = 32768


def _is_shared(held: HeldArray) -> bool:
    return held.content.size >= PAGE or held.block is not None


def _endpoint_of(flight: Flight) -> str:
    return flight.endpoint
