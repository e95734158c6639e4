"""Frames as a stream of bytes in messages: whatever their sizes and NATS's, the same frames come out in order."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import deque
from typing import Any

import nats as nats_py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmrpc import _core
from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.streams import credit as credits
from shmrpc.streams.credit import ReceiveWindow
from shmrpc.transport.connection import CloseReason
from shmrpc.transport.errors import Backlog, ChannelError, Oversize
from shmrpc.transport.nats.link import guarded_client, heartbeats
from shmrpc.transport.nats.link.heartbeats import Heartbeats
from shmrpc.transport.nats.messages import Message
from shmrpc.transport.nats.pipe import pipe as pipes
from shmrpc.transport.nats.pipe.early_events import EarlyEvents
from shmrpc.transport.nats.pipe.frame_reader import FrameLimits
from shmrpc.transport.nats.pipe.partial_frame import PartialFrame
from shmrpc.transport.nats.pipe.pipe import Pipe
from shmrpc.transport.nats.pipe.round_trip import MAX_EXTRA
from shmrpc.transport.nats.pipe.window_budget import BUDGET, MIN_WINDOW, WINDOW, WindowBudget
from shmrpc.transport.queued_inbox import ScheduledDelivery
from shmrpc.wire import control, frames
from shmrpc.wire.codec import Body

LIMITS = FrameLimits(1 << 20, 1 << 24)


class OwnComplaints:
    """The words for what NATS has lost."""

    def describe_loss(self) -> str:
        return "it was dropped"


class OwnLink:
    """A link without NATS: what a pipe wants to say waits until it is asked for."""

    heartbeat = 2.0
    is_open = True

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.speakers: deque[Pipe] = deque()
        self.count = 0
        self.budget = WindowBudget()
        self.tasks: list[asyncio.Task[Any]] = []
        self.describe_loss = OwnComplaints().describe_loss

    def add(self, _: Pipe) -> tuple[str, str]:
        self.count += 1
        return f"shmrpc.to.any.own{id(self)}.{self.count}", f"shmrpc.to.any.own{id(self)}.notices{self.count}"

    def remove(self, pipe: Pipe) -> None:
        pass

    def schedule_send(self, pipe: Pipe) -> None:
        pipe.is_queued = True
        self.speakers.append(pipe)

    def run(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def flush(self) -> bool:
        return True

    def describe_loop_stall(self) -> str:
        return ""


class Side:
    """A pipe, and what came out of it."""

    def __init__(self, piece: int) -> None:
        self.link = OwnLink(piece)
        self.pipe = Pipe(self.link, LIMITS)  # type: ignore[arg-type]
        self.came: list[tuple[int, int, Body] | Message | ShmrpcError] = []
        self.end: CloseReason | None = None
        self.pipe.listen(
            lambda opcode, call, body, _: self.came.append((opcode, call, body)), self.came.append, self.over
        )

    def over(self, end: CloseReason) -> None:
        self.end = end
        self.came.append(end.error)

    def messages(self) -> list[bytes]:
        """Return the messages that this side sends now."""
        said = []
        while self.link.speakers:
            self.link.speakers.popleft().is_queued = False
            while (message := self.pipe.next_message()) is not None:
                said.append(message)
                self.pipe.on_sent()
        return said


async def pair(piece: int = 1 << 17) -> tuple[Side, Side]:
    one, other = Side(piece), Side(piece)
    for side, peer in ((one, other), (other, one)):
        side.pipe.set_peer(peer.pipe.subject, peer.pipe.proof, WINDOW)
    await asyncio.sleep(0)
    return one, other


def exchange(one: Side, other: Side) -> None:
    """Deliver messages in both directions until neither side sends more."""
    said = True
    while said:
        said = False
        for side, peer in ((one, other), (other, one)):
            for message in side.messages():
                assert len(message) <= side.link.piece + 1024
                peer.pipe.receive(message)
                said = True


def plain(body: Body) -> tuple[bytes, list[bytes]]:
    return (body, []) if isinstance(body, bytes) else (body.body, [bytes(each) for each in body.buffers])


_sizes = st.one_of(st.integers(0, 50), st.integers(900, 1100), st.integers(15_000, 17_000), st.integers(0, 70_000))
_bodies = st.one_of(
    _sizes.map(bytes),
    st.tuples(_sizes, st.lists(_sizes, max_size=6)).map(lambda some: _core.Parcel(bytes(some[0]), map(bytes, some[1]))),
)


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(st.tuples(st.booleans(), _bodies), max_size=12), piece=st.sampled_from([1024, 5000, 1 << 17]))
def test_every_frame_arrives_unchanged(bodies: list[tuple[bool, Body]], piece: int) -> None:
    async def main() -> None:
        one, other = await pair(piece)
        for number, (way, body) in enumerate(bodies, 1):
            (one if way else other).pipe.send(frames.CALL, number, body)
        exchange(one, other)
        for side, sent in ((other, True), (one, False)):
            expected = [
                (frames.CALL, number, plain(body)) for number, (way, body) in enumerate(bodies, 1) if way == sent
            ]
            came = [(each[0], each[1], plain(each[2])) for each in side.came if isinstance(each, tuple)]
            assert came == expected
            assert len(side.came) == len(came)

    asyncio.run(main())


#: The errors with which a connection ends when its bytes are wrong.
_ENDS = (RemoteProtocolError, ConnectionLost)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200), place=st.integers(0, 300))
def test_bytes_that_were_changed_end_the_connection_or_are_a_frame_within_the_limits(data: bytes, place: int) -> None:
    async def main() -> None:
        one, other = await pair(1024)
        one.pipe.send(frames.CALL, 1, _core.Parcel(b"x" * 100, [b"y" * 100]))
        (message,) = one.messages()
        changed = message[:place] + data + message[place + len(data) :]
        other.pipe.receive(changed)
        assert other.pipe.is_open or (other.end is not None and isinstance(other.end.error, _ENDS))
        for each in other.came:
            if isinstance(each, tuple):
                assert sum(map(len, plain(each[2])[1])) <= LIMITS.max_memory

    asyncio.run(main())


async def test_a_lost_message_ends_the_connection() -> None:
    one, other = await pair()
    for number in (1, 2):
        one.pipe.send(frames.CALL, number, b"")
        messages = one.messages()
    other.pipe.receive(messages[0])
    assert other.end is not None and "NATS lost 1 messages from the other side: it was dropped" in str(other.end.error)
    assert not other.pipe.is_open


async def test_a_sender_waits_behind_the_window_and_goes_on_when_told() -> None:
    one, other = await pair()
    for number in range(1, 100):
        has_room = one.pipe.send(frames.CALL, number, bytes(100_000))
    assert not has_room
    waiting = asyncio.create_task(one.pipe.wait_for_room())
    first = one.messages()
    assert WINDOW <= sum(map(len, first)) < WINDOW + (1 << 18)
    await asyncio.sleep(0)
    assert not waiting.done()
    for message in first:
        other.pipe.receive(message)
    exchange(one, other)
    await waiting
    assert [each[1] for each in other.came if isinstance(each, tuple)] == [*range(1, 100)]


@pytest.mark.parametrize(("unheard", "reached"), [(1, 3), (2, 2), (4, 0), (9, 0)])
async def test_calls_in_undelivered_messages_were_not_executed(unheard: int, reached: int) -> None:
    one, _ = await pair()
    for number in range(1, 5):
        one.pipe.send(frames.CALL, number, b"")
        one.messages()
    for _ in range(unheard):
        one.pipe.receive_notice(b"", is_undelivered=True)
    await asyncio.gather(*one.link.tasks)
    assert one.end is not None and one.end.reached == reached


async def test_calls_that_still_wait_when_the_connection_ends_were_not_executed() -> None:
    one, _ = await pair()
    one.pipe.send(frames.CALL, 1, b"")
    one.messages()
    one.pipe.send(frames.CALL, 2, b"")
    one.pipe.end(ConnectionLost("the way is cut"))
    assert one.end is not None and one.end.reached == 1
    with pytest.raises(ChannelError):
        one.pipe.send(frames.CALL, 3, b"")


async def test_a_frame_that_is_too_large_is_refused_before_anything_is_sent() -> None:
    one, _ = await pair()
    with pytest.raises(Oversize):
        one.pipe.send(frames.CALL, 1, bytes(LIMITS.max_frame + 1))
    with pytest.raises(Oversize, match="max_memory=16,777,216"):
        one.pipe.send(frames.CALL, 1, _core.Parcel(b"", [bytes(LIMITS.max_memory + 1)]))
    assert one.messages() == []
    one.pipe.send(frames.CALL, 1, b"")  # The connection goes on.
    with pytest.raises(Backlog, match="and it reads nothing"):
        for _ in range(100):
            one.pipe.send(frames.CALL, 1, bytes(LIMITS.max_frame))


async def test_a_goodbye_comes_behind_what_was_sent_before() -> None:
    one, other = await pair(1024)
    one.pipe.send(frames.CALL, 1, bytes(50_000))
    one.pipe.send_message(control.Goodbye("enough"))
    one.pipe.finish()
    assert one.pipe.is_open
    exchange(one, other)
    assert not one.pipe.is_open and one.pipe.closed.done()
    assert [type(each) for each in other.came] == [tuple, control.Goodbye]


@pytest.mark.parametrize("error", [KeyboardInterrupt("a signal"), RemoteProtocolError("a broken rule")])
async def test_an_exception_loses_no_other_event_from_before_the_listener(error: BaseException) -> None:
    early, came = EarlyEvents(), list[str]()
    early.keep(control.GoAway())
    early.keep_frame(frames.CALL, 1, b"body", 0)
    early.keep(CloseReason(ConnectionLost("the end")))

    def fail(_: Message) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        early.deliver(lambda *frame: came.append("frame"), fail, lambda end: came.append(str(end.error)))
    assert came == ["frame", "the end"]


async def test_mail_that_is_hurried_is_delivered_once_and_at_once() -> None:
    delivered: list[int] = []
    mail = ScheduledDelivery(lambda: delivered.append(len(delivered)))
    mail.flush()
    assert delivered == []
    mail.schedule()
    mail.flush()
    assert delivered == [0]
    await asyncio.sleep(0)
    assert delivered == [0]
    mail.schedule()
    await asyncio.sleep(0)
    assert delivered == [0, 1]


async def test_a_number_that_cannot_be_is_a_lie_and_not_a_loss() -> None:
    one, _ = await pair()
    one.pipe.receive(one.pipe.proof + b"\xff" * 40)
    assert isinstance(one.came[-1], RemoteProtocolError) and "1 was expected" in str(one.came[-1])
    one, _ = await pair()
    one.pipe.receive(one.pipe.proof + struct.pack("<QQQQ", WINDOW, 0, 0, 0))
    assert isinstance(one.came[-1], ConnectionLost) and "lost 4,194,303 messages" in str(one.came[-1])


async def test_messages_without_the_proof_of_the_connection_are_dropped() -> None:
    one, other = await pair()
    for rubbish in (b"", b"rubbish of any length", one.pipe.proof[:-1] + b"x" * 33):
        one.pipe.receive(rubbish)
    other.pipe.send(frames.CALL, 1, b"body")
    exchange(one, other)
    assert one.came == [(frames.CALL, 1, b"body")]


async def test_an_empty_message_does_not_count_as_no_responders() -> None:
    one, other = await pair()
    for data in (b"", b"?", one.pipe.proof, other.pipe.proof[:-1]):
        one.pipe.receive_notice(data, is_undelivered=False)
    one.pipe.receive(b"")
    assert one.came == [] and not one.link.tasks
    one.pipe.receive_notice(other.pipe.proof, is_undelivered=False)  # The peer's process has forgotten the connection.
    await asyncio.gather(*one.link.tasks)
    assert isinstance(one.came[-1], ConnectionLost)


async def test_an_idle_connection_forgets_sent_messages_once_they_have_arrived() -> None:
    one, other = await pair()
    for _ in range(100):
        one.pipe.send_heartbeat()
        other.pipe.send_heartbeat()
        exchange(one, other)
    assert len(one.pipe._queue.unacknowledged) <= 2


class Clock:
    """Stands in for the module time, and for a loop's timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.call: tuple[float, Any] | None = None

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Any) -> Clock:
        self.call = self.now + delay, call
        return self

    def cancel(self) -> None:
        self.call = None


