"""Queues of many processes: each item is got once, in order, and none is lost when a process dies."""

from __future__ import annotations

import array
import asyncio
import contextlib
import dataclasses
import datetime
import errno
import functools
import gc
import logging
import logging.handlers
import os
import queue as plain_queues
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from shmrpc.objects.turn_queue import TurnQueue
from shmrpc.queues import blocking_queue, queue
from shmrpc.queues.queue_base import ROOM
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually

LONG = 60.0
#: A name that no other run of these tests has.
OURS = f"queue{os.getpid()}"


@pytest.fixture
def q() -> Iterator[shmrpc.sync.Queue]:
    with shmrpc.sync.queue(OURS) as opened:
        yield opened


@dataclasses.dataclass
class Point:
    x: int
    y: float


VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**200,
    1.5,
    "text",
    b"bytes",
    [1, [2, {"three": 3}]],
    {"a": 1, 2: "b"},
    (1, 2),
    {1, 2},
    1 + 2j,
    array.array("d", [1.0, 2.0]),
    "x" * 100_000,
    b"y" * 300_000,
    bytearray(b"z" * 50_000),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}{len(repr(value))}")
def test_a_value_is_got_as_it_was_put(q: shmrpc.sync.Queue, value: Any) -> None:
    q.put(value)
    got = q.get()
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (7, 5), (1000, 100), (1080, 1920, 3)], ids=str)
def test_arrays_arrive_as_they_were(q: shmrpc.sync.Queue, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype("u2")
    q.put({"frame": sent, "n": 1})
    got = q.get()["frame"]
    assert got.dtype == sent.dtype and got.shape == sent.shape and (got == sent).all()
    with q.claim() if q.qsize() else _claimed(q, sent) as c:
        assert (c.value == sent).all()


def _claimed(q: shmrpc.sync.Queue, value: Any) -> shmrpc.Claim:
    q.put(value)
    return q.claim()


def test_an_instance_of_a_class_that_is_not_registered_is_refused(q: shmrpc.sync.Queue) -> None:
    with pytest.raises(shmrpc.EncodeError, match=r"shmrpc\.register\(Point\) on both sides, or send a dict$"):
        q.put(Point(1, 2.0))
    assert q.qsize() == 0


def test_pickles_travel_where_they_were_asked_for() -> None:
    with shmrpc.sync.queue(OURS, codec="pickle") as q:
        q.put(Point(1, 2.0))
        assert q.get() == Point(1, 2.0)


def test_order_is_kept_whatever_the_sizes(q: shmrpc.sync.Queue) -> None:
    sent: list[Any] = []
    for index in range(300):
        value = b"%d" % index * (1 + index % 7 * 3_000)
        sent.append(value)
        if index % 3:
            q.put(value)
        else:
            q.put_many([value, index])
            sent.append(index)
    got: list[Any] = []
    while not q.empty():
        got += q.get_many_nowait(1 + len(got) % 50)
    assert got == sent


def test_a_batch_of_everything_stays_together(q: shmrpc.sync.Queue) -> None:
    batch = [1, np.zeros(100_000), "two", np.ones(5_000), b"x" * 40_000, *range(1_000)]
    q.put_many(iter(batch))
    got: list[Any] = []
    while len(got) < len(batch):
        got += q.get_many(400)
    assert got[0] == 1 and got[2] == "two" and got[5:] == batch[5:]
    assert (got[1] == batch[1]).all() and (got[3] == batch[3]).all()


def test_nothing_at_all_is_put_for_an_empty_batch(q: shmrpc.sync.Queue) -> None:
    q.put_many([])
    assert q.empty() and q.stats().put == 0


def _cyclic() -> list[Any]:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return cyclic


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "type object is unsupported"),
        ([{"a": object()}], "type object is unsupported"),
        ("\ud800", "surrogates not allowed"),
        (_cyclic(), "contains itself"),
        (np.array([None]), "Python objects"),
        (len, "send a name"),
    ],
    ids=["object", "inner", "text", "cycle", "array", "function"],
)
def test_an_item_that_cannot_be_encoded_puts_nothing_of_its_batch(q: shmrpc.sync.Queue, value: Any, why: str) -> None:
    with pytest.raises(shmrpc.EncodeError, match=f"^queue '{OURS}': the item at index 1 cannot be put: .*{why}"):
        q.put_many([1, value, 2])
    for put in (q.put, q.put_nowait):
        with pytest.raises(shmrpc.EncodeError, match=f"^queue '{OURS}': the item cannot be put: .*{why}") as raised:
            put(value)
        assert isinstance(raised.value.__cause__, (TypeError, ValueError, RecursionError)), "the cause is kept"
    assert q.empty()


def test_an_error_of_an_iterable_is_no_error_of_an_item(q: shmrpc.sync.Queue) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise TypeError("of the iterable")

    with pytest.raises(TypeError, match="^of the iterable$") as raised:
        q.put_many(items())
    assert not isinstance(raised.value, shmrpc.ShmrpcError) and q.empty()


