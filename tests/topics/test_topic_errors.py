"""Errors of topics for the mistakes of new users."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_all_objects
from shmrpc.topics.blocking_subscription import BlockingSubscription
from tests.helpers.member_process import MemberProcess

OURS = f"topic_errors{os.getpid()}"


@pytest.fixture
def topic() -> Iterator[shmrpc.sync.Topic]:
    with shmrpc.sync.topic(OURS) as opened:
        yield opened


def test_more_subscribers_than_there_is_room_for_raise() -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(128):
            stack.enter_context(shmrpc.sync.subscribe(OURS))
        with pytest.raises(shmrpc.SharedMemoryError, match=f"'{OURS}' already has 128 subscribers") as raised:
            shmrpc.sync.subscribe(OURS)
        assert raised.value.errno == errno.EUSERS
    shmrpc.sync.subscribe(OURS).close()


def test_a_topic_of_values_is_not_one_of_raw_bytes() -> None:
    with MemberProcess() as other:
        other.do(f"s = sync.subscribe({OURS!r}, raw=True)")
        expected = r"already open as a topic of raw bytes \(raw=True\), not a topic of values \(raw=False\): use"
        with pytest.raises(shmrpc.NameConflict, match=expected):
            shmrpc.sync.topic(OURS)
        with shmrpc.sync.topic(OURS, raw=True) as t, pytest.raises(shmrpc.EncodeError) as raised:
            t.publish("text")
        assert all(part in str(raised.value) for part in ("buffer of bytes", "<class 'str'>", "open it with raw=False"))


def test_a_value_that_contains_itself_cannot_be_published() -> None:
    endless: list[object] = []
    endless.append(endless)
    with shmrpc.sync.topic(OURS) as t, pytest.raises(shmrpc.EncodeError, match="it contains itself, or is nested"):
        t.publish(endless)


def test_one_that_has_ended_and_one_that_cuts_off_are_named_and_what_to_do() -> None:
    with (
        MemberProcess() as other,
        shmrpc.sync.subscribe(OURS, on_publisher_lost="raise") as complete,
        shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.Disconnect(4)) as strict,
    ):
        other.do(f"t = sync.topic({OURS!r}, high_watermark=8); t.__enter__(); t.publish_many(range(8))")
        first = complete.get()
        complete.get_many()
        other.do("t.publish(8)")
        with pytest.raises(
            shmrpc.SlowConsumer, match="read faster, or with a larger Disconnect.n., .* KeepLast.n."
        ) as cut:
            strict.get_many()
        other.do("t.close()")
        complete.get_many()
        with pytest.raises(shmrpc.PublisherGone, match="and all of its messages are read") as gone:
            complete.get()
        for error in (cut.value, gone.value, pickle.loads(pickle.dumps(gone.value))):
            assert (error.pid, error.number) == (other.pid, first.publisher.number) == first.publisher
            assert f"publisher {error.number} of process {other.pid} has" in str(error)


def test_the_error_of_a_wait_that_fails_names_the_publishers() -> None:
    with shmrpc.sync.subscribe(OURS) as s:
        with pytest.raises(shmrpc.WaitTimeout, match=r"within 0.01 s: it has no publisher; 'shmrpc topic ls'"):
            s.get(timeout=0.01)
        with shmrpc.sync.topic(OURS), pytest.raises(shmrpc.WaitTimeout, match="this process publishes, and"):
            s.get(timeout=0.01)


def test_memory_that_is_too_small_is_refused_with_what_is_enough() -> None:
    for memory in (1, "16KiB"):
        with pytest.raises(ValueError, match=r"max_memory: expected 16385 or more, .*, or 0 .*; got \d+"):
            shmrpc.sync.topic(OURS, max_memory=memory)
    with shmrpc.sync.subscribe(OURS) as s:
        for memory in (16385, 1_000_000):
            with shmrpc.sync.topic(OURS, max_memory=memory, high_watermark=2) as t:
                with pytest.raises(ValueError, match=r"open it with max_memory=\d+ or more") as raised:
                    t.publish(b"x" * 2 * memory)
                enough = int(str(raised.value).rpartition("=")[2].split()[0])
            with shmrpc.sync.topic(OURS, max_memory=enough) as t:
                t.publish(b"x" * 2 * memory)
                assert len(s.get().value) == 2 * memory


def test_the_smallest_memory_has_room_for_the_smallest_message_that_needs_it() -> None:
    with shmrpc.sync.topic(OURS, raw=True, max_memory=16385) as t, shmrpc.sync.subscribe(OURS, raw=True) as s:
        for _ in range(3):
            t.publish(b"x" * 16385, timeout=0)
            assert len(s.get().value) == 16385


def test_the_bytes_that_each_subscriber_keeps_are_seen() -> None:
    with shmrpc.sync.topic(OURS) as t, shmrpc.sync.subscribe(OURS) as s, shmrpc.sync.subscribe(OURS) as other:
        t.publish(np.zeros(100_000, "u1"))
        kept = s.get().value
        assert [each.kept // 100_000 for each in t.subscribers()] == [1, 0]
        [report] = [each.subscribers for each in inspect_all_objects(pytest.fail) if each.name == OURS]
        assert report == t.subscribers()
        del kept
        assert [each.kept for each in t.subscribers()] == [0, 0]
        assert other.get().value.sum() == 0


@pytest.mark.parametrize("copies", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copying_a_message_raises_with_a_remedy(copies: Callable[[object], object]) -> None:
    with shmrpc.sync.topic(OURS) as t, shmrpc.sync.subscribe(OURS) as s:
        t.publish(1)
        with pytest.raises(TypeError, match=r"message 0 of a topic cannot be copied or pickled: .* m\.value"):
            copies(s.get())


def test_a_handle_says_what_it_is_for() -> None:
    with shmrpc.sync.topic(OURS, high_watermark=8, max_memory=0) as t:
        assert repr(t) == f"<shmrpc topic {OURS!r}, publishes with high_watermark=8, max_memory=0>"
        for policy, shown in (("block", "'block'"), (shmrpc.KeepLast(3), "KeepLast(3)")):
            with shmrpc.sync.subscribe(OURS, slow_policy=policy) as s:  # type: ignore[arg-type]
                assert repr(s) == f"<shmrpc topic {OURS!r}, reads with slow_policy={shown}>"
    assert repr(t).endswith(", closed>")


def test_a_forked_child_has_no_topic_and_raises(topic: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.subscribe(OURS, slow_policy=shmrpc.KeepLast(1)) as s:
        topic.publish_many(range(3))
        s.get()
        assert s.lost == 2
        asked = (lambda: s.lost, lambda: s.publishers, lambda: topic.published, topic.subscribers, s.fileno)
        child = os.fork()
        if not child:
            told = 0
            for ask in asked:
                with contextlib.suppress(shmrpc.LocalProtocolError):
                    ask()
                    told -= 1
                told += 1
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(asked)


def test_a_time_that_is_over_before_it_begins_is_refused_by_all_that_wait(topic: shmrpc.sync.Topic) -> None:
    with (
        shmrpc.sync.subscribe(OURS) as s,
        shmrpc.sync.queue(f"{OURS}.queue") as q,
        shmrpc.sync.Semaphore(f"{OURS}.semaphore") as semaphore,
        shmrpc.sync.Lock(f"{OURS}.lock") as lock,
        contextlib.closing(shmrpc.sync.Event(f"{OURS}.event")) as event,
        shmrpc.sync.Signal(f"{OURS}.ready") as ready,
    ):
        waits: list[Callable[[float], object]] = [
            lambda seconds: topic.publish(1, timeout=seconds),
            lambda seconds: topic.reserve(100_000, timeout=seconds),
            s.get,
            lambda seconds: s.get_many(1, seconds),
            lambda seconds: q.put(1, timeout=seconds),
            q.get,
            q.claim,
            q.join,
            semaphore.acquire,
            ready.wait,
            lock.acquire,
            event.wait,
            lambda seconds: shmrpc.sync.attach(OURS, seconds),
        ]
        for wait in waits:
            for wrong in (-1, -0.001, float("nan"), float("-inf")):
                with pytest.raises(ValueError, match="timeout: expected seconds, 0 or more .*, got"):
                    wait(wrong)


async def test_pickling_a_handle_raises_with_a_remedy() -> None:
    with shmrpc.sync.topic(OURS) as t, shmrpc.sync.subscribe(OURS) as s:
        async with shmrpc.topic(OURS) as topic, shmrpc.subscribe(OURS) as subscription:
            for handle, opened in (
                (t, "shmrpc.sync.topic"),
                (s, "shmrpc.sync.subscribe"),
                (topic, "shmrpc.topic"),
                (subscription, "shmrpc.subscribe"),
            ):
                with pytest.raises(TypeError, match=rf"in the other process: {opened}\('{OURS}'\)"):
                    pickle.dumps(handle)


def test_a_thread_whose_message_another_thread_took_waits_on() -> None:
    """The core then returns False, as after the timeout."""
    results = [False, False, True]

    def wait_into(got: list[Any], max_items: int, timeout: float | None) -> bool:
        if waited := results.pop(0):
            got.append("message")
        return waited

    subscription: Any = SimpleNamespace(_native=SimpleNamespace(wait_into=wait_into), _raise_no_message=pytest.fail)
    got: list[Any] = []
    BlockingSubscription._wait_for_messages(subscription, got, 1, None)
    assert got == ["message"]