class Ticking(OwnLink):
    """A link whose looks at its connections are the real ones."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(1 << 17)
        self.clock = clock
        self.pipes: set[Pipe] = set()
        self.beats = Heartbeats(self.pipes, self.heartbeat, self.budget, clock)  # type: ignore[arg-type]

    def add(self, pipe: Pipe) -> tuple[str, str]:
        self.pipes.add(pipe)
        return super().add(pipe)

    def remove(self, pipe: Pipe) -> None:
        self.pipes.discard(pipe)


async def two_that_tick(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Clock, Side, Side]:
    """Two sides, of which each has a clock for when it looks."""
    clocks = Clock(), Clock()
    sides, looks = [], []
    for clock in clocks:
        monkeypatch.setattr(heartbeats, "time", clock)
        monkeypatch.setattr(pipes, "time", clock)
        side = Side(1 << 17)
        ticking = side.link = Ticking(clock)
        looks.append(ticking.beats.begin)
        side.pipe = Pipe(ticking, LIMITS)  # type: ignore[arg-type]
        side.pipe.listen(lambda *_: None, side.came.append, side.over)
        sides.append(side)
    one, other = sides
    one.pipe.set_peer(other.pipe.subject, other.pipe.proof, WINDOW)
    other.pipe.set_peer(one.pipe.subject, one.pipe.proof, WINDOW)
    await asyncio.sleep(0)
    for look in looks:
        look()
    return *clocks, one, other


def live(monkeypatch: pytest.MonkeyPatch, until: float, *living: tuple[Clock, Side], peers: dict[int, Side]) -> int:
    """Lets time go on until then for these; how many messages were sent. Those of others wait for them."""
    sent = 0
    while True:
        clock, side = min(living, key=lambda each: each[0].call[0] if each[0].call else until)
        if clock.call is None or clock.call[0] >= until:
            break
        now, look = clock.call
        for each, _ in living:
            each.now = now
        monkeypatch.setattr(heartbeats, "time", clock)
        monkeypatch.setattr(pipes, "time", clock)
        look()
        for message in side.messages():
            sent += 1
            peers[id(side)].pipe.receive(message)
    for each, _ in living:
        each.now = until
    return sent


async def test_an_idle_connection_beats_each_fifth_of_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, one, other = await two_that_tick(monkeypatch)
    both, peers = ((first, one), (second, other)), {id(one): other, id(other): one}
    sent = live(monkeypatch, 1010.0, *both, peers=peers)
    assert 40 <= sent <= 60  # 10 s are five heartbeats of two sides.
    assert one.end is None and other.end is None


@pytest.mark.parametrize("phase", [0.0, 0.11, 0.2, 0.37])
async def test_a_standstill_of_three_quarters_of_the_heartbeat_is_survived_and_a_whole_one_is_not(
    monkeypatch: pytest.MonkeyPatch, phase: float
) -> None:
    first, second, one, other = await two_that_tick(monkeypatch)
    both, peers = ((first, one), (second, other)), {id(one): other, id(other): one}
    live(monkeypatch, 1010.0 + phase, *both, peers=peers)
    live(monkeypatch, 1011.5 + phase, (first, one), peers=peers)  # The other side is stopped for 1.5 s of 2.
    live(monkeypatch, 1015.0, *both, peers=peers)
    assert one.end is None and other.end is None
    live(monkeypatch, 1017.0, (first, one), peers=peers)
    assert one.end is not None and "has said nothing for" in str(one.end.error)


def test_all_windows_together_stay_within_the_budget_and_idle_ones_give_theirs_back() -> None:
    budget = WindowBudget()
    windows = [budget.join() for _ in range(300)]
    assert sum(windows) <= BUDGET + 300 * MIN_WINDOW
    windows = [budget.change(window, budget.share) for window in windows]
    assert sum(windows) <= BUDGET // 2
    busy = 0
    for _ in range(10):
        busy = budget.change(busy or windows[0], 2 * (busy or windows[0]))
    assert busy == WINDOW
    for window in [busy, *windows[1:]]:
        budget.leave(window)
    assert budget.join() == WINDOW


async def test_many_senders_together_have_no_more_on_the_way_than_nats_keeps() -> None:
    link = OwnLink(1 << 17)
    received, on_the_way = [], 0
    for _ in range(20):
        here, there = Pipe(link, LIMITS), Side(1 << 17)  # type: ignore[arg-type]
        here.set_peer(there.pipe.subject, there.pipe.proof, WINDOW)
        there.pipe.set_peer(here.subject, here.proof)
        here.send_heartbeat()
        message = here.next_message()
        assert message is not None
        there.pipe.receive(message)
        for number in range(1, 12):
            there.pipe.send(frames.CALL, number, bytes(900_000))
        on_the_way += sum(map(len, there.messages()))
        received.append(here)
    assert on_the_way < 40 << 20


def test_a_body_in_one_byte_messages_is_kept_in_one_piece() -> None:
    partial = PartialFrame(2, 1, 10_000, 0, 1 << 20)
    for _ in range(10_000):
        assert partial.fill(memoryview(b"x")) == 1
    assert partial.is_complete and partial.body() == b"x" * 10_000
    assert sum(len(parts) for parts in partial._parts) == 1


async def test_a_stream_has_more_credit_over_a_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for round_trip, least, most in ((0.0002, 0, 20_000), (0.02, 1 << 20, 2 << 20), (1, MAX_EXTRA, MAX_EXTRA)):
        clock = Clock()
        monkeypatch.setattr(pipes, "time", clock)
        one, other = await pair()
        for number in range(1, 20):
            one.pipe.send(frames.CALL, number, b"")
            for message in one.messages():
                other.pipe.receive(message)
            clock.now += round_trip
            other.pipe.send(frames.RESULT, number, b"")
            for message in other.messages():
                one.pipe.receive(message)
        assert least <= one.pipe.extra_credit() <= most


def test_extra_credit_is_given_once() -> None:
    extra = [0]
    window = ReceiveWindow(extra=lambda: extra[0])
    assert window.consume(credits.WORTH_GRANTING) == credits.WORTH_GRANTING
    extra[0] = 1 << 20
    assert window.consume(credits.WORTH_GRANTING) == credits.WORTH_GRANTING + (1 << 20)
    assert window.consume(credits.WORTH_GRANTING) == credits.WORTH_GRANTING
    window.receive(1 << 20)
    window.receive(1)


class Heard:
    """Stands in for NATS's client behind its parser."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def _process_msg(self, *message: Any) -> None:
        self.heard.append(message)

    async def _process_ping(self) -> None:
        self.heard.append("ping")

    async def _process_err(self, words: str) -> None:
        self.heard.append(words)


NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_messages_of_nats_are_parsed_however_they_are_split(cuts: list[int]) -> None:
    said = (
        b"MSG a.b 1 5\r\nhello\r\nPING\r\n"
        b"MSG a.b 1 reply.to 4\r\n\r\n\r\n\r\n"
        b"HMSG a.b 2 16 16\r\n" + NO_RESPONDERS + b"\r\n"
        b"HMSG a.b 2 reply.to 16 16\r\n" + NO_RESPONDERS + b"\r\n"
        b"HMSG a.b 2 8 10\r\nNATS/1.0xy\r\n"
        b"MSG a\xff 2 1\r\nx\r\nMSG a 3 \xff 1\r\nx\r\nMSG a 3 b\x0bc 0\r\n\r\n"
        b"-ERR 'Permissions Violation for Publish to \"x\"'\r\nPING\r\n"
    )
    places = sorted({0, len(said), *(min(cut, len(said)) for cut in cuts)})

    async def main() -> list[Any]:
        heard = Heard()
        parser = guarded_client.parser_class()(heard)
        for start, end in itertools.pairwise(places):
            await parser.parse(said[start:end])
        return heard.heard

    assert asyncio.run(main()) == [
        (1, b"a.b", b"", b"hello", None),
        "ping",
        (1, b"a.b", b"reply.to", b"\r\n\r\n", None),
        (2, b"a.b", b"", b"", NO_RESPONDERS),
        (2, b"a.b", b"reply.to", b"", None),  # NATS gives its word no reply subject: this is another program's.
        (2, b"a.b", b"", b"xy", None),
        (3, b"a", b"", b"x", None),
        (3, b"a", b"b\x0bc", b"", None),
        "'permissions violation for publish to \"x\"'",
        "ping",
    ]


@pytest.mark.parametrize(
    "said", [b"MSG a\r\n", b"MSG a x 1\r\n", b"HMSG a 1 9 8\r\n", b"MSG a 1 b c 1\r\n", b"what?\r\n"]
)
async def test_a_line_that_nats_never_sends_ends_the_connection(said: bytes) -> None:
    with pytest.raises(nats_py.errors.ProtocolError):
        await guarded_client.parser_class()(Heard()).parse(said + b"\r\n")