@pytest.mark.parametrize("shape", [3, 3_000_000])
def test_an_array_that_could_not_be_put_is_not_reserved(q: shmrpc.sync.Queue, shape: int) -> None:
    with pytest.raises(shmrpc.EncodeError, match="Python objects"), q.reserve(shape, "O"):
        raise AssertionError
    with shmrpc.sync.queue(OURS, codec="pickle") as pickles:
        with pickles.reserve(shape // 1000, "O") as array:
            array[:] = Point(1, 2.0)
        assert (pickles.get() == array).all()


def test_a_queue_of_raw_bytes_refuses_other_values() -> None:
    with shmrpc.sync.queue(OURS, raw=True) as q:
        for value in ("text", 5, memoryview(b"abcdef")[::2]):
            with pytest.raises(shmrpc.EncodeError, match=f"^queue '{OURS}': the item cannot be put: "):
                q.put(value)
        assert q.empty()


def test_the_errors_of_an_empty_and_a_full_queue_are_those_of_python(q: shmrpc.sync.Queue) -> None:
    for error in (shmrpc.QueueEmpty, asyncio.QueueEmpty, plain_queues.Empty, TimeoutError):
        with pytest.raises(error, match="is empty"):
            q.get_nowait()
    with pytest.raises(shmrpc.QueueEmpty, match="no item came within 0.01 s"):
        q.get(timeout=0.01)
    with shmrpc.sync.queue(f"{OURS}b", maxsize=2) as small:
        small.put_many([1, 2])
        assert small.full()
        for full in (shmrpc.QueueFull, asyncio.QueueFull, plain_queues.Full, TimeoutError):
            with pytest.raises(full, match="2 of 2 items wait"):
                small.put_nowait(3)
        with pytest.raises(shmrpc.QueueFull, match="had no room for 0.01 s"):
            small.put(3, timeout=0.01)


def test_an_item_that_can_never_fit_is_an_error_at_once() -> None:
    with shmrpc.sync.queue(OURS, maxsize=2, max_memory="1MiB") as q:
        with pytest.raises(ValueError, match="3 items together are more than it may ever hold: its maxsize is 2"):
            q.put_many([1, 2, 3])
        with pytest.raises(ValueError, match="more than it may ever hold: an item may have 1048576 at most"):
            q.put(b"x" * (1 << 20))
        with pytest.raises(ValueError, match="an item may have 1048576 at most"), q.reserve(1 << 20):
            pass
        q.put(b"x" * 900_000)
        assert len(q.get()) == 900_000


@pytest.mark.parametrize(
    ("maxsize", "max_memory", "deliveries"), [(-1, "1MiB", 0), (0, 1, 0), (0, "1 parsec", 0), (0, "1MiB", -1)]
)
def test_sizes_that_no_queue_has_are_refused(maxsize: int, max_memory: Any, deliveries: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        shmrpc.queue(OURS, maxsize, max_memory=max_memory, max_deliveries=deliveries)


def test_a_queue_that_is_open_otherwise_says_how(q: shmrpc.sync.Queue) -> None:
    said = r"^queue '\w+' is already open as a queue of values .*maxsize=0.*not a .*maxsize=7"
    with pytest.raises(shmrpc.NameConflict, match=said):
        shmrpc.queue(OURS, maxsize=7)
    with pytest.raises(shmrpc.NameConflict):
        shmrpc.queue(OURS, raw=True)
    with pytest.raises(shmrpc.NameConflict):
        shmrpc.Event(OURS)


def test_full_memory_is_waited_for_and_an_old_item_makes_room() -> None:
    with shmrpc.sync.queue(OURS, max_memory="1MiB") as q:
        count = 0
        while True:
            try:
                q.put_nowait(b"x" * 100_000)
            except shmrpc.QueueFull:
                break
            count += 1
        assert 6 <= count <= 10
        thread = threading.Thread(target=q.put, args=(b"y" * 100_000, LONG))
        thread.start()
        assert eventually(lambda: q.stats().putters == 1)
        q.get()
        thread.join(LONG)
        assert not thread.is_alive() and q.qsize() == count


def test_a_claim_ends_by_acknowledging(q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2])
    first, second = q.claim(), q.claim_nowait()
    assert (first.value, second.value, first.number, second.number) == (1, 2, 0, 1)
    assert not first.redelivered and q.qsize() == 0 and len(q.stats().held) == 2
    second.ack()
    first.ack()
    assert q.stats().held == [] and q.stats().unfinished == 0
    with pytest.raises(shmrpc.StaleClaim):
        first.ack()
    with pytest.raises(shmrpc.LocalProtocolError):
        assert first.value


def test_items_that_are_given_back_come_first_and_in_order(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(6))
    claims = [q.claim() for _ in range(4)]
    for claim in (claims[2], claims[0], claims[1]):
        claim.nack()
    again = q.claim()
    assert again.value == 0 and again.redelivered and again.deliveries == 2
    again.ack()
    assert q.get_many(10) == [1, 2, 4, 5]
    claims[3].ack()


def test_an_error_in_the_block_gives_the_item_back(q: shmrpc.sync.Queue) -> None:
    q.put("item")
    with pytest.raises(KeyError), q.claim():
        raise KeyError
    with q.claim() as claim:
        assert claim.value == "item" and claim.redelivered
    assert q.stats().unfinished == 0


def test_a_claim_without_references_gives_its_item_back(q: shmrpc.sync.Queue) -> None:
    q.put("item")
    claim = q.claim()
    del claim
    gc.collect()
    assert q.get_nowait() == "item"


def test_an_array_of_a_claim_is_a_view_that_outlives_it(q: shmrpc.sync.Queue) -> None:
    before = q.stats().used
    with q.reserve((100, 1000), "f8") as filled:
        filled[:] = 3.0
    del filled
    with q.claim() as claim:
        view = claim.value
    assert not view.flags.writeable and not view.flags.owndata
    for _ in range(20):  # Would be put where the view looks, if that were free.
        q.put(np.zeros((100, 1000)))
        q.get()
    assert (view == 3.0).all() and q.stats().used > before + 500_000
    del view
    gc.collect()
    assert q.stats().used <= before + 500_000


def test_a_block_that_raises_leaves_no_item(q: shmrpc.sync.Queue) -> None:
    with pytest.raises(ZeroDivisionError), q.reserve((1000, 1000)) as frame:
        frame[:] = 1
        raise ZeroDivisionError
    assert q.empty() and q.stats().put == 0
    with q.reserve(3, "i4") as small:
        small[:] = [1, 2, 3]
    assert q.get().tolist() == [1, 2, 3]


def test_a_reservation_that_is_filled_delays_no_other(q: shmrpc.sync.Queue) -> None:
    with q.reserve((1000, 1000)) as frame:
        q.put(1)
        frame[:] = 5
        assert q.get() == 1
    assert q.get().sum() == 5_000_000


def test_an_array_is_not_reserved_among_raw_bytes() -> None:
    with shmrpc.sync.queue(OURS, raw=True) as q:
        with (
            pytest.raises(TypeError, match=r"expected a number of bytes, got \(2, 3\)"),
            q.reserve((2, 3)),
        ):
            pass
        with pytest.raises(TypeError), q.reserve("many"):  # type: ignore[arg-type]
            pass
        assert q.empty()


def test_raw_bytes_go_without_an_encoder() -> None:
    with shmrpc.sync.queue(OURS, raw=True) as q:
        for value in (b"", b"abc", bytearray(b"x" * 100_000), memoryview(b"12345")[1:4], np.arange(3000, dtype="u1")):
            q.put(value)
            assert q.get() == bytes(value)
        with q.reserve(70_000) as block:
            block[:4] = b"head"
        with q.claim() as claim:
            assert isinstance(claim.value, memoryview) and claim.value.readonly
            assert bytes(claim.value[:4]) == b"head"
        with pytest.raises(TypeError, match="buffer"):
            q.put("text")


@pytest.mark.parametrize("size", [2**64 - 1, 2**64 - 8, 2**64 - 72, 2**63, 2**40])
def test_more_than_any_queue_can_hold_is_not_reserved(size: int) -> None:
    with shmrpc.sync.queue(OURS, raw=True) as q, pytest.raises(ValueError, match="may ever hold"), q.reserve(size):
        pass


@pytest.mark.parametrize("size", [-1, -(2**70), 2**64, 2**70])
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_a_number_of_bytes_that_the_core_does_not_take_is_refused(kind: str, size: int) -> None:
    with getattr(shmrpc.sync, kind)(OURS, raw=True) as blocking:
        with pytest.raises(ValueError, match=f"{kind} '{OURS}': expected a number of bytes, 0 or more, .* got {size}"):
            blocking.reserve(size).__enter__()
        async with getattr(shmrpc, kind)(OURS, raw=True) as opened:
            with pytest.raises(ValueError, match=f"got {size}"):
                await opened.reserve(size).__aenter__()


def test_dead_letters_behind_an_unreadable_one_stay_dead_letters() -> None:
    with (
        shmrpc.sync.queue(OURS, max_deliveries=1) as q,
        shmrpc.sync.queue(OURS, max_deliveries=1, codec="pickle") as pickled,
    ):
        q.put("first")
        pickled.put(Point(1, 2.0))
        q.put("last")
        for _ in range(3):
            q.claim_nowait().nack()
        assert q.dead_letters.get_many_nowait() == ["first"]
        assert (q.dead_letters.qsize(), q.qsize()) == (2, 0)
        with pytest.raises(shmrpc.QueueEmpty):
            q.get_nowait()
        with pytest.raises(shmrpc.DecodeError):
            q.dead_letters.get_nowait()
        assert q.dead_letters.get_nowait() == "last"


def test_items_that_are_delivered_too_often_are_dead_letters() -> None:
    with shmrpc.sync.queue(OURS, max_deliveries=2) as q:
        q.put_many(["poison", "good"])
        for _ in range(2):
            claim = q.claim()
            assert claim.value == "poison"
            claim.nack()
        assert q.get() == "good" and q.empty()
        q.task_done()
        q.join(timeout=LONG)
        assert q.dead_letters.qsize() == 1
        letter = q.dead_letters.claim_nowait()
        assert letter.value == "poison"
        letter.nack()
        assert q.dead_letters.get_nowait() == "poison"
        with pytest.raises(shmrpc.QueueEmpty):
            q.dead_letters.get_nowait()
        assert q.stats().unfinished == 0 and q.stats().held == []


def test_a_lease_that_is_over_gives_the_item_to_another(q: shmrpc.sync.Queue) -> None:
    q.put("item")
    late = q.claim(lease_timeout=0.05)
    again = q.claim(timeout=LONG)  # This waits until then.
    assert again.value == "item" and again.redelivered
    with pytest.raises(shmrpc.StaleClaim, match="lease_timeout"):
        late.ack()
    again.ack()
    for bad in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="lease_timeout"):
            q.claim(lease_timeout=bad)


