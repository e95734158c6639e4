"""The benchmark: its figures are what they claim to be, and targets are judged by them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark import fractal_loads, loads, pool_loads, store_work, study_work
from benchmark.durations import Durations
from benchmark.processes import Caller, Rendezvous
from benchmark.questions import (
    acquire,
    bulk,
    contention,
    frame,
    hosts,
    many_clients,
    memory,
    options,
    pool_broadcast,
    pool_fractals,
    pool_map,
    pool_mixed,
    pool_replacement,
    pool_run,
    pool_study,
    pool_submit,
    queue_arrays,
    queue_batches,
    queue_crowd,
    queue_growth,
    queue_hand_over,
    queue_idle,
    queue_single,
    shared_bytes,
    signals,
    startup,
    store_dict,
    store_field,
    store_memory,
    store_messages,
    store_players,
    store_transaction,
    streams,
    topic_arrays,
    topic_batches,
    topic_hand_over,
    topic_readers,
    topic_single,
    topic_study,
)
from benchmark.queue_work import COPIED, IN_PLACE, Follower, Ledger, Part, Stock, check
from benchmark.results import Result
from benchmark.rows import CONFIDENCE, Line, Row, interval, row
from benchmark.run import Run, Trial
from benchmark.subjects import (
    DIRECT,
    FLOORS,
    HOSTS,
    INBOX,
    NEAR_ALONE,
    NEAR_EITHER,
    POOLS,
    QUEUES,
    STORES,
    STUDIED,
    TOPICS,
    Subject,
)
from benchmark.targets import verdicts
from benchmark.work import nested
from shmrpc.server import server
from tests.benchmark.benchmark_form import TINY

SOCKET = "socket, msgpack, uvloop"
#: Questions of rates that are judged by the best rival.
RATES = (contention.NAME, queue_single.NAME, topic_single.NAME, topic_batches.NAME)
UVLOOP, ASYNCIO = "shmrpc, uvloop", "shmrpc, asyncio"


# Times by how often they came.


def times(count: int) -> list[int]:
    chance = random.Random(7)
    return [int(chance.lognormvariate(8, 2)) for _ in range(count)]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_percentiles_are_those_of_the_sorted_times(share: float) -> None:
    known = sorted(times(5_000))
    exact = known[max(0, math.ceil(share * len(known)) - 1)] / 1e3
    assert Durations.of(known).percentile(share) == exact


def test_the_longest_time_stays_as_it_was() -> None:
    made = Durations.of([1_000, 123_457])
    assert made.longest == 123_457
    assert made.percentile(1.0) <= 123.457
    assert list(made.steps())[-1] == (123.457, 1.0)


def test_durations_add_up() -> None:
    one, other = times(300), times(500)[300:]
    together = Durations.of(one) + Durations.of(other)
    assert together == Durations.of(one + other)
    assert len(together) == 500


def test_the_curve_of_durations_rises_to_the_longest() -> None:
    known = times(5_000)
    steps = list(Durations.of(known).steps())
    assert steps == sorted(steps)
    assert len(steps) <= 200
    for time_, share in steps:
        assert share <= sum(each <= time_ * 1e3 for each in known) / len(known) < share + 0.01


def test_no_times_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no durations"):
        Durations().percentile(0.5)


# Rows and their confidence intervals.


def coverage(count: int, skip: int) -> float:
    """Return the probability that the median lies between the figures left when ``skip`` are left out at each end."""
    return 1 - sum(math.comb(count, number) for number in range(skip + 1)) / float(2 ** (count - 1))


@pytest.mark.parametrize("count", range(5, 31))
def test_an_interval_holds_the_median_and_is_no_wider_than_it_must_be(count: int) -> None:
    low, high = interval([float(number) for number in range(count)])
    assert low == count - 1 - high
    assert coverage(count, int(low)) >= CONFIDENCE
    assert coverage(count, int(low) + 1) < CONFIDENCE


@pytest.mark.parametrize("count", range(1, 5))
def test_few_rounds_have_an_interval_from_least_to_most(count: int) -> None:
    figures = [float(number) for number in range(count)]
    random.Random(1).shuffle(figures)
    assert interval(figures) == (0, count - 1)


def result(*microseconds: int, calls: int = 10, seconds: float = 1.0) -> Result:
    return Result(
        calls, seconds, Durations.of([time_ * 1_000 for time_ in microseconds]), cpu=1e-3, extra={"more": 2.0}
    )


def test_a_row_has_the_medians_of_its_rounds() -> None:
    made = row(Line("q"), "s", "ours", [result(10, 20, 30), result(40, 50, 60), result(1, 2, 3)])
    assert made.value == made.p50 == pytest.approx(20, rel=0.01)
    assert made.longest == 60
    assert (made.calls_per_second, made.extra) == (10, {"more": 2})
    assert made.cpu == pytest.approx(100)
    assert made.steps[-1][1] == 1.0


@pytest.mark.parametrize(("lead", "figure"), [("p99", 30), ("rate", 10), ("cpu", 100), ("more", 2)])
def test_a_line_says_which_figure_leads(lead: str, figure: float) -> None:
    made = row(Line("q", lead=lead), "s", "ours", [result(10, 20, 30)])
    assert made.value == pytest.approx(figure, rel=0.01)


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_the_better_row_is_so_many_times_better(higher_is_better: bool) -> None:
    line = Line("q", higher_is_better=higher_is_better)
    one, two = Row(line, "one", "ours", [1.0]), Row(line, "two", "rival", [2.0])
    better, worse = (two, one) if higher_is_better else (one, two)
    assert better.beats(worse)
    assert not worse.beats(better)
    assert (better.times_better(worse), worse.times_better(better)) == (2, 0.5)


# A call counts from when it was due.


class Stalls:
    """Answers at once, but that it stalls once: nothing is answered for so many seconds, or the loop is held."""

    def __init__(self, seconds: float, *, hold_the_loop: bool = False) -> None:
        self._seconds = seconds
        self._hold = hold_the_loop
        self._calls = 0
        self._until = 0.0

    async def add(self, a: int, b: int) -> int:
        self._calls += 1
        if self._calls == 50:
            if self._hold:
                time.sleep(self._seconds)
            self._until = time.monotonic() + self._seconds
        while (left := self._until - time.monotonic()) > 0 and not self._hold:
            await asyncio.sleep(left)
        return a + b


@pytest.mark.parametrize("hold_the_loop", [False, True])
async def test_a_stall_shows_in_every_call_that_was_due_meanwhile(hold_the_loop: bool) -> None:
    caller = Caller(Stalls(0.2, hold_the_loop=hold_the_loop), lambda: None)
    found = await loads.open_loop(caller, seconds=0.5, rate=1_000)
    assert found.calls == 500
    assert found.times is not None
    late = sum(time_ >= 50_000_000 for time_ in found.times.nanoseconds)
    # 150 of the 200 that were due during the stall; a busy machine adds some.
    assert late >= 100


class Slow:
    """Answers calls one by one, each after a while."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def add(self, a: int, b: int) -> int:
        async with self._lock:
            await asyncio.sleep(0.002)
        return a + b


