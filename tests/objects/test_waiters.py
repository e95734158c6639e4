"""The promise to waiters: each wait of the guide's table ends with the first change that it is for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_object
from tests.helpers.server_process import InThread, eventually

LONG = 60.0
OURS = f"waiter{os.getpid()}"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "shared-objects.md"

_MIB = 1 << 20


class Wait(NamedTuple):
    """A wait of the table: its start in a loop and in a thread, and the one change that ends it."""

    #: Opens the name for the other side.
    open: Callable[[], Any]
    #: Makes the wait necessary.
    prepare: Callable[[Any], Any]
    in_loop: Callable[[], Coroutine[Any, Any, Any]]
    in_thread: Callable[[], Any]
    #: Gets the name, and what ``prepare`` has returned.
    satisfy: Callable[[Any, Any], Any]


def _queue() -> shmrpc.sync.Queue:
    return shmrpc.sync.queue(OURS, 5, max_memory="4MiB")


def _loop_queue() -> shmrpc.Queue:
    return shmrpc.queue(OURS, 5, max_memory="4MiB")


def _fill(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(5))


async def _reserves() -> None:
    async with _loop_queue() as q, q.reserve(3 * _MIB) as frame:
        frame[:] = 1


def _reserves_in_thread() -> None:
    with _queue() as q, q.reserve(3 * _MIB) as frame:
        frame[:] = 1


async def _second_claim() -> None:
    async with _loop_queue() as q:
        claims = q.claims(prefetch=1)
        (await anext(claims)).ack()
        (await anext(claims)).ack()


def _second_claim_in_thread() -> None:
    with _queue() as q:
        claims = q.claims(prefetch=1)
        next(claims).ack()
        next(claims).ack()


async def _with(opened: Any, wait: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Wait in a loop, and close the handle."""
    try:
        return await wait(opened)
    finally:
        opened.close()


def _with_in_thread(opened: Any, wait: Callable[[Any], Any]) -> Any:
    try:
        return wait(opened)
    finally:
        opened.close()


