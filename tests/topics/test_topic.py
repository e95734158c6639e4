"""Topics of many processes: one publishes once, many read, each at its own pace, and the slowest is a choice."""

from __future__ import annotations

import array
import asyncio
import contextlib
import functools
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_object
from shmrpc.topics import blocking_topic, topic
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually
from tests.helpers.stopped_processes import stopped

LONG = 20.0
#: A name that no other run of these tests has.
OURS = f"topic{os.getpid()}"


@pytest.fixture
def t() -> Iterator[shmrpc.sync.Topic]:
    with shmrpc.sync.topic(OURS, high_watermark=64, max_memory="4MiB") as opened:
        yield opened


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Subscription]:
    with shmrpc.sync.subscribe(OURS) as opened:
        yield opened


VALUES: list[Any] = [
    None,
    True,
    -(2**63),
    2**200,
    1.5,
    "text",
    b"bytes",
    [1, [2, {"three": 3}]],
    {"a": 1, 2: "b"},
    {1, 2},
    array.array("d", [1.0, 2.0]),
    "x" * 100_000,
    b"y" * 300_000,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}{len(repr(value))}")
def test_a_value_is_read_as_it_was_published(s: shmrpc.sync.Subscription, t: shmrpc.sync.Topic, value: Any) -> None:
    t.publish(value)
    message = s.get(LONG)
    assert message.value == value
    assert type(message.value) is type(value)
    assert (message.seq, message.publisher.pid) == (0, os.getpid())


def test_each_subscriber_reads_all_of_it(t: shmrpc.sync.Topic) -> None:
    with contextlib.ExitStack() as stack:
        subscriptions = [stack.enter_context(shmrpc.sync.subscribe(OURS)) for _ in range(5)]
        t.publish_many(range(50))
        for subscription in subscriptions:
            messages = subscription.get_many(100, LONG)
            assert [(m.value, m.seq) for m in messages] == [(i, i) for i in range(50)]
            assert subscription.get_nowait() is None


def test_arrays_are_read_in_place_and_small_ones_copied(s: shmrpc.sync.Subscription, t: shmrpc.sync.Topic) -> None:
    large, small = np.arange(100_000.0), np.arange(10)
    t.publish({"large": large, "small": small})
    t.publish(small)
    first, second = s.get_many(2, LONG)
    assert (first.value["large"] == large).all()
    assert not first.value["large"].flags.writeable
    assert (first.value["small"] == small).all()
    assert (second.value == small).all()


def test_no_function_of_python_is_called_to_read_an_array(s: shmrpc.sync.Subscription, t: shmrpc.sync.Topic) -> None:
    array = np.arange(100_000.0)
    t.publish_many([array, {"twice": [array, array], "bytes": b"x" * 50_000}])
    s.get(LONG)  # The publisher becomes known.
    called = set[str]()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_name) if event == "call" else None)
    try:
        message = s.get_nowait()
    finally:
        sys.setprofile(None)
    assert called <= {"get_nowait"}
    assert message is not None
    first, second = message.value["twice"]
    assert first is not second and (first == array).all() and (second == array).all()
    assert message.value["bytes"] == b"x" * 50_000


def test_an_array_that_is_kept_is_not_overwritten_and_delays_no_other(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(1)) as s:
        t.publish(np.full(50_000, -1.0))
        kept = s.get(LONG).value
        for i in range(100):
            t.publish(np.full(50_000, float(i)), timeout=LONG)
        assert (kept == -1.0).all()
        assert (s.get(LONG).value == 99.0).all()
        assert s.lost == 99
    assert (kept == -1.0).all()
    del kept
    gc.collect()