async def test_a_lease_ends_for_a_loop_that_waits(q: shmrpc.sync.Queue) -> None:
    q.put("item")
    claim = q.claim(lease_timeout=0.2)
    async with shmrpc.queue(OURS) as awaited:
        assert await awaited.get(timeout=LONG) == "item"
        with pytest.raises(shmrpc.StaleClaim):
            claim.ack()


async def test_a_loop_that_sleeps_hears_of_a_lease_that_begins(q: shmrpc.sync.Queue) -> None:
    async with shmrpc.queue(OURS) as awaited:
        wait = asyncio.create_task(awaited.get(timeout=LONG))
        await asyncio.sleep(0.05)
        q.put("item")  # The loop cannot look before we have claimed it.
        claim = q.claim_nowait(lease_timeout=0.1)
        assert await wait == "item"
        with pytest.raises(shmrpc.StaleClaim):
            claim.ack()


def test_join_waits_until_all_is_dealt_with(q: shmrpc.sync.Queue) -> None:
    q.join()
    q.put_many(range(3))
    with pytest.raises(shmrpc.WaitTimeout, match="3 items were not done"):
        q.join(timeout=0.01)
    thread = threading.Thread(target=q.join)
    thread.start()
    assert q.get_many(2) == [0, 1]
    with q.claim():
        pass
    with pytest.raises(ValueError, match="task_done"):
        q.task_done(3)
    q.task_done()
    assert thread.is_alive()
    q.task_done()
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_queue_that_is_shut_down_is_emptied_and_ends(q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2])
    q.shutdown()
    with pytest.raises(shmrpc.QueueShutDown, match="is shut down"):
        q.put(3)
    assert list(q) == [1, 2]
    with pytest.raises(shmrpc.QueueShutDown):
        q.get_nowait()
    with pytest.raises(shmrpc.QueueShutDown):
        q.claim()


def test_shutdown_at_once_drops_what_waits(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(1000))
    claim = q.claim()
    q.shutdown(immediate=True)
    assert q.empty() and list(q) == []
    claim.ack()
    q.join(timeout=LONG)


def test_shutdown_wakes_all_that_wait() -> None:
    with shmrpc.sync.queue(OURS, maxsize=1) as q:
        q.put(0)
        ends: list[type[BaseException] | None] = []

        def ended(wait: Any) -> None:
            try:
                wait()
            except BaseException as error:
                ends.append(type(error))

        with shmrpc.sync.queue(f"{OURS}b") as empty:
            threads = [
                threading.Thread(target=ended, args=(wait,)) for wait in (lambda: q.put(1), empty.get, empty.claim)
            ]
            for thread in threads:
                thread.start()
            assert eventually(lambda: q.stats().putters == 1 and empty.stats().getters == 2)
            q.shutdown()
            empty.shutdown()
            for thread in threads:
                thread.join(LONG)
        assert ends == [shmrpc.QueueShutDown] * 3


def test_stopped_waits_end_and_go_on_after_resume(q: shmrpc.sync.Queue) -> None:
    q.stop()
    with pytest.raises(shmrpc.WaitStopped):
        q.get()
    q.put(1)
    assert q.get() == 1
    q.resume()
    with pytest.raises(shmrpc.QueueEmpty):
        q.get(timeout=0.01)


def test_closing_ends_waits_and_gives_back_what_is_claimed(other: MemberProcess) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}); result = 0")
    q = shmrpc.sync.queue(OURS)
    q.put_many([1, 2])
    claim = q.claim()
    q.close()
    with pytest.raises(shmrpc.LocalProtocolError):
        q.get()
    with pytest.raises(shmrpc.LocalProtocolError):
        claim.ack()
    assert other.do("result = [q.get(), q.get()]") == [1, 2]


def test_the_last_to_close_takes_it_away() -> None:
    with shmrpc.sync.queue(OURS) as q:
        q.put(1)
    with shmrpc.sync.queue(OURS) as q:
        assert q.empty() and q.lost == 0
    assert not [name for name in os.listdir("/dev/shm") if f"shmrpc.{OURS}@" in name]


def test_processes_get_each_item_once(other: MemberProcess, q: shmrpc.sync.Queue) -> None:
    other.begin(f"q = shmrpc.sync.queue({OURS!r}); result = [x for x in q]")
    other_items: list[int] = []
    ours: list[int] = []
    for number in range(2_000):
        q.put(number)
        if number % 5 == 0:
            with contextlib.suppress(shmrpc.QueueEmpty):
                ours.append(q.get_nowait())
    q.shutdown()
    other_items = other.end()
    assert sorted(ours + other_items) == list(range(2_000))
    assert other_items == sorted(other_items)