def _loops(opened: Callable[[], Any], wait: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    return lambda: _with(opened(), wait)


def _threads(opened: Callable[[], Any], wait: Callable[[Any], Any]) -> Any:
    return lambda: _with_in_thread(opened(), wait)


def _topic() -> shmrpc.sync.Topic:
    return shmrpc.sync.topic(OURS, high_watermark=4, low_watermark=3)


def _publish_all(s: shmrpc.sync.Subscription) -> Any:
    t = _topic()
    t.publish_many(range(4))
    return t


def _entered(transaction: Any) -> Any:
    transaction.__enter__()
    return transaction


async def _transacts(s: shmrpc.Store) -> None:
    async with s.transaction(LONG):
        pass


def _transacts_in_thread(s: shmrpc.sync.Store) -> None:
    with s.transaction(LONG):
        pass


async def _next_change(s: shmrpc.Store) -> Any:
    seen = aiter(shmrpc.watch(s))
    await anext(seen)  # The present state.
    return await anext(seen)


def _next_change_in_thread(s: shmrpc.sync.Store) -> Any:
    seen = iter(shmrpc.watch(s))
    next(seen)  # The present state.
    return next(seen)


def _store() -> shmrpc.sync.Store:
    return shmrpc.sync.store(OURS)


def _nothing(opened: Any) -> None:
    """Nothing is there to wait for so far."""


WAITS = {
    "queue.put()": Wait(
        _queue,
        _fill,
        _loops(_loop_queue, lambda q: q.put(5)),
        _threads(_queue, lambda q: q.put(5)),
        lambda q, _: q.get(),
    ),
    "queue.put_many()": Wait(
        _queue,
        _fill,
        _loops(_loop_queue, lambda q: q.put_many([5, 6])),
        _threads(_queue, lambda q: q.put_many([5, 6])),
        lambda q, _: q.get_many(2),
    ),
    "queue.reserve()": Wait(
        _queue, lambda q: q.put(bytes(3 * _MIB)), _reserves, _reserves_in_thread, lambda q, _: q.get()
    ),
    "queue.get()": Wait(
        _queue,
        _nothing,
        _loops(_loop_queue, lambda q: q.get()),
        _threads(_queue, lambda q: q.get()),
        lambda q, _: q.put(1),
    ),
    "queue.claim()": Wait(
        _queue,
        lambda q: (q.put(1), q.claim())[1],
        _loops(_loop_queue, lambda q: q._claim(None, 0.0, None)),
        _threads(_queue, lambda q: q.claim()),
        lambda q, claim: claim.nack(),
    ),
    "queue.claims()": Wait(_queue, lambda q: q.put(1), _second_claim, _second_claim_in_thread, lambda q, _: q.put(2)),
    "queue.join()": Wait(
        _queue,
        lambda q: (q.put(1), q.get()),
        _loops(_loop_queue, lambda q: q.join()),
        _threads(_queue, lambda q: q.join()),
        lambda q, _: q.task_done(),
    ),
    "lock.acquire()": Wait(
        lambda: shmrpc.sync.Lock(OURS),
        lambda lock: lock.acquire(),
        _loops(lambda: shmrpc.Lock(OURS), lambda lock: lock.acquire()),
        _threads(lambda: shmrpc.sync.Lock(OURS), lambda lock: lock.acquire()),
        lambda lock, _: lock.release(),
    ),
    "semaphore.acquire()": Wait(
        lambda: shmrpc.sync.Semaphore(OURS, 1),
        lambda gate: gate.acquire(),
        _loops(lambda: shmrpc.Semaphore(OURS, 1), lambda gate: gate.acquire()),
        _threads(lambda: shmrpc.sync.Semaphore(OURS, 1), lambda gate: gate.acquire()),
        lambda gate, _: gate.release(),
    ),
    "signal.wait()": Wait(
        lambda: shmrpc.sync.Signal(OURS),
        _nothing,
        _loops(lambda: shmrpc.Signal(OURS), lambda ready: ready.wait()),
        _threads(lambda: shmrpc.sync.Signal(OURS), lambda ready: ready.wait()),
        lambda ready, _: ready.signal(),
    ),
    "event.wait()": Wait(
        lambda: shmrpc.sync.Event(OURS),
        _nothing,
        _loops(lambda: shmrpc.Event(OURS), lambda event: event.wait()),
        _threads(lambda: shmrpc.sync.Event(OURS), lambda event: event.wait()),
        lambda event, _: (event.set(), event.clear()),
    ),
    "topic.publish()": Wait(
        lambda: shmrpc.sync.subscribe(OURS),
        _publish_all,
        _loops(lambda: shmrpc.topic(OURS, high_watermark=4, low_watermark=3), lambda t: t.publish(4)),
        _threads(_topic, lambda t: t.publish(4)),
        lambda s, _: s.get(),
    ),
    "subscription.get()": Wait(
        _topic,
        _nothing,
        _loops(lambda: shmrpc.subscribe(OURS), lambda s: s.get()),
        _threads(lambda: shmrpc.sync.subscribe(OURS), lambda s: s.get()),
        lambda t, _: t.publish(1),
    ),
    "store.transaction()": Wait(
        _store,
        lambda s: _entered(s.transaction()),
        _loops(lambda: shmrpc.store(OURS), _transacts),
        _threads(_store, _transacts_in_thread),
        lambda s, transaction: transaction.__exit__(None, None, None),
    ),
    "store.inbox.take()": Wait(
        _store,
        _nothing,
        _loops(lambda: shmrpc.store(OURS), lambda s: s.inbox.take()),
        _threads(_store, lambda s: s.inbox.take()),
        lambda s, _: s.inbox.put(1),
    ),
    "shmrpc.watch()": Wait(
        _store,
        _nothing,
        _loops(lambda: shmrpc.store(OURS), _next_change),
        _threads(_store, _next_change_in_thread),
        lambda s, _: s.update(key=1),
    ),
}


def _is_waiting() -> bool:
    report = inspect_object(OURS)
    return report is not None and report.waiters == 1


@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_of_a_task_ends_with_the_first_change_that_it_is_for(wait: str) -> None:
    case = WAITS[wait]
    opened = case.open()
    prepared = case.prepare(opened)
    waiting = asyncio.ensure_future(case.in_loop())
    while not await asyncio.to_thread(_is_waiting):
        assert not waiting.done()
    case.satisfy(opened, prepared)
    await asyncio.wait_for(waiting, LONG)
    opened.close()


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_of_a_thread_ends_with_the_first_change_that_it_is_for(wait: str) -> None:
    case = WAITS[wait]
    with contextlib.closing(case.open()) as opened:
        prepared = case.prepare(opened)
        waiting = InThread(case.in_thread)
        assert eventually(_is_waiting)
        case.satisfy(opened, prepared)
        assert not isinstance(waiting.join(), Exception)


async def test_attach_goes_on_once_a_process_has_the_name_open() -> None:
    waiting = asyncio.ensure_future(shmrpc.attach(OURS, None))
    thread = InThread(lambda: shmrpc.sync.attach(OURS, None).close())
    await asyncio.sleep(0)
    with shmrpc.sync.queue(OURS):
        (await asyncio.wait_for(waiting, LONG)).close()
        await asyncio.to_thread(thread.join)


def test_the_guide_promises_something_to_each_waiter() -> None:
    section = PAGE.read_text().partition("## What a waiter is promised")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.M)) == WAITS.keys() | {"shmrpc.attach()"}