def test_the_slowest_is_named_when_there_is_no_room(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    t.publish_many(range(64))
    with pytest.raises(shmrpc.TopicFull, match="this process is 64 messages behind") as raised:
        t.publish(64, timeout=0.01)
    assert (raised.value.pid, raised.value.lag) == (os.getpid(), 64)
    with pytest.raises(shmrpc.TopicFull, match="6 of 10 were published") as raised:
        s.get_many(6)
        t.publish_many_nowait(range(10))
    assert raised.value.published == 6
    assert [each.lag for each in t.subscribers()] == [64]


def test_the_memory_of_a_publisher_is_bounded_and_known_before_it_is_full() -> None:
    def size() -> int:
        report = inspect_object(OURS)
        assert report is not None
        return report.size

    most = 1 << 20
    with shmrpc.sync.subscribe(OURS) as s, shmrpc.sync.topic(OURS, high_watermark=64, max_memory=most) as t:
        before = size()
        # For all small messages there is memory from the beginning, for large ones as much as max_memory.
        for value in (b"x" * 10_000, b"y" * 100_000):
            for _ in range(3):  # Round and round.
                with pytest.raises(shmrpc.TopicFull):
                    for _ in range(65):
                        t.publish_nowait(value)
                assert before <= size() <= before + (most if len(value) > 16 << 10 else 0)
                while s.get_nowait() is not None:
                    pass
        assert size() > before


def test_keep_last_reads_the_last_and_says_what_was_missed(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(3), on_lag="raise") as s:
        t.publish_many(range(1000))
        with pytest.raises(shmrpc.MessagesLost) as raised:
            s.get(LONG)
        assert raised.value.count == s.lost == 997
        assert [m.value for m in s.get_many(10, LONG)] == [997]
        assert [m.value for m in s.get_many(10, LONG)] == [998, 999]


def test_a_subscriber_that_is_cut_off_raises_as_long_as_a_wait_would_fail(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.Disconnect(10)) as s:
        t.publish_many(range(1000))
        told = []
        for _ in range(3):
            with pytest.raises(shmrpc.SlowConsumer, match="too slow, and sends it nothing more") as cut:
                s.get(LONG)
            told.append((cut.value.pid, cut.value.number))
        assert len(set(told)) == 1 and told[0][0] == os.getpid()
        assert s.get_nowait() is None, "no message is there, and no publisher waits"
        with MemberProcess() as other:
            other.do(f"t = sync.topic({OURS!r}); t.__enter__(); t.publish(1)")
            assert s.get(LONG).value == 1
            with pytest.raises(shmrpc.WaitTimeout):
                s.get(0.01)
            waits = threading.Thread(target=lambda: raised.append(_cut_off(s)))
            raised: list[shmrpc.SlowConsumer] = []
            waits.start()
            other.do("t.close()")
            waits.join()
        assert [(each.pid, each.number) for each in raised] == told[:1]
        t.close()
        with pytest.raises(shmrpc.WaitTimeout, match="it has no publisher"):
            s.get(0.01)
        with shmrpc.sync.topic(OURS) as again:
            again.publish(2)
            assert s.get(LONG).value == 2


def _cut_off(s: shmrpc.sync.Subscription) -> shmrpc.SlowConsumer:
    with pytest.raises(shmrpc.SlowConsumer) as cut:
        s.get(LONG)
    return cut.value


async def test_a_task_that_is_cut_off_raises_again() -> None:
    async with (
        shmrpc.topic(OURS, high_watermark=64) as t,
        shmrpc.subscribe(OURS, slow_policy=shmrpc.Disconnect(10)) as s,
    ):
        await t.publish_many(range(1000))
        for _ in range(2):
            with pytest.raises(shmrpc.SlowConsumer):
                await s.get(LONG)
        with MemberProcess() as other:
            other.do(f"t = sync.topic({OURS!r}); t.__enter__()")
            waits = asyncio.create_task(s.get(LONG))
            await asyncio.sleep(0)
            assert not waits.done()
            other.do("t.close()")
            with pytest.raises(shmrpc.SlowConsumer):
                await waits


def test_late_joiners_begin_where_they_have_asked_for(t: shmrpc.sync.Topic) -> None:
    t.publish_many(range(40))
    for history, first in [(0, 40), (3, 37), (1000, 0), ("oldest", 0)]:
        with shmrpc.sync.subscribe(OURS, history=history) as s:  # type: ignore[arg-type]
            assert [m.value for m in s.get_many_nowait(100)] == list(range(first, 40))


def test_a_subscriber_outlives_its_publishers() -> None:
    with shmrpc.sync.subscribe(OURS) as waits, shmrpc.sync.subscribe(OURS, on_publisher_lost="raise") as raises:
        numbers = set()
        for i in range(3):
            with shmrpc.sync.topic(OURS) as t:
                t.publish(i)
            message = waits.get(LONG)
            numbers.add(message.publisher)
            assert (message.value, message.seq) == (i, 0)
            assert raises.get(LONG).value == i
            with pytest.raises(shmrpc.PublisherGone, match=f"process {os.getpid()} has ended"):
                raises.get(LONG)
        assert len(numbers) == 3
        assert waits.publishers == []


def test_the_error_for_a_value_that_cannot_be_published_names_it(t: shmrpc.sync.Topic) -> None:
    with pytest.raises(shmrpc.EncodeError, match="value 1 cannot be published"):
        t.publish_many([1, object()])
    with pytest.raises(ValueError, match="max_memory"):
        t.publish(np.zeros(10 << 20, "u1"))
    assert t.published == 0


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("high_watermark: expected", {"high_watermark": 0}),
        ("low_watermark: ", {"high_watermark": 4, "low_watermark": 4}),
    ],
)
def test_limits_that_cannot_be_are_refused(kind: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=kind):
        shmrpc.sync.topic(OURS, **arguments)


@pytest.mark.parametrize(
    ("option", "value"),
    [("slow_policy", "drop"), ("history", "all"), ("on_lag", "rise"), ("on_publisher_lost", "raises")],
)
def test_invalid_options_of_a_subscriber_are_refused(option: str, value: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"{option}\b.*: expected"):
        shmrpc.sync.subscribe(OURS, **{option: value})  # type: ignore[arg-type]
    assert shmrpc.members(OURS) == []


def test_handles_of_a_process_say_the_same_of_the_limits(t: shmrpc.sync.Topic) -> None:
    with pytest.raises(shmrpc.NameConflict, match="high_watermark=64"):
        shmrpc.sync.topic(OURS, high_watermark=65)
    with shmrpc.sync.topic(OURS, high_watermark=64, max_memory="4MiB") as again:
        again.publish(1)
        t.publish(2)
        assert t.published == 2