def test_a_newcomer_attaches_with_the_name_alone(other: MemberProcess) -> None:
    other.begin(f"q = shmrpc.sync.attach({OURS!r}, timeout=60); result = [q.maxsize, q.get(timeout=60)]")
    with shmrpc.sync.queue(OURS, maxsize=9) as q:
        q.put("hello")
        assert other.end() == [9, "hello"]


def test_an_item_claimed_by_a_killed_process_is_delivered_again(other: MemberProcess, q: shmrpc.sync.Queue) -> None:
    q.put_many(range(5))
    other.do(f"q = shmrpc.sync.queue({OURS!r}); held = [q.claim() for _ in range(3)]; result = held[1].ack()")
    assert q.get() == 3
    other.signal(signal.SIGKILL)
    assert eventually(lambda: q.qsize() == 3)
    with q.claim() as claim:
        assert claim.value == 0 and claim.redelivered
    assert q.get_many(5) == [2, 4]


def test_a_wait_is_woken_by_the_death_of_who_held_the_item(other: MemberProcess, q: shmrpc.sync.Queue) -> None:
    q.put("item")
    other.do(f"q = shmrpc.sync.queue({OURS!r}); held = q.claim(); result = 0")
    threading.Timer(0.1, other.signal, (signal.SIGKILL,)).start()
    with q.claim(timeout=LONG) as claim:
        assert claim.value == "item" and claim.redelivered


def test_join_does_not_wait_for_the_dead(other: MemberProcess, q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2])
    other.do(f"q = shmrpc.sync.queue({OURS!r}); result = q.get_many(2)")
    threading.Timer(0.1, other.signal, (signal.SIGKILL,)).start()
    q.join(timeout=LONG)


def test_memory_that_a_killed_process_was_filling_is_free_again(other: MemberProcess, q: shmrpc.sync.Queue) -> None:
    before = q.stats().used
    code = f"q = shmrpc.sync.queue({OURS!r}); r = q.reserve((1000, 1000)); a = r.__enter__(); a[:] = 1; result = 0"
    other.do(code)
    assert q.stats().used > before + 900_000
    other.signal(signal.SIGKILL)
    with pytest.raises(shmrpc.QueueEmpty):
        q.get(timeout=0.2)  # A waiter learns of deaths.
    assert eventually(lambda: q.stats().used <= before)
    assert q.empty()


def test_a_queue_whose_members_were_all_killed_starts_empty_and_says_what_is_lost(
    other: MemberProcess, caplog: pytest.LogCaptureFixture
) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}, maxsize=10); q.put_many(range(5)); held = q.claim(); result = 0")
    other.signal(signal.SIGKILL)
    assert eventually(lambda: not shmrpc.members(OURS))
    with shmrpc.sync.queue(OURS, maxsize=20) as q:
        assert q.empty() and q.lost == 5
        assert "5 items are lost" in caplog.text
        with shmrpc.sync.queue(OURS, maxsize=20) as again:
            again.put(1)
            assert q.get() == 1


def test_pools_of_threads_on_both_sides_share_a_handle(q: shmrpc.sync.Queue) -> None:
    count, seen, mutex = 2_000, [], threading.Lock()

    def work(claim: shmrpc.Claim) -> None:
        with claim, mutex:
            seen.append(claim.value)

    with ThreadPoolExecutor(8) as pool:
        for start in range(0, count, 100):
            pool.submit(q.put_many, list(range(start, start + 100)))
        most = 0
        for number, claim in enumerate(q.claims(prefetch=8), 1):
            most = max(most, len(q.stats().held) if number % 100 == 0 else 0)
            pool.submit(work, claim)
            del claim
            if number == count:
                q.shutdown()
                break
    assert sorted(seen) == list(range(count)) and most <= 8


def test_no_more_claims_are_held_than_were_asked_for(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(10))
    claims = q.claims(prefetch=3)
    held = [next(claims) for _ in range(3)]
    thread = threading.Thread(target=lambda: held.append(next(claims)))
    thread.start()
    time.sleep(0.05)
    assert len(q.stats().held) == 3
    held[1].ack()
    thread.join(LONG)
    assert [claim.number for claim in held] == [0, 1, 2, 3]


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_tasks_wait_in_line_and_cancellation_loses_nothing() -> None:
    async with shmrpc.queue(OURS, maxsize=3) as q:
        getters = [asyncio.create_task(q.get()) for _ in range(5)]
        await asyncio.sleep(0.01)
        await _cancelled(getters[0])
        await q.put_many([1, 2])
        getters[2].cancel()  # Maybe after it was given the turn.
        await q.put(3)
        got = await asyncio.gather(*getters[1:4], return_exceptions=True)
        await q.put(4)
        got += [await getters[4]]
        assert [value for value in got if isinstance(value, int)] == [1, 2, 3] or got == [1, 2, 3, 4]
        assert q.empty() or await q.get() == 4

        await q.put_many([1, 2, 3])
        putters = [asyncio.create_task(q.put(number)) for number in (4, 5, 6)]
        await asyncio.sleep(0.01)
        await _cancelled(putters[1])
        assert [await q.get() for _ in range(5)] == [1, 2, 3, 4, 6]