async def test_a_subject_that_cannot_keep_up_is_detected() -> None:
    found = await loads.open_loop(Caller(Slow(), lambda: None), seconds=0.2, rate=2_000)
    assert found.extra["kept up"] < 0.5


# Every item through a queue comes once.


@pytest.mark.parametrize("size", [0, 8, 50])
def test_a_ledger_finds_an_item_that_is_lost_or_doubled(size: int) -> None:
    stock = Stock(2, 10, size)
    one, other = stock.batches(0), stock.batches(1)
    assert len(set(stock.items)) == len(stock.items)
    for put, found in (([*one, *one[:3]], True), ([*one, *one[1:4]], False), ([*one, *one[:2]], False)):
        ledgers = [Ledger(stock), Ledger(stock)]
        for number, batch in enumerate(put):
            # A part of a batch, and what is left of it with the next one.
            ledgers[number % 2].note(batch[:4])
            ledgers[number % 2].note([*batch[4:], *other[0]] if number == 0 else batch[4:])
        batches = [len(one) + 3, 1]
        if found:
            check(stock, batches, [ledger.seen for ledger in ledgers])
        else:
            with pytest.raises(ValueError, match="lost or came twice"):
                check(stock, batches, [ledger.seen for ledger in ledgers])


def test_a_ledger_finds_an_item_that_is_another_or_none() -> None:
    stock = Stock(1, 4, 0)
    with pytest.raises(ValueError, match="after item 0"):
        Ledger(stock).note([0, 1, 3, 2])
    with pytest.raises(KeyError, match="-1"):
        Ledger(stock).note([0, 1, 2, 3, -1])