def test_raw_topics_have_bytes() -> None:
    with shmrpc.sync.topic(OURS, raw=True) as t, shmrpc.sync.subscribe(OURS, raw=True) as s:
        t.publish_many([b"a", bytearray(b"b"), memoryview(b"c" * 100_000)])
        assert [m.value for m in s.get_many(10, LONG)] == [b"a", b"b", b"c" * 100_000]
        with pytest.raises(shmrpc.NameConflict):
            shmrpc.sync.topic(f"{OURS}").close()


def test_threads_share_a_subscription_and_each_message_goes_to_one(t: shmrpc.sync.Topic) -> None:
    seen: list[int] = []
    with shmrpc.sync.subscribe(OURS) as s:

        def work() -> None:
            while (value := s.get(LONG).value) is not None:
                seen.append(value)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        t.publish_many(range(2000), timeout=LONG)
        t.publish_many([None] * 4, timeout=LONG)
        for thread in threads:
            thread.join(LONG)
    assert sorted(seen) == list(range(2000))


def test_a_descriptor_is_readable_until_nothing_is_there(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS) as s:
        t.publish_many(range(3))
        loop = select.poll()
        loop.register(s.fileno(), select.POLLIN)
        assert s.fileno() == s.fileno()
        for expected in range(3):
            assert loop.poll(0)  # Also what was there before it was asked for.
            message = s.get_nowait()
            assert message is not None and message.value == expected
        assert loop.poll(0)
        assert s.get_nowait() is None
        assert not loop.poll(0)
        t.publish(3)
        assert loop.poll(LONG * 1000)
        assert [m.value for m in s.get_many_nowait()] == [3]
        assert s.get_many_nowait() == []
        assert not loop.poll(0)
        t.close()  # The end of a publisher makes it readable too, though no subscriber has to know.
        assert loop.poll(LONG * 1000)
        assert s.get_many_nowait() == []
        assert not loop.poll(0)
    with pytest.raises(shmrpc.LocalProtocolError):
        s.fileno()


def test_a_message_that_is_deferred_since_some_were_missed_makes_a_descriptor_readable(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(2), on_lag="raise") as s:
        t.publish_many(range(9))
        with pytest.raises(shmrpc.MessagesLost):
            s.get_many_nowait()
        loop = select.poll()
        loop.register(s.fileno(), select.POLLIN)
        assert loop.poll(0)
        assert [m.value for m in s.get_many_nowait()] == [7, 8]
        assert loop.poll(0) and s.get_nowait() is None and not loop.poll(0)


def test_a_loop_of_ones_own_is_woken_for_each_message(t: shmrpc.sync.Topic, other: MemberProcess) -> None:
    count = 3000
    other.do(f"import select; s = shmrpc.sync.subscribe({OURS!r}); p = select.poll(); p.register(s.fileno(), 1)")
    other.begin(
        f"""
result = []
while len(result) < {count}:
    assert p.poll({LONG * 1000}), f"not woken for {{len(result)}}"
    while messages := s.get_many_nowait(3):
        result += [m.value for m in messages]
"""
    )
    for i in range(count):
        t.publish(i)
        while i % 3 and any(each.lag for each in t.subscribers()):
            time.sleep(0)  # The publisher sleeps then, or is about to.
    assert other.end() == list(range(count))


async def test_a_descriptor_is_waited_for_by_loops_of_others(t: shmrpc.sync.Topic) -> None:
    loop = asyncio.get_running_loop()
    read: list[int] = []
    done = asyncio.Event()
    async with shmrpc.subscribe(OURS) as s:

        def is_readable() -> None:
            while messages := s.get_many_nowait():
                read.extend(m.value for m in messages)
            if len(read) == 200:
                done.set()

        descriptor = s.fileno()
        loop.add_reader(descriptor, is_readable)
        for i in range(200):
            await asyncio.to_thread(t.publish, i, LONG)
        async with asyncio.timeout(LONG):
            await done.wait()
        loop.remove_reader(descriptor)
    assert read == list(range(200))


def test_waits_end_when_they_are_stopped_or_closed(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS) as s:
        s.stop()
        with pytest.raises(shmrpc.WaitStopped):
            s.get(LONG)
        s.resume()
        t.publish(1)
        assert s.get(LONG).value == 1
    with pytest.raises(shmrpc.LocalProtocolError):
        s.get_nowait()
    t.close()
    with pytest.raises(shmrpc.LocalProtocolError):
        t.publish(1)


async def test_a_loop_publishes_and_reads_and_waits_for_room() -> None:
    async with shmrpc.topic(OURS, high_watermark=8) as t, shmrpc.subscribe(OURS) as s:
        read: list[int] = []

        async def reads() -> None:
            async for message in s:
                read.append(message.value)
                if message.value == 999:
                    return

        async with asyncio.timeout(LONG):
            reading = asyncio.create_task(reads())
            await t.publish_many(range(500))
            for i in range(500, 1000):
                await t.publish(i)
            await reading
        assert read == list(range(1000))