async def test_a_storm_of_cancellations_loses_nothing() -> None:
    async with shmrpc.queue(OURS, maxsize=5) as q:
        got: list[int] = []

        async def getter() -> None:
            while True:
                got.append(await q.get())

        async def shaken() -> None:
            while True:
                task = asyncio.create_task(getter())
                await asyncio.sleep(0.0005)
                task.cancel()
                await asyncio.wait([task])

        shakers = [asyncio.create_task(shaken()) for _ in range(3)]
        for number in range(1_000):
            await q.put(number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        while not q.empty():
            await asyncio.sleep(0.001)
        for task in shakers:
            task.cancel()
        assert sorted(got) == list(range(1_000))


async def test_loops_claim_reserve_iterate_and_join() -> None:
    async with shmrpc.queue(OURS) as q:
        async with q.reserve((64, 64), "f4") as frame:
            frame[:] = 2
        async with q.claim() as claim:
            assert claim.value.sum() == 2 * 64 * 64
        await q.put_many(range(4))
        claim = await q.claim(timeout=1)
        claim.ack()
        with pytest.raises(KeyError):
            async with q.claim():
                raise KeyError
        seen = []
        async for each in q.claims(prefetch=2):
            seen.append((each.value, each.redelivered))
            each.ack()
            if len(seen) == 3:
                break
        assert seen == [(1, True), (2, False), (3, False)]
        await q.join(timeout=LONG)
        await q.put_many(["a", "b"])
        q.shutdown()
        assert [item async for item in q] == ["a", "b"]


def test_a_forked_child_is_detached_and_raises(q: shmrpc.sync.Queue) -> None:
    q.put(1)
    claim = q.claim()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            q.put(2)
        except shmrpc.LocalProtocolError:
            try:
                claim.ack()
            except shmrpc.LocalProtocolError:
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    claim.ack()
    assert q.empty()


def test_memory_is_given_back_and_bounded(q: shmrpc.sync.Queue) -> None:
    for number in range(200_000):
        q.put(number)
    full = q.stats().memory
    assert full < 200_000 * 24 * 1.3
    got = 0
    while got < 200_000:
        got += len(q.get_many(10_000))
    assert eventually(lambda: q.stats().memory < full / 4)


def test_members_and_reports_know_queues(q: shmrpc.sync.Queue) -> None:
    q.put(1)
    claim = q.claim()
    [member] = shmrpc.members(OURS)
    assert member.pid == os.getpid() and member.holds == 1
    claim.ack()


def test_an_item_that_cannot_be_read_costs_no_other(q: shmrpc.sync.Queue) -> None:
    with shmrpc.sync.queue(OURS, codec="pickle") as pickles:
        pickles.put_many([1, 2, Point(1, 2.0), 3])
        assert q.get_many(10) == [1, 2]
        with pytest.raises(shmrpc.DecodeError, match=f"^queue '{OURS}': an item that was removed .*pickled") as raised:
            q.get_many(10)
        assert isinstance(raised.value.__cause__, msgspec.DecodeError)
        assert q.get_many(10) == [3]


def test_more_claims_than_a_queue_has_places_for_are_an_error_that_says_what_to_do(q: shmrpc.sync.Queue) -> None:
    """The members that were there are unharmed, and so is the item."""
    q.put_many(range(4097))
    claims = [q.claim() for _ in range(4096)]
    said = "no room for another claim: 4096 items are claimed.*end claims with ack"
    with pytest.raises(shmrpc.SharedMemoryError, match=said) as caught:
        q.claim_nowait()
    assert caught.value.errno == errno.EUSERS
    with pytest.raises(shmrpc.SharedMemoryError, match=said):
        q.claim(timeout=60)
    assert q.get() == 4096
    claims.pop().nack()
    assert q.claim().value == 4095
    assert [claim.value for claim in claims] == list(range(4095))


@pytest.mark.parametrize("size", [1, 100_000])
def test_an_item_that_cannot_be_read_stays_with_its_claim(q: shmrpc.sync.Queue, size: int) -> None:
    with shmrpc.sync.queue(OURS, codec="pickle") as pickles:
        pickles.put([Point(1, 2.0), np.zeros(size)])
        for _ in range(2):
            with pytest.raises(shmrpc.DecodeError, match="item 0 cannot be read: .*pickled"), q.claim(timeout=0) as c:
                assert c.value
        assert pickles.get()[0] == Point(1, 2.0)


def test_an_item_that_cannot_be_read_hides_no_other(q: shmrpc.sync.Queue) -> None:
    with shmrpc.sync.queue(OURS, codec="pickle") as pickles:
        pickles.put_many([1, Point(1, 2.0), 3])
    first, second, third = q.peek(10)
    assert (first.value, first.error, third.value, third.error) == (1, None, 3, None)
    assert second.value is None and not second.is_large and second.size > 40
    assert isinstance(second.error, shmrpc.DecodeError) and "item 1 cannot be read" in str(second.error)


def test_an_error_of_a_signal_handler_is_no_error_of_an_item(q: shmrpc.sync.Queue) -> None:
    def interrupt(*_: object) -> None:
        raise ValueError("of the handler")

    class Interrupted(datetime.tzinfo):
        utcoffset = dst = tzname = lambda self, when: None

        def __repr__(self) -> str:
            signal.raise_signal(signal.SIGALRM)
            return "ours"

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(ValueError, match="^of the handler$") as raised:
            q.put(datetime.time(1, tzinfo=Interrupted()))
        assert not isinstance(raised.value, shmrpc.EncodeError)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("size", [0, 5, 4095, 4096, 2_000_000])
def test_the_value_of_a_claim_of_raw_bytes_is_a_read_only_view(size: int) -> None:
    with shmrpc.sync.queue(OURS, raw=True) as q:
        q.put(b"x" * size)
        with q.claim() as claim:
            assert type(claim.value) is memoryview and claim.value.readonly and claim.value == b"x" * size


@pytest.mark.parametrize("memory", [64, 72, 100])
def test_whatever_a_queue_may_ever_hold_fits_into_it_while_it_is_empty(memory: int) -> None:
    for size in [*range(200, (memory - 4) << 10, 1_200), (memory - 1) << 10]:
        with shmrpc.sync.queue(OURS, max_memory=f"{memory}KiB") as q:
            q.put_nowait(b"x" * size)
            q.put_nowait(b"y" * 100) if size < 12_000 else None
            assert len(q.get_nowait()) == size
            with contextlib.suppress(shmrpc.QueueFull, ValueError):
                q.put_many_nowait([b"z" * 100] * (size // 200))


def test_getters_wait_for_what_may_come_back_also_after_a_shutdown(q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2])
    mine = q.claim()
    q.shutdown()
    got = InThread(lambda: [q.get(), q.get()])
    assert eventually(lambda: q.stats().getters == 1 and q.empty())
    with pytest.raises(shmrpc.QueueEmpty):
        q.get_nowait()
    mine.nack()
    assert got.join() == [2, 1]
    with pytest.raises(shmrpc.QueueShutDown):
        q.get()


def test_the_last_acknowledgement_ends_all_that_wait_after_a_shutdown(q: shmrpc.sync.Queue) -> None:
    q.put(1)
    mine = q.claim()
    q.shutdown()
    waiting = [InThread(q.get), InThread(q.claim), InThread(lambda: list(q.claims()))]
    assert eventually(lambda: q.stats().getters == 3)
    mine.ack()
    ends = [each.join() for each in waiting]
    assert [type(end) for end in ends] == [shmrpc.QueueShutDown, shmrpc.QueueShutDown, list]


def test_an_item_whose_holder_is_killed_after_the_shutdown_is_done_by_another(
    q: shmrpc.sync.Queue, other: MemberProcess
) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}); result = 0")
    q.put_many([1, 2])
    other.do("mine = q.claim()")
    q.shutdown()
    values = []

    def work() -> None:
        for claim in q.claims():
            with claim:
                values.append((claim.value, claim.redelivered))

    worker = InThread(work)
    assert eventually(lambda: len(values) == 1)
    other.kill()
    assert worker.join() is None
    assert values == [(2, False), (1, True)]
    q.join(LONG)