@pytest.mark.parametrize("size", [0, 50])
def test_a_follower_finds_a_message_that_is_not_the_next(size: int) -> None:
    stock = Stock(1, 10, size)
    follower, batches = Follower(stock), stock.batches(0)
    for batch in (*batches, *batches[:2]):
        # A part of a batch, and what is left of it.
        follower.note(batch[:4])
        follower.note(batch[4:])
    assert follower.count == len(stock.items) + 20
    with pytest.raises(KeyError, match=re.escape(repr(batches[3][0]))):
        follower.note([*batches[2][:5], *batches[3]])
    assert follower.count == len(stock.items) + 25


@pytest.mark.parametrize("step", [1, 7, 50, 64, 1_000])
def test_a_look_at_objects_finds_one_that_is_not_the_next_wherever_they_are_cut(step: int) -> None:
    def looked_at(stream: bytes) -> tuple[int, int]:
        position, found = ctypes.c_uint64(), 0
        for at in range(0, len(stream), step):
            if found := study_work.native().check(stream[at : at + step], len(stream[at : at + step]), position):
                break
        return found, position.value

    batch = study_work.Batch(1_000)
    batch.fill(0)
    stream = bytes(batch.bytes)
    assert looked_at(stream) == (0, 1_000)
    assert looked_at(stream + study_work.Batch.end().bytes) == (1, 1_000)
    assert looked_at(stream[:500] + stream[550:]) == (2, 500)
    assert looked_at(stream[:500] + stream[450:]) == (2, 500)


@pytest.mark.parametrize("lost", [0, 1])
def test_an_increment_that_is_lost_is_found(lost: int) -> None:
    class Forgetful:
        loop = "none"
        place = Rendezvous("/nowhere")

        @contextlib.contextmanager
        def open(self, part: Part) -> Iterator[store_work.Kept]:
            fields = [0] * len(store_work.FIELDS)

            def increment(times: int) -> None:
                fields[:] = [field + times for field in fields]
                fields[-1] -= lost

            yield store_work.Kept(lambda: None, lambda: fields, increment, increment)

    def measured() -> Result:
        return store_work.increments(Caller(Forgetful(), Forgetful), seconds=0.01, writers=1)

    if not lost:
        assert measured().calls % len(store_work.FIELDS) == 0
        return
    with pytest.raises(ValueError, match="times each was changed, and the fields are"):
        measured()


# Subjects that do not answer.


def test_a_rival_that_is_not_installed_is_named_with_how_to() -> None:
    rival = Subject("r", "m:c", "m:s", "none", "none", frozenset(("call",)), needs=("no_such_package",), install="such")
    with Run(TINY, [rival]) as run:
        (made,) = run.line(Line("q"), run.able("call"), "one_after_another")
        assert (made.subject, made.role, made.value) == ("r", "rival", None)
        assert made.note == run.absent["r"] == "not installed: no_such_package (pip install such)"