async def test_a_wait_of_a_loop_that_is_cancelled_has_taken_nothing(t: shmrpc.sync.Topic) -> None:
    async with shmrpc.subscribe(OURS) as s:
        for i in range(50):
            getting = asyncio.create_task(s.get())
            await asyncio.sleep(0)
            t.publish(i)
            if i % 2:
                await asyncio.sleep(0.001)
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert (await getting).value == i
                continue
            assert (await s.get(LONG)).value == i
        with pytest.raises(shmrpc.WaitTimeout, match="no message came within"):
            await s.get(0.01)


async def test_tasks_share_a_subscription_and_each_message_goes_to_one(t: shmrpc.sync.Topic) -> None:
    seen: list[int] = []
    async with shmrpc.subscribe(OURS) as s:

        async def work() -> None:
            while (value := (await s.get(LONG)).value) is not None:
                seen.append(value)

        publishing = asyncio.to_thread(t.publish_many, [*range(500), *[None] * 4], LONG)
        await asyncio.gather(publishing, *[work() for _ in range(4)])
    assert sorted(seen) == list(range(500))


def test_threads_publish_in_one_handle_and_all_of_it_is_read() -> None:
    count = 500
    with shmrpc.sync.topic(OURS, high_watermark=16) as t, shmrpc.sync.subscribe(OURS) as s:

        def work(thread: int) -> None:
            for i in range(0, count, 5):
                t.publish((thread, i), timeout=LONG)
                t.publish_many([(thread, i + step) for step in range(1, 5)], timeout=LONG)

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, thread) for thread in range(4)]
            messages = [s.get(LONG) for _ in range(4 * count)]
            for each in working:
                each.result(LONG)
    assert [m.seq for m in messages] == list(range(4 * count))
    for thread in range(4):
        assert [m.value[1] for m in messages if m.value[0] == thread] == list(range(count))


class Halting:
    """A value whose reading halts until it may go on."""

    reads, may_go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _halt, ()


def _halt() -> str:
    Halting.reads.set()
    assert Halting.may_go_on.wait(LONG)
    return "halted"


def _unreadable() -> None:
    raise LookupError


class Unreadable:
    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _unreadable, ()


def test_messages_that_a_thread_leaves_unread_are_kept_though_another_reads_meanwhile() -> None:
    with shmrpc.sync.topic(OURS, codec="pickle") as t, shmrpc.sync.subscribe(OURS, codec="pickle") as s:
        t.publish_many([0, Unreadable(), Halting(), 3])
        assert [m.value for m in s.get_many(9)] == [0]
        with pytest.raises(shmrpc.DecodeError, match="message 1 "):
            s.get_nowait()
        with ThreadPoolExecutor(1) as pool:
            halted = pool.submit(s.get_many, 1)  # The fourth one is left.
            try:
                assert Halting.reads.wait(LONG)
                t.publish_many([4, Unreadable(), 6])
                assert [m.value for m in s.get_many(9)] == [4]
            finally:
                Halting.may_go_on.set()
            assert [m.value for m in halted.result(LONG)] == ["halted"]
        assert [m.value for m in s.get_many(9)] == [3]
        with pytest.raises(shmrpc.DecodeError, match="message 5 "):
            s.get_nowait()
        assert [m.value for m in s.get_many(9)] == [6]