def test_items_that_a_dead_process_had_claimed_are_seen_by_one_that_only_looks(
    q: shmrpc.sync.Queue, other: MemberProcess
) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}); result = 0")
    q.put(1)
    other.do("mine = q.claim()")
    assert (q.qsize(), len(q.stats().held)) == (0, 1)
    other.kill()
    assert eventually(lambda: not q.empty())
    assert q.stats().held == []
    assert [item.value for item in q.peek()] == [1]


def test_an_item_whose_lease_is_over_is_seen_by_one_that_only_looks(q: shmrpc.sync.Queue) -> None:
    q.put(1)
    mine = q.claim(lease_timeout=0.01)
    assert eventually(lambda: q.qsize() == 1)
    assert q.stats().held == []
    with pytest.raises(shmrpc.StaleClaim):
        mine.ack()


@pytest.mark.parametrize("end", ["stop", "close"])
def test_an_iterator_of_claims_that_waits_for_one_to_end_is_ended(q: shmrpc.sync.Queue, end: str) -> None:
    q.put_many([1, 2, 3])
    claims: list[shmrpc.Claim] = []
    taken = InThread(lambda: claims.extend(q.claims(prefetch=2)))
    assert eventually(lambda: len(q.stats().held) == 2)
    getattr(q, end)()
    error = {"stop": shmrpc.WaitStopped, "close": shmrpc.LocalProtocolError}[end]
    assert isinstance(taken.join(), error)


def test_a_claim_whose_lease_is_over_leaves_its_place_to_the_next(q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2, 3])
    claims = q.claims(prefetch=1, lease_timeout=0.05)
    assert [next(claims).value for _ in range(2)] == [1, 1]


async def test_iterators_of_claims_in_a_loop_end_and_go_on_as_those_of_threads() -> None:
    async with shmrpc.queue(OURS) as q:
        await q.put_many([1, 2, 3])
        claims = q.claims(prefetch=1, lease_timeout=0.05)
        first = await anext(claims)
        assert (first.value, (await anext(claims)).value) == (1, 1)
        kept = q.claims(prefetch=1)
        held = await anext(kept)
        waiting = asyncio.ensure_future(anext(kept))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        q.stop()
        with pytest.raises(shmrpc.WaitStopped):
            await waiting
        held.ack()


def test_claims_refuse_what_is_no_number_of_items_at_once(q: shmrpc.sync.Queue) -> None:
    with pytest.raises(ValueError, match="1 or more, got 0"):
        q.claims(0)


def test_nothing_is_reserved_once_nothing_can_be_put(q: shmrpc.sync.Queue) -> None:
    q.shutdown()
    for size in (10, 1_000_000):
        with pytest.raises(shmrpc.QueueShutDown), q.reserve(size):
            raise AssertionError("it was entered")


async def test_a_shutdown_ends_a_task_that_waits_to_reserve() -> None:
    async with shmrpc.queue(OURS, raw=True, max_memory="64KiB") as q:
        await q.put(b"x" * 50_000)

        async def reserve() -> None:
            async with q.reserve(40_000, timeout=LONG):
                raise AssertionError("it was entered")

        waiting = asyncio.ensure_future(reserve())
        while not q.stats().putters:
            await asyncio.sleep(0)
        q.shutdown()
        with pytest.raises(shmrpc.QueueShutDown):
            await waiting


def test_a_shutdown_ends_a_thread_that_waits_to_reserve() -> None:
    with shmrpc.sync.queue(OURS, raw=True, max_memory="64KiB") as q:
        q.put(b"x" * 50_000)

        def reserve() -> None:
            with q.reserve(40_000, timeout=LONG):
                raise AssertionError("it was entered")

        waiting = InThread(reserve)
        assert eventually(lambda: q.stats().putters == 1)
        q.shutdown()
        assert isinstance(waiting.join(), shmrpc.QueueShutDown)


async def test_a_task_whose_attempts_fail_while_its_hint_is_true_lets_the_loop_turn() -> None:
    async with shmrpc.queue(OURS) as q:
        turns, attempts = q._wait_queue(ROOM, TurnQueue), 0
        is_due = asyncio.Event()
        asyncio.get_running_loop().call_soon(is_due.set)

        def attempt() -> bool | None:
            nonlocal attempts
            attempts += 1
            assert attempts < 100, "the loop did not turn"
            return is_due.is_set() or None

        assert await turns.try_in_turn(lambda: False, lambda: True, attempt, lambda: None, None)
        attempts = 0
        is_due.clear()
        assert await turns.try_in_turn(lambda: False, lambda: True, attempt, lambda: None, 0) is None
        assert attempts == 1


class _BusyQueue:
    """The native part of a queue that a stopped process blocks. Stops a handle at the second attempt to put."""

    def __init__(self, q: Any) -> None:
        self._q, self._native, self.attempts = q, q._native, 0

    def put_now(self, item: Any) -> Any:
        self.attempts += 1
        if self.attempts == 2:
            self._q.stop()
        assert self.attempts < 10, "stop() did not end the put"
        raise shmrpc.QueueBusy("a stopped process is in the middle of changing it")

    put_next = put_many_now = put_now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


@pytest.mark.parametrize("way", ["put", "put_many"])
async def test_stop_ends_a_put_that_a_stopped_process_blocks(way: str) -> None:
    async with shmrpc.queue(OURS) as q:
        q._native = _BusyQueue(q)  # type: ignore[assignment]
        with pytest.raises(shmrpc.WaitStopped):
            await getattr(q, way)([1])
    with shmrpc.sync.queue(OURS) as blocking:
        blocking._native = _BusyQueue(blocking)  # type: ignore[assignment]
        with pytest.raises(shmrpc.WaitStopped):
            getattr(blocking, way)([1])


def test_lost_items_are_reported_once_in_a_process(other: MemberProcess) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}); q.put_many([1, 2, 3])")
    other.kill()
    with shmrpc.sync.queue(OURS) as first, shmrpc.sync.queue(OURS) as second:
        assert (first.lost, first.lost, second.lost) == (3, 3, 0)


@pytest.mark.parametrize("how", ["put", "reserve"])
async def test_room_for_two_wakes_two_writers_in_loops_though_one_puts_no_more(how: str) -> None:
    first, second = (shmrpc.queue(OURS, 4, max_memory="5MiB") for _ in range(2))
    async with first, second:

        async def write(q: shmrpc.Queue) -> None:
            if how == "put":
                await q.put(1, LONG)
            else:
                async with q.reserve(1 << 20, timeout=LONG) as frame:
                    frame[:] = 1

        for _ in range(4):
            await write(first)
        writers = [asyncio.ensure_future(write(q)) for q in (first, second)]
        while first.stats().putters < 2:
            await asyncio.sleep(0.001)
        assert len([await first.get() for _ in range(4)]) == 4
        await asyncio.wait_for(asyncio.gather(*writers), LONG / 2)