def test_a_rival_that_does_not_start_says_why() -> None:
    rival = Subject("r", "benchmark.work:add", "benchmark.work:nothing", "none", "none", frozenset(("call",)))
    with Run(TINY, [rival]) as run:
        (made,) = run.line(Line("q"), [rival], "one_after_another")
    assert "nothing" in made.note


def test_a_failing_subject_is_noted_and_the_others_go_on() -> None:
    line = Line("q")
    with Run(TINY, []) as run, run.pairs([DIRECT[0], FLOORS["uvloop"]]) as pairs:
        turns = [
            Trial(pairs[0], "benchmark.loads:no_such_load", {}, "fails"),
            Trial(pairs[1], "benchmark.floors:turn", {}, "goes on"),
        ]
        failed, other = run.turns(line, turns)
    assert failed.note.startswith("failed: AttributeError")
    assert failed.value is None
    assert other.value


# Many clients.


def test_above_eight_clients_only_the_better_rivals_are_asked() -> None:
    line = Line(many_clients.NAME, "8", "rate", "/s", higher_is_better=True)
    rows = [
        Row(line, "ours", "ours", [10.0]),
        Row(line, "best", "rival", [1_000.0]),
        Row(line, "half", "rival", [500.0]),
        Row(line, "less", "rival", [499.0]),
        Row(line, "none", "rival", note="failed"),
        Row(dataclasses.replace(line, case="4"), "less", "rival", [2_000.0]),
    ]
    assert many_clients.going_on(rows) == {"ours", "best", "half"}


# Targets.


def small(own: float) -> list[Row]:
    figures = {UVLOOP: own, ASYNCIO: 1.9, "shmrpc, sync": 1.9, SOCKET: 60.0, "ping-pong of a word": 0.3}
    return [Row(Line("small"), name, "ours", [value]) for name, value in figures.items()]


def test_targets_can_be_missed() -> None:
    met = {verdict.what: verdict.met for verdict in verdicts(small(2.1))}
    assert met == {
        f"small call, p50, {UVLOOP}": False,
        f"small call, p50, {ASYNCIO}": True,
        "sync client, p50": True,
    }