def test_a_message_is_nothing_for_the_garbage_collector(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    t.publish([1])
    message = s.get(LONG)
    assert not gc.is_tracked(message)
    with pytest.raises(AttributeError):
        message.value = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        type(message)()
    values = [message.value] * 2
    del message
    assert values == [[1], [1]]


def test_a_reserved_array_is_filled_in_place_and_looked_at_there(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS) as s, shmrpc.sync.subscribe(OURS) as other:
        with t.reserve((100, 1000), "f4") as filled:
            assert s.get_nowait() is None
            filled[:] = 1.0
        first, second = (each.get(LONG).value for each in (s, other))
        assert first.shape == (100, 1000) and first.dtype == np.float32
        assert not first.flags.writeable and not first.flags.owndata
        filled[0, 0] = 7.0  # The publisher's own memory: nothing was copied on the way.
        assert first[0, 0] == second[0, 0] == 7.0
        assert (first[1:] == 1.0).all()


@pytest.mark.parametrize("shape", [3, 1000, 30_000])
def test_a_block_that_raises_publishes_nothing(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription, shape: int) -> None:
    with pytest.raises(ZeroDivisionError), t.reserve(shape, "i4") as abandoned:
        abandoned[:] = 1
        raise ZeroDivisionError
    assert t.published == 0 and t._native.stats()[1] == 0
    for _ in range(100):  # More than all of its memory.
        with t.reserve(shape, "i4", LONG) as array:
            array[:] = 2
        assert (s.get(LONG).value == 2).all()


async def test_a_cancelled_block_publishes_nothing_and_one_that_waits_has_no_memory() -> None:
    size = 100_000
    async with shmrpc.topic(OURS, max_memory=150_000) as t, shmrpc.subscribe(OURS) as s:

        async def fills() -> None:
            async with t.reserve(size) as array:
                array[:] = 1
                await asyncio.sleep(LONG)

        async def waits() -> None:
            async with t.reserve(size, timeout=LONG) as array:
                array[:] = 2

        filling = asyncio.create_task(fills())
        await asyncio.sleep(0)
        with pytest.raises(shmrpc.TopicFull, match="reserved, and being filled"):
            async with t.reserve(size, timeout=0.01):
                raise AssertionError
        given_up, waiting = asyncio.create_task(waits()), asyncio.create_task(waits())
        await asyncio.sleep(0)
        given_up.cancel()
        filling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await filling
        async with asyncio.timeout(LONG):
            await waiting
        assert ((await s.get(LONG)).value == 2).all()
        assert t.published == 1 and s.get_nowait() is None
        assert given_up.cancelled()


def test_raw_bytes_are_filled_in_place() -> None:
    with shmrpc.sync.topic(OURS, raw=True, max_memory="1MiB") as t, shmrpc.sync.subscribe(OURS, raw=True) as s:
        for size in (0, 1, 20_000, 1 << 20):
            with t.reserve(size) as block:
                assert isinstance(block, memoryview)
                block[:] = b"x" * size
            assert s.get(LONG).value == b"x" * size
            del block
        for bad in (2**64 - 1, 2**63, (1 << 20) + 1):
            with pytest.raises(ValueError, match="max_memory"), t.reserve(bad):
                raise AssertionError
        with pytest.raises(TypeError, match=r"expected a number of bytes, got \(2, 3\)"), t.reserve((2, 3)):
            raise AssertionError


def test_a_reservation_waits_for_memory_and_for_room(s: shmrpc.sync.Subscription, t: shmrpc.sync.Topic) -> None:
    shape = (3 << 20) // 8

    def fill(value: float) -> None:
        with t.reserve(shape, "f8", LONG) as array:
            array[:] = value

    fill(1.0)
    with pytest.raises(shmrpc.TopicFull, match="has not read, or still uses"), t.reserve(shape, "f8", 0.01):
        raise AssertionError
    filling = threading.Thread(target=fill, args=(2.0,))
    filling.start()
    first = s.get(LONG)
    del first
    gc.collect()
    assert (s.get(LONG).value == 2.0).all()
    filling.join(LONG)
    gc.collect()
    with pytest.raises(shmrpc.TopicFull, match="64 messages behind"), t.reserve(shape, "f8", 0.01) as array:
        t.publish_many(range(64))
        array[:] = 3.0
    assert t._native.stats()[1] == 0 and t.published == 66


@pytest.mark.parametrize("bad", [object(), np.zeros(5 << 20, "u1"), "x" * (5 << 20)], ids=["object", "array", "text"])
def test_of_a_batch_with_what_can_never_be_published_nothing_is(t: shmrpc.sync.Topic, bad: Any) -> None:
    with pytest.raises((shmrpc.EncodeError, ValueError), match="value 2|max_memory"):
        t.publish_many([0, 1, bad, 3])
    with pytest.raises((shmrpc.EncodeError, ValueError)):
        t.publish(bad)
    assert t.published == 0 and t._native.stats()[1] == 0


def test_of_values_whose_iterator_raises_nothing_is_published(t: shmrpc.sync.Topic) -> None:
    def values() -> Iterator[Any]:
        yield 1
        t.publish(0)  # The topic may be used meanwhile.
        yield np.zeros(100_000)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        t.publish_many(values())
    assert t.published == 1 and t._native.stats()[1] == 0


def test_without_memory_small_values_are_published() -> None:
    with shmrpc.sync.topic(OURS, max_memory=0) as t, shmrpc.sync.subscribe(OURS) as s:
        t.publish_many([1, "x" * 1000, np.zeros(100)])
        assert len(s.get_many(3, LONG)) == 3
        for large in ("x" * 100_000, np.zeros(100_000)):
            with pytest.raises(ValueError, match=r"max_memory=\d+ is too little; open it with max_memory="):
                t.publish(large)
        with pytest.raises(ValueError, match="max_memory"), t.reserve(100_000):
            raise AssertionError


def test_of_many_that_wait_for_room_none_is_left_asleep(other: MemberProcess) -> None:
    def works(publish: Any, who: int) -> None:
        for i in range(100):
            publish((who, i, b"x" * 30_000 if i % 7 == 0 else b""), timeout=LONG)

    with shmrpc.sync.topic(OURS, high_watermark=4, max_memory=150_000) as t, shmrpc.sync.subscribe(OURS) as s:
        other.do(f"t = shmrpc.sync.topic({OURS!r}, high_watermark=4, max_memory=150_000).__enter__()")
        other.begin(
            f"""
import threading
threads = [threading.Thread(target=lambda: [t.publish((9, i), timeout={LONG}) for i in range(100)]) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
        )
        with ThreadPoolExecutor(3) as pool:
            working = [pool.submit(works, t.publish, who) for who in range(3)]
            read: list[Any] = []
            while len(read) < 600:
                read += [m.value for m in s.get_many(3, LONG)]
            for each in working:
                each.result(LONG)
        other.end()
        for who in range(3):
            assert [value[1] for value in read if value[0] == who] == list(range(100))


def test_a_wait_ends_when_another_thread_closes_the_handle(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    t.publish_many(range(64))  # All that fit while no subscriber reads.
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):  # A thread that is about to sleep hears of it, too.
            with (
                shmrpc.sync.topic(OURS, high_watermark=64, max_memory="4MiB") as full,
                shmrpc.sync.subscribe(OURS) as nothing,
            ):
                waits: list[Future[Any]] = [pool.submit(full.publish, 1), pool.submit(nothing.get)]
                full.close()
                nothing.close()
                for wait in waits:
                    with pytest.raises(shmrpc.LocalProtocolError):
                        wait.result(LONG)


def test_a_wait_that_a_signal_ends_has_taken_nothing(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    def handle(number: int, frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for wait in (lambda: s.get(LONG), lambda: t.publish_many(range(65), LONG)):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(InterruptedError):
                wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [m.value for m in s.get_many(100, LONG)] == list(range(64))
    assert s.get_nowait() is None


def test_missed_messages_are_reported_once_and_no_other_is_lost(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(50), on_lag="raise") as s:
        seen: list[int] = []
        missed: list[int] = []

        def work() -> None:
            while True:
                try:
                    messages = [message] if (message := s.get_nowait()) else s.get_many(3, LONG)
                except shmrpc.MessagesLost as lost:
                    missed.append(lost.count)
                    continue
                seen.extend(m.value for m in messages if m.value is not None)
                if any(m.value is None for m in messages):
                    return

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(0, 5000, 100):
            t.publish_many(range(i, i + 100))
        while any(thread.is_alive() for thread in threads):
            t.publish(None)
            time.sleep(0.001)
        assert len(seen) == len(set(seen))
        assert sum(missed) == s.lost
        assert len(seen) + s.lost >= 5000 and len(seen) <= 5000


def test_more_arrays_than_may_be_lent_are_copied(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(1)) as s:
        kept = []
        for i in range(100):
            t.publish(np.full(10_000, float(i)), timeout=LONG)
            kept.append(s.get(LONG).value)
        assert [each[0] for each in kept] == [each[-1] for each in kept] == list(range(100))


def test_a_value_that_cannot_be_published_is_not_reserved(t: shmrpc.sync.Topic) -> None:
    for shape in (3, 30_000):
        with pytest.raises(shmrpc.EncodeError), t.reserve(shape, "O"):
            raise AssertionError
    reserving = t.reserve(3)
    t.close()
    with pytest.raises(shmrpc.LocalProtocolError), reserving:
        raise AssertionError


def test_another_process_reads_what_this_one_publishes(t: shmrpc.sync.Topic, other: MemberProcess) -> None:
    other.do(f"s = shmrpc.sync.subscribe({OURS!r})")
    t.publish_many([{"a": [i]} for i in range(50)])
    t.publish(np.arange(30_000))
    assert other.do("result = [m.value['a'][0] for m in s.get_many(50, 60)]") == list(range(50))
    assert other.do("result = int(s.get(60).value.sum())") == sum(range(30_000))
    assert other.do("result = s.publishers") == [os.getpid()]


def test_a_killed_publisher_leaves_what_it_has_published(other: MemberProcess) -> None:
    with shmrpc.sync.subscribe(OURS, on_publisher_lost="raise") as s:
        other.do(f"t = shmrpc.sync.topic({OURS!r}).__enter__()")
        other.do("t.publish_many(range(100))")
        pid = other.pid
        other.kill()
        assert [m.value for m in s.get_many(1000, LONG)] == list(range(100))
        with pytest.raises(shmrpc.PublisherGone, match=f"process {pid} has ended"):
            s.get(LONG)


def test_a_killed_subscriber_keeps_no_publisher_waiting(t: shmrpc.sync.Topic, other: MemberProcess) -> None:
    other.do(f"s = shmrpc.sync.subscribe({OURS!r})")
    t.publish_many(range(64))
    waiting = threading.Thread(target=t.publish_many, args=(range(500),), kwargs={"timeout": LONG})
    waiting.start()
    eventually(lambda: t.subscribers()[0].lag == 64)
    other.kill()
    waiting.join(LONG)
    assert t.subscribers() == []
    assert t.published == 564


def test_a_forked_child_uses_nothing_of_it(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    t.publish(1)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            for use in (lambda: t.publish(2), s.get_nowait):
                try:
                    use()
                    os._exit(2)
                except shmrpc.LocalProtocolError:
                    pass
            t.close()
            s.close()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    t.publish(2)
    assert [m.value for m in s.get_many(10, LONG)] == [1, 2]


async def test_attach_says_how_a_topic_is_opened(t: shmrpc.sync.Topic) -> None:
    with pytest.raises(shmrpc.NameConflict, match=r"is open as a topic: read it with shmrpc.subscribe\(\)"):
        await shmrpc.attach(OURS)
    with pytest.raises(shmrpc.NameConflict, match="is open as a topic"):
        shmrpc.sync.attach(OURS)
    assert [member.pid for member in shmrpc.members(OURS)] == [os.getpid()]


@pytest.mark.parametrize("way", ["get", "get_many", "publish", "publish_many", "reserve"])
async def test_a_loop_turns_though_others_are_so_quick_that_it_never_waits(way: str) -> None:
    """There is always a message, or room."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while turns < 3:
            await asyncio.sleep(0)
            turns += 1

    async def use(t: shmrpc.Topic, s: shmrpc.Subscription) -> None:
        for _ in range(100_000):
            if turns >= 3:
                return
            match way:
                case "get":
                    await s.get()
                case "get_many":
                    await s.get_many(2)
                case "publish":
                    await t.publish(1)
                case "publish_many":
                    await t.publish_many([1, 2])
                case "reserve":
                    async with t.reserve(20_000):
                        pass
                    s.get_many_nowait(1_000_000)
        pytest.fail("the loop has not turned")

    async with shmrpc.topic(OURS, high_watermark=400_000) as t, shmrpc.subscribe(OURS) as s:
        t.publish_many_nowait(range(200_000))
        await asyncio.gather(use(t, s), turn())


FRAME = 300_000


@contextlib.contextmanager
def frames_of(other: MemberProcess) -> Iterator[None]:
    """Let the other process publish frames of equal bytes, another byte each time, until the block ends."""
    other.do(f"t = sync.topic({OURS!r}, high_watermark=8, max_memory='2MiB')")
    other.do("import threading, numpy; over = threading.Event()")
    other.do(
        "def publish():\n"
        "    for number in range(1_000_000):\n"
        "        if over.wait(0.0005): return\n"
        f"        t.publish(numpy.full({FRAME}, number % 251, 'u1'))\n"
        "publishing = threading.Thread(target=publish); publishing.start()"
    )
    yield
    other.do("over.set(); publishing.join(); t.close()")


def published_since(other: MemberProcess, count: int) -> bool:
    before = other.do("result = t.published")
    return eventually(lambda: other.do("result = t.published") >= before + count)


def test_an_array_stays_as_it_is_though_its_process_has_closed_all_that_it_had_of_the_topic(
    other: MemberProcess,
) -> None:
    with frames_of(other):
        with shmrpc.sync.subscribe(OURS) as s:
            frame = s.get(LONG).value
        first = int(frame[0])
        assert published_since(other, 30)
        assert set(frame.tolist()) == {first}
        assert os.getpid() in [member.pid for member in shmrpc.members(OURS)]
        del frame
        gc.collect()
        assert os.getpid() not in [member.pid for member in shmrpc.members(OURS)]


def test_subscribers_that_keep_arrays_delay_no_other(other: MemberProcess) -> None:
    with frames_of(other), contextlib.ExitStack() as stack:
        kept = []
        for _ in range(4):
            s = stack.enter_context(shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(1)))
            kept += [s.get(LONG).value for _ in range(3)]
        assert published_since(other, 30)
        assert all(set(frame.tolist()) == {int(frame[0])} for frame in kept)


def test_one_that_subscribes_while_a_publisher_dies_reads_nothing_of_it(other: MemberProcess) -> None:
    for _ in range(5):
        with MemberProcess() as dying, shmrpc.sync.subscribe(OURS):
            dying.do(f"t = sync.topic({OURS!r}); t.publish(1)")
            dying.kill()
            for _ in range(20):
                with shmrpc.sync.subscribe(OURS) as s:
                    assert s.get_nowait() is None


def test_one_that_was_stopped_for_longer_than_its_time_looks_once_more(
    other: MemberProcess, s: shmrpc.sync.Subscription
) -> None:
    other.do(f"t = sync.topic({OURS!r}, high_watermark=1, low_watermark=0); t.publish(0)")
    allowed, number = 0.02, 0
    while number < 20:
        begun = time.monotonic()
        other.begin(f"t.publish({number + 1}, {allowed})")
        time.sleep(0.002 * (number % 5))
        with stopped(other.pid):
            ran = time.monotonic() - begun
            assert s.get(LONG).value == number
            time.sleep(1.5 * allowed)
        if ran < allowed:
            other.end()
            number += 1
        else:  # The machine is busy: the publisher may have had all of its time before it was stopped.
            with contextlib.suppress(RuntimeError):
                other.end()
            s.get_nowait()
            other.do(f"t.publish({number})")
            allowed *= 2


@pytest.mark.parametrize("end", ["close", "collect", "exit"])
def test_one_that_was_there_first_loses_nothing_of_a_publisher_that_ends_at_once(
    other: MemberProcess, end: str
) -> None:
    other.do(f"s = sync.subscribe({OURS!r}); result = 0")
    with MemberProcess() as publisher:
        with stopped(other.pid):  # The stopped subscriber cannot attach to the new publisher.
            publisher.do(f"import gc; t = sync.topic({OURS!r}); t.publish_many(range(10)); result = 0")
            if end == "exit":
                ending = InThread(publisher.close)
            else:
                publisher.begin(f"{'t.close()' if end == 'close' else 'del t; gc.collect()'}; result = 0")
            assert not publisher.ends(0.02)
        assert other.do(f"result = [m.value for m in s.get_many(10, {LONG})]") == list(range(10))
        if end == "exit":
            assert ending.join() == 0
        else:
            publisher.end()


async def test_a_task_that_leaves_its_topic_awaits_those_that_were_there(
    other: MemberProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "ATTACH_TIMEOUT", LONG)
    other.do(f"s = sync.subscribe({OURS!r}); result = 0")
    with stopped(other.pid):
        left = shmrpc.topic(OURS)
        await left.publish_many(range(10))
        leaving = asyncio.ensure_future(left.__aexit__(None, None, None))
        await asyncio.sleep(0.02)
        assert not leaving.done()  # And the loop turns.
    await leaving
    assert other.do(f"result = [m.value for m in s.get_many(10, {LONG})]") == list(range(10))


@pytest.mark.parametrize("comes_first", [True, False])
def test_one_that_asks_for_it_is_cut_off_at_its_own_number(comes_first: bool) -> None:
    with contextlib.ExitStack() as stack:

        def subscribe() -> shmrpc.sync.Subscription:
            return stack.enter_context(shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.Disconnect(5)))

        early = subscribe() if comes_first else None
        t = stack.enter_context(shmrpc.sync.topic(OURS))
        strict = early or subscribe()
        for _ in range(20):
            t.publish_many(range(5))  # The subscriber may be this many behind.
            assert [m.value for m in strict.get_many(10, LONG)] == [0, 1, 2, 3, 4]
        for number in range(6):
            t.publish(number)
        with pytest.raises(shmrpc.SlowConsumer):
            strict.get(LONG)