def test_room_for_two_wakes_two_threads_that_reserve_though_one_reserves_no_more() -> None:
    with shmrpc.sync.queue(OURS, max_memory="5MiB") as first, shmrpc.sync.queue(OURS, max_memory="5MiB") as second:

        def write(q: shmrpc.sync.Queue) -> None:
            with q.reserve(1 << 20, timeout=LONG) as frame:
                frame[:] = 1

        for _ in range(4):
            write(first)
        writers = [InThread(functools.partial(write, q)) for q in (first, second)]
        assert eventually(lambda: first.stats().putters == 2)
        assert len([first.get() for _ in range(4)]) == 4
        assert [writer.join() for writer in writers] == [None, None]


def test_an_item_that_is_given_back_after_an_immediate_shutdown_is_dropped(q: shmrpc.sync.Queue) -> None:
    q.put_many([1, 2])
    mine = q.claim()
    q.shutdown(immediate=True)
    mine.nack()
    with pytest.raises(shmrpc.QueueShutDown):
        q.get()
    q.join(LONG)


def test_arrays_of_ended_claims_that_are_kept_are_named_where_there_is_no_room() -> None:
    with shmrpc.sync.queue(OURS, max_memory="4MiB") as q:
        q.put(np.zeros(3 << 20, "u1"))
        with q.claim() as claim:
            kept = claim.value
        assert (q.stats().viewed, q.stats().held) == (1, [])
        with pytest.raises(shmrpc.QueueFull, match="arrays of 1 claims that have ended are still referred to"):
            q.put_nowait(np.zeros(3 << 20, "u1"))
        del kept, claim
        gc.collect()
        q.put_nowait(np.zeros(3 << 20, "u1"))
        assert q.stats().viewed == 0


def test_a_clean_up_tells_what_a_dead_queue_takes_and_not_how_long_its_file_may_be(other: MemberProcess) -> None:
    other.do(f"q = shmrpc.sync.queue({OURS!r}, max_memory='1GiB'); q.put(b'x' * 1_000_000)")
    other.kill()
    left = [each for each in cleanup.clean(dry_run=True) if each.file == "segment" and f".{OURS}@" in each.path]
    assert len(left) == 1 and 1_000_000 < left[0].size < 16 << 20


@pytest.mark.parametrize("way", ["get", "get_many", "claim", "claims", "put", "put_many", "reserve"])
async def test_a_loop_turns_though_others_are_so_quick_that_it_never_waits(other: MemberProcess, way: str) -> None:
    """The others hold the queue neither empty nor full for as long as it takes."""
    q = shmrpc.queue(OURS, maxsize=0)
    turns, done = 0, False

    async def turn() -> None:
        nonlocal turns
        while turns < 3:
            await asyncio.sleep(0)
            turns += 1

    async def use() -> None:
        nonlocal done
        claims = q.claims()
        for _ in range(100_000):
            if turns >= 3:
                break
            match way:
                case "get":
                    await q.get()
                case "get_many":
                    await q.get_many(2)
                case "claim":
                    (await q.claim()).ack()
                case "claims":
                    (await anext(claims)).ack()
                case "put":
                    await q.put(1)
                case "put_many":
                    await q.put_many([1, 2])
                case "reserve":
                    async with q.reserve(20_000):
                        pass
                    q.get_nowait()
        else:
            pytest.fail("the loop has not turned")
        done = True

    async with q:
        await q.put_many(list(range(200_000)))
        await asyncio.gather(use(), turn())
        assert done


#: The size of a full queue, the items taken from it, and the items that a writer waits to put at once.
LITTLE_ROOM = [(1, 1, 1), (3, 1, 1), (5, 2, 1), (100, 1, 1), (5, 2, 2), (100, 49, 49)]


@pytest.mark.parametrize(("maxsize", "taken", "count"), LITTLE_ROOM)
@pytest.mark.parametrize("take", ["get", "claim", "get_many"])
async def test_a_task_that_waits_puts_once_there_is_room_for_its_items(
    maxsize: int, taken: int, count: int, take: str
) -> None:
    async with shmrpc.queue(OURS, maxsize) as q:
        q.put_many_nowait(range(maxsize))
        writer = asyncio.ensure_future(q.put("late") if count == 1 else q.put_many(["late"] * count))
        while q.stats().putters < 1:
            await asyncio.sleep(0)
        kept = [await _take(q, take) for _ in range(taken)]
        await asyncio.wait_for(writer, LONG)
        assert (len(kept), q.qsize()) == (taken, maxsize - taken + count)


async def _take(q: shmrpc.Queue, how: str) -> Any:
    if how == "get_many":
        return await q.get_many(1)
    return await (q.get() if how == "get" else q.claim())


@pytest.mark.parametrize(("maxsize", "taken", "count"), LITTLE_ROOM)
def test_a_thread_that_waits_puts_once_there_is_room_for_its_items(maxsize: int, taken: int, count: int) -> None:
    with shmrpc.sync.queue(OURS, maxsize) as q:
        q.put_many_nowait(range(maxsize))
        writer = InThread(lambda: q.put_many(["late"] * count, timeout=LONG))
        assert eventually(lambda: q.stats().putters == 1)
        for _ in range(taken):
            q.get()
        writer.join()
        assert q.qsize() == maxsize - taken + count


async def test_a_reservation_that_waits_to_be_put_needs_room_for_one_item() -> None:
    async with shmrpc.queue(OURS, 10) as q:

        async def reserve() -> None:
            async with q.reserve(100_000) as frame:
                frame[:] = 7

        q.put_many_nowait(range(10))
        writer = asyncio.ensure_future(reserve())
        while q.stats().putters < 1:
            await asyncio.sleep(0)
        assert await q.get() == 0
        await asyncio.wait_for(writer, LONG)
        assert q.full()


def test_a_writer_of_many_items_keeps_no_room_from_others(other: MemberProcess) -> None:
    with shmrpc.sync.queue(OURS, 5) as q:
        q.put_many(range(5))
        other.do(f"q = shmrpc.sync.queue({OURS!r}, 5); result = 0")
        other.begin("q.put_many(['a', 'b', 'c']); result = 0")
        assert eventually(lambda: q.stats().putters == 1)
        writer = InThread(lambda: q.put("one", timeout=LONG))
        assert eventually(lambda: q.stats().putters == 2)
        assert q.get() == 0
        writer.join()  # There is room for one item, and the first of those that wait has three.
        assert [q.get() for _ in range(3)] == [1, 2, 3]
        assert other.end() == 0
        assert [q.get() for _ in range(5)] == [4, "one", "a", "b", "c"]