def other_rows(*, good: bool) -> list[Row]:
    """Rows on the one side of targets, or on the other."""

    def made(question: str, case: str, subject: str, value: float, **extra: float) -> Row:
        return Row(Line(question, case), subject, "ours", [value], extra=extra)

    def rival(question: str, case: str, value: float) -> Row:
        line = Line(question, case, higher_is_better=question in RATES)
        return Row(line, f"takes {value}", "rival", [value])

    rate = 10.0 if good else 4.9
    sizes = [
        made(shared_bytes.NAME, f"{way}, {size}", name, value)
        for way in shared_bytes.WAYS
        for size in shared_bytes.SIZES
        for name, value in (("shmrpc.memory", 10), (shared_bytes.FLOOR, 9))
    ]
    if not good:
        sizes[0].rounds = [10.1]
    threads = QUEUES[0].name
    queues = []
    for case, _, _ in queue_batches.cases():
        queues += [
            made(queue_batches.NAME, case, threads, 6e6),
            *(made(queue_batches.NAME, case, f"multiprocessing.{name}", 3e5) for name in ("Queue", "SimpleQueue")),
            *(made(queue_batches.NAME, case, f"multiprocessing.{name}, lists", 1) for name in ("Queue", "SimpleQueue")),
            made(queue_single.NAME, case, threads, 1e6 if good else 1e6 - 1),
            rival(queue_single.NAME, case, 3e5),
        ]
    if not good:
        queues[-7].rounds = [6e6 - 1]
    topic, raw = TOPICS[0].name, STUDIED[0].name
    topics = []
    for kind in queue_batches.KINDS:
        for question, least in ((topic_single.NAME, 1e6), (topic_batches.NAME, 6e6)):
            case = topic_batches.case(kind, 3)
            topics += [made(question, case, topic, least), rival(question, case, 1e5)]
    if not good:
        topics[0].rounds, topics[2].rounds = [1e5], [6e6 - 1]
    for how in (topic_readers.BUSY, topic_readers.ASLEEP):
        topics += [
            made(topic_readers.NAME, topic_readers.case(how, 1), topic, 10),
            made(topic_readers.NAME, topic_readers.case(how, 8), topic, 12 if good else 12.1),
        ]
    for readers, tcp, unix in ((1, 5, 5), (3, 2, 3 if good else 3.4)):
        case = topic_study.case(100_000, readers)
        topics += [
            made(topic_study.NAME, case, raw, rate),
            made(topic_study.NAME, case, STUDIED[1].name, rate / 2),
            made(topic_study.NAME, case, "TCP", tcp),
            made(topic_study.NAME, case, "TCP, epoll", tcp),
            made(topic_study.NAME, case, "UNIX socket", unix),
        ]
    topics += [
        made(topic_study.NAME, topic_study.case(1_000, 3), each.name, rate / 2 if good else rate / 2.1)
        for each in STUDIED
    ]
    struct, dataclass, dict_, _ = (subject.name for subject in STORES)
    objects = "InterProcessPyObjects"
    stores = []
    for ours, shape in ((struct, "list"), (dataclass, "dataclass")):
        stores += [
            made(store_players.NAME, store_players.case(1), ours, 2e6),
            made(store_players.NAME, store_players.case(1), f"{objects} {shape}", 4e5 if good else 4.1e5),
            *(made(store_field.NAME, store_field.added(n), ours, 2e6 if good else 1.9e6) for n in (2, 8)),
            made(store_field.NAME, store_field.ALONE, ours, 5e6 if good else 4.9e6),
            made(store_field.NAME, store_field.BESIDE, ours, 4e6 if good else 3.9e6),
            made(store_transaction.NAME, "", ours, 2 if good else 2.1),
        ]
    for case, least in ((store_dict.GET, 3e6), (store_dict.SET, 1.5e6), (store_dict.INCREMENT, 1e6)):
        stores += [
            made(store_dict.NAME, case, dict_, least),
            made(store_dict.NAME, case, "UltraDict", least / (4 if good else 3.9)),
        ]
    for kind in (store_memory.LIST, store_memory.DICT):
        stores += [
            made(store_memory.NAME, kind, "shmrpc store", 15 if good else 15.1),
            made(store_memory.NAME, kind, store_memory.PLAIN, 10),
        ]
    far = []
    for subject in HOSTS:
        far += [
            made(hosts.NAME, hosts.SMALL, subject.name, 130 if good else 131),
            made(hosts.NAME, hosts.SMALL, f"nats-py, {subject.loop}", 100),
            made(hosts.NAME, hosts.IN_FLIGHT, subject.name, 150 if good else 149),
            made(hosts.NAME, hosts.IN_FLIGHT, f"nats-py, {subject.loop}", 100),
            made(hosts.NAME, hosts.ARRAY, subject.name, 100 if good else 101),
        ]
    far += [
        made(hosts.NAME, hosts.SMALL, "grpc.aio, TCP", 130),
        made(hosts.NAME, hosts.IN_FLIGHT, "grpc.aio, TCP", 75),
        made(hosts.NAME, hosts.ARRAY, "grpc.aio, TCP", 100),
        made(hosts.NAME, hosts.NEAR, NEAR_EITHER.name, 103 if good else 104),
        made(hosts.NAME, hosts.NEAR, NEAR_ALONE.name, 100),
    ]
    stores += [made(store_messages.NAME, "", INBOX.name, rate), made(store_messages.NAME, "", objects, 4.9)]
    pool, executor, cost = POOLS[0].name, "ProcessPoolExecutor", 0.3 if good else 0.31
    painted = {
        fractal_loads.TRANSPORT: 0.01 if good else 0.011,
        fractal_loads.TICKER: 1.9,
    }
    pools = [
        made(pool_run.NAME, "", pool, 3 if good else 3.1),
        made(pool_run.NAME, "", pool_run.CALL, 2),
        made(pool_run.NAME, "", executor, 93),
        made(pool_submit.NAME, "", pool, 2 if good else 2.1),
        made(pool_submit.NAME, "", executor, 42),
        made(pool_map.NAME, "", pool, cost),
        made(pool_map.NAME, "", "joblib", 3.1),
        made(pool_map.NAME, "", "multiprocessing.Pool, whole list", 0.4),
        made(pool_mixed.NAME, "", pool, 1.1 if good else 1.11),
        rival(pool_mixed.NAME, "", 1.2),
        made(pool_mixed.NAME, "", pool_mixed.FLOOR, 1.0),
        made(pool_broadcast.NAME, "1 MiB", pool, 5, **{pool_loads.COPIES: 1.1 if good else 1.2}),
        made(pool_replacement.NAME, "", pool, 50 if good else 51),
        made(pool_fractals.NAME, "", pool, 0.9, **painted),
        *(made(pool_study.NAME, f"table 7: {size:,} ints", "TCP, pickle", 1_000) for size in (100_000, 1_000_000)),
        made(pool_study.NAME, "table 10: array of 100,000", POOLS[0].name, 100),
        made(pool_study.NAME, "table 10: array of 1,000,000", POOLS[0].name, 100 if good else 101),
    ]
    return [
        *sizes,
        *queues,
        *topics,
        *stores,
        *far,
        *pools,
        made(topic_arrays.NAME, topic_arrays.CASE, topic, rate),
        made(topic_arrays.NAME, topic_arrays.CASE, "iceoryx2, to all", 10),
        made(topic_hand_over.NAME, topic_hand_over.AWAKE, topic, 3 if good else 3.1),
        rival(topic_hand_over.NAME, topic_hand_over.AWAKE, 10),
        made(topic_hand_over.NAME, topic_hand_over.ASLEEP, topic, 12 if good else 12.1),
        made(topic_hand_over.NAME, topic_hand_over.ASLEEP, "UNIX socket, to all", 10),
        made(queue_hand_over.NAME, queue_hand_over.AWAKE, threads, 3 if good else 3.1),
        rival(queue_hand_over.NAME, queue_hand_over.AWAKE, 10),
        made(queue_hand_over.NAME, queue_hand_over.ASLEEP, threads, 12 if good else 12.1),
        made(queue_hand_over.NAME, queue_hand_over.ASLEEP, "socket, dealing, uvloop", 10),
        made(queue_arrays.NAME, COPIED, threads, rate),
        made(queue_arrays.NAME, COPIED, "faster-fifo, queue", 5),
        made(queue_arrays.NAME, IN_PLACE, threads, rate),
        made(queue_arrays.NAME, IN_PLACE, "iceoryx2, samples", 10),
        made(queue_crowd.NAME, "batches, 4 to 4", threads, 3e6, least=0.3 if good else 0.29),
        made(queue_crowd.NAME, "batches, 1 to 1", threads, 5e6),
        made(queue_crowd.NAME, "one at a time, 4 to 4", threads, 5e5 if good else 4.9e5, least=0.3),
        made(queue_crowd.NAME, "one at a time, 1 to 1", threads, 1e5),
        made(queue_growth.NAME, "", threads, 5000 if good else 5001),
        made(queue_idle.NAME, "3", threads, 0, **{"CPU ms": 0 if good else 0.1, "wake-ups": 0, "seconds": 10}),
        made(acquire.NAME, acquire.THREADS, "shmrpc.sync.Semaphore", 0.29),
        rival(acquire.NAME, acquire.THREADS, 0.3 if good else 0.29),
        made(acquire.NAME, acquire.LOOPS, "shmrpc.Semaphore, asyncio", 0.6 if good else 0.61),
        rival(acquire.NAME, acquire.LOOPS, 90),
        made(signals.NAME, signals.BUSY, "shmrpc.sync.Signal", 2 if good else 2.1),
        made(signals.NAME, signals.ASLEEP, "shmrpc.sync.Signal", 12 if good else 12.1),
        rival(signals.NAME, signals.ASLEEP, 10),
        rival(signals.NAME, signals.ASLEEP, 20),
        made(contention.NAME, "8 processes", "shmrpc.sync.Semaphore", 200, least=0.3 if good else 0.29),
        rival(contention.NAME, "8 processes", 100),
        rival(contention.NAME, "8 processes", 50),
        made("streams", "", UVLOOP, 500 if good else 499),
        made("streams", "", "socket, msgpack, asyncio", 100),
        made("streams", "", SOCKET, 100),
        made("many-clients", "8", UVLOOP, 150, least=0.11 if good else 0.1),
        made("many-clients", "8", SOCKET, 100),
        made(options.NAME, options.ONE, options.PLAIN, 1),
        made(options.NAME, options.ONE, "under a deadline", 1.29 if good else 1.31),
        made(options.NAME, options.MANY, options.MAPPED, 1e6 if good else 1e6 - 1),
        made("memory", "", UVLOOP, 1, **{memory.SHARED: 140, memory.SERVER: 60, memory.CLIENT: 55 if good else 56}),
        made("payload-bytes", "1,000,000", UVLOOP, 100 if good else 101),
        made("payload-bytes", "1,000,000", "socket, large frames, uvloop", 500),
        made("payload-bytes", "1,000,000", SOCKET, 5000),
        made("bulk", bulk.COPIED, UVLOOP, rate),
        made("bulk", bulk.COPIED, "InterProcessPyObjects", 2.5),
        made("bulk", bulk.COPIED, bulk.FLOOR, 12.5, **{"MB in use": 4.0}),
        made("arrays", "", "64 KB", 10),
        made("arrays", "", "64 MB", 15 if good else 15.1),
        made("frame", "", frame.ALONE, 2000),
        made("frame", "", frame.CALLED, 2020, **{frame.ADDED: 19.9 if good else 20.0}),
        made("frame", "", frame.SPINNING, 2005, **{frame.ADDED: 5.0}),
    ]