def test_a_publisher_that_waits_for_its_own_thread_logs_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_topic, "WARN_AFTER", 0.01)
    with shmrpc.sync.topic(OURS, high_watermark=1) as t, shmrpc.sync.subscribe(OURS) as s:
        t.publish(0)
        for _ in range(2):
            with pytest.raises(shmrpc.TopicFull):
                t.publish(1, timeout=0.02)
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"topic {OURS!r}"]  # Once.
        assert "KeepLast" in caplog.text
        caplog.clear()
        InThread(s.get).join()
    with shmrpc.sync.topic(f"{OURS}b", high_watermark=1) as t, shmrpc.sync.subscribe(f"{OURS}b") as s:
        InThread(functools.partial(s.get_many_nowait)).join()
        t.publish(0)
        with pytest.raises(shmrpc.TopicFull):
            t.publish(1, timeout=0.02)
    assert not caplog.records  # Another thread reads it.


async def test_a_task_that_waits_for_its_own_loop_logs_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WARN_AFTER", 0.01)
    async with shmrpc.topic(OURS, high_watermark=1) as t, shmrpc.subscribe(OURS) as s:
        await t.publish(0)
        waiting = asyncio.ensure_future(t.publish(1))
        while not caplog.records:
            await asyncio.sleep(0.001)
        assert "KeepLast" in caplog.text
        assert [(await s.get()).value for _ in range(2)] == [0, 1]
        await waiting