def test_room_that_a_stopped_writer_was_woken_for_goes_to_the_next(other: MemberProcess) -> None:
    with shmrpc.sync.queue(OURS, 2) as q:
        q.put_many(range(2))
        other.do(f"q = shmrpc.sync.queue({OURS!r}, 2); result = 0")
        other.begin("q.put('stopped'); result = 0")
        assert eventually(lambda: q.stats().putters == 1)
        other.signal(signal.SIGSTOP)
        writer = InThread(lambda: q.put("next", timeout=LONG))
        assert eventually(lambda: q.stats().putters == 2)
        assert q.get() == 0
        writer.join()
        other.signal(signal.SIGCONT)
        assert [q.get(), q.get(), q.get(timeout=LONG)] == [1, "next", "stopped"]
        assert other.end() == 0


def test_the_methods_of_pythons_queue_take_block(q: shmrpc.sync.Queue) -> None:
    q.put(1, True)
    q.put(2, True, 5)
    q.put(3, False)
    q.put(4, block=False)
    q.put(5, 1.5)  # A timeout.
    q.put(6, None)
    assert [q.get(True), q.get(True, 5), q.get(False), q.get(block=False), q.get(1.5), q.get(None)] == [*range(1, 7)]
    for arguments in ((False,), (True, 0.01), (0,), (False, 5), (0, 5), (1, 0.01)):
        with pytest.raises(plain_queues.Empty):
            q.get(*arguments)
    with shmrpc.sync.queue(f"{OURS}b", 1) as full:
        full.put(1)
        for waiting in ((False,), (True, 0.01), (0.01,), (None, 0.01)):
            with pytest.raises(plain_queues.Full):
                full.put(2, *waiting)
        full.get()


def test_loggings_queue_handlers_work_with_it() -> None:
    emitted: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emitted.append(record.getMessage())

    with shmrpc.sync.queue(OURS, codec="pickle") as records:
        listener = logging.handlers.QueueListener(records, Collecting())
        handler = logging.handlers.QueueHandler(records)
        listener.start()
        for number in range(10):
            handler.handle(logging.makeLogRecord({"msg": "record %d", "args": (number,)}))
        listener.stop()
        assert emitted == [f"record {number}" for number in range(10)]
        records.join(LONG)


async def test_a_queue_says_that_it_is_shut_down(q: shmrpc.sync.Queue) -> None:
    async with shmrpc.queue(OURS) as in_loop:
        assert (q.is_shutdown, in_loop.is_shutdown) == (False, False)
        q.shutdown()
        assert (q.is_shutdown, in_loop.is_shutdown) == (True, True)


OWN_ARRAYS: list[Any] = [
    np.zeros(10),
    np.zeros(1_000_000),
    np.zeros((100, 200), order="F"),
    np.zeros(3, [("a", "i4"), ("b", "f8")]),
    np.zeros(4, "M8[ns]"),
    np.zeros(()),
]


@pytest.mark.parametrize("value", OWN_ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}")
def test_arrays_of_get_are_the_receivers_own(q: shmrpc.sync.Queue, value: Any) -> None:
    raw = b"y" * 300_000
    q.put_many([value, {"array": value, "again": value, "raw": raw}, value])
    alone, together = q.get(), q.get()
    with q.claim() as claim:
        assert not claim.value.flags.writeable  # A view of the queue's memory.
    for got in (alone, together["array"], together["again"]):
        assert got.flags.writeable and got.dtype == value.dtype and got.shape == value.shape
        assert got.tobytes() == value.tobytes()
        got[...] = np.ones((), value.dtype)
    assert together["raw"] == raw and type(together["raw"]) is bytes
    assert q.stats().viewed == 0  # Nothing of the queue's memory is kept.


def test_one_text_is_not_many_items(q: shmrpc.sync.Queue) -> None:
    for items in ("abc", b"abc", bytearray(b"abc")):
        with pytest.raises(TypeError, match="expected an iterable of items, got one"):
            q.put_many(items)
        with pytest.raises(TypeError, match="expected an iterable of items, got one"):
            q.put_many_nowait(items)
    assert q.empty()


def test_the_last_close_says_what_goes_with_the_queue(other: MemberProcess, caplog: pytest.LogCaptureFixture) -> None:
    q = shmrpc.sync.queue(OURS)
    other.do(f"q = shmrpc.sync.queue({OURS!r}); result = 0")
    q.put_many(range(3))
    claim = q.claim()
    q.close()
    assert not caplog.records  # The other process has it open.
    other.do(f"q.get(); q.close(); q = shmrpc.sync.queue({OURS!r}); result = q.qsize()")
    with shmrpc.sync.queue(OURS) as q:
        q.put_many(range(3))
        claim = q.claim()
        other.do("q.close(); result = 0")
    assert [record.getMessage() for record in caplog.records if "gone" in record.getMessage()] == [
        f"queue {OURS!r}: its last process has closed it, and 3 items that waited are gone: keep it open in a process"
        " that stays, or call join() before the end"
    ]
    del claim
    caplog.clear()
    with shmrpc.sync.queue(OURS) as q:
        q.put(1)
        q.shutdown(immediate=True)
    assert not caplog.records


def test_an_iterator_that_waits_for_its_own_claim_logs_a_warning(
    q: shmrpc.sync.Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_queue, "WARN_AFTER", 0.01)
    q.put_many(range(2))

    def careless() -> None:
        for claim in q.claims():
            assert claim.value == 0

    waiting = InThread(careless)
    assert eventually(lambda: len(caplog.records) > 0)
    assert "claims() waits for <shmrpc claim of item 0" in caplog.text and "with claim:" in caplog.text
    q.stop()
    assert isinstance(waiting.join(), shmrpc.WaitStopped)
    waiting.outcome = None  # Its traceback refers to the claim.
    q.resume()
    caplog.clear()
    kept: list[shmrpc.Claim] = []

    def careful() -> None:
        for claim in q.claims():
            kept.append(claim)  # For another thread.

    waiting = InThread(careful)
    assert eventually(lambda: len(kept) == 1)
    time.sleep(0.05)
    assert not caplog.records
    kept[0].ack()
    assert eventually(lambda: len(kept) == 2)
    q.stop()
    waiting.join()


async def test_a_task_that_waits_for_its_own_claim_logs_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "WARN_AFTER", 0.01)
    async with shmrpc.queue(OURS) as q:
        await q.put_many(range(2))

        async def careless() -> None:
            async for claim in q.claims():
                assert claim.value == 0

        waiting = asyncio.ensure_future(careless())
        while not caplog.records:
            await asyncio.sleep(0.001)
        assert "with claim:" in caplog.text
        await _cancelled(waiting)


def test_join_says_that_task_done_was_forgotten(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(3))
    q.get()
    with pytest.raises(
        shmrpc.WaitTimeout, match=r"3 items were not done .*task_done\(\) was not called for 1 that get"
    ):
        q.join(0.01)
    q.task_done()
    with pytest.raises(shmrpc.WaitTimeout) as raised:
        q.join(0.01)
    assert "task_done" not in str(raised.value)