@pytest.mark.parametrize("good", [True, False])
def test_targets_are_met_on_one_side_of_a_bound_and_missed_on_the_other(good: bool) -> None:
    judged = verdicts(other_rows(good=good))
    assert len(judged) == 73
    assert {verdict.met for verdict in judged} == {good}, judged


def test_a_target_whose_rival_is_missing_is_not_measured() -> None:
    rows = [each for each in other_rows(good=True) if each.subject != "InterProcessPyObjects"]
    rows.append(Row(Line("bulk", bulk.COPIED), "InterProcessPyObjects", "rival", note="not installed"))
    found = {verdict.target: verdict for verdict in verdicts(rows)}
    missing = found["≥ 2 × InterProcessPyObjects"]
    assert (missing.met, missing.measured) == (None, "InterProcessPyObjects: not installed")
    assert found["≥ 80 % of memcpy"].met is True


def test_the_best_of_no_rivals_is_not_measured() -> None:
    own = Row(Line(signals.NAME, signals.ASLEEP), "shmrpc.sync.Signal", "ours", [1.0])
    rival = Row(Line(signals.NAME, signals.ASLEEP), "UDP", "rival", note="failed")
    assert verdicts([own]) == []
    (verdict,) = verdicts([own, rival])
    assert (verdict.met, verdict.measured) == (None, "UDP: failed")


def test_a_target_whose_question_was_not_asked_is_left_out() -> None:
    assert verdicts([]) == []
    assert verdicts([Row(Line(streams.NAME), UVLOOP, "ours", [1.0])]) == []


def test_the_record_is_of_the_size_that_it_claims() -> None:
    assert 30_000 < len(json.dumps(nested())) < 32_000


def test_compile_sources_writes_the_bytecode_of_servers() -> None:
    cached = Path(importlib.util.cache_from_source(server.__file__))
    cached.unlink(missing_ok=True)
    startup.compile_sources()
    assert cached.stat().st_size > 1000