#: Ends the main thread of a process alone: what the kernel does first with one that is killed, and may be long over
#: before the other threads have closed its descriptors.
END_MAIN_THREAD = "import ctypes, os; ctypes.CDLL(None).syscall({'aarch64': 93}.get(os.uname().machine, 60), 0)"


def test_one_that_subscribes_while_the_kernel_ends_a_publisher_reads_nothing_of_it(other: MemberProcess) -> None:
    with MemberProcess() as dying:
        dying.do(f"e = sync.subscribe({OURS!r}); t = sync.topic({OURS!r}); t.publish(1); result = 0")
        dying.begin(END_MAIN_THREAD)
        assert eventually(lambda: not _descriptors_of(dying.pid))
        with shmrpc.sync.subscribe(OURS) as s:
            assert s.get_nowait() is None
            with pytest.raises(shmrpc.WaitTimeout):
                s.get(0.01)
            dying.kill()
            other.do(f"t = sync.topic({OURS!r}).__enter__(); t.publish(2); result = 0")
            assert s.get(LONG).value == 2


def _descriptors_of(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


#: Opens names of all kinds and forks. The child closes all descriptors, as daemons do, opens files of its own, which
#: get the same numbers, and drops what it has of its parent: how many of its files are closed then.
DAEMON = """
import gc, os
handles = [sync.topic(NAME), sync.subscribe(NAME), sync.queue(NAME + "q"), sync.store(NAME + "s"),
           sync.memory(NAME + "m", 4096), sync.Semaphore(NAME + "g"), sync.Lock(NAME + "l"), sync.Event(NAME + "e")]
handles[1].fileno()
pid = os.fork()
if pid == 0:
    os.closerange(3, 4096)
    files = {number: os.fstat(number).st_ino for number in [os.memfd_create("own") for _ in range(100)]}
    handles.clear()
    gc.collect()
    lost = 0
    for number, inode in files.items():
        try:
            lost += os.fstat(number).st_ino != inode
        except OSError:
            lost += 1
    os._exit(lost)
result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
handles.clear()
"""


def test_a_forked_child_closes_no_file_of_its_own_with_what_it_has_of_its_parent(other: MemberProcess) -> None:
    assert other.do(f"NAME = {OURS!r}" + DAEMON) == 0
