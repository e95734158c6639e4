"""The holder of a lock, a permit and a transaction: who it is, how long, and that an interrupted wait leaves none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually, eventually_in_loop

LONG = 60.0
#: Tasks or threads: far more than needed until one of them has the address or ident of an earlier one.
MANY = 300


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    """Another process, which is killed at the end: what it leaves as the last member is removed."""
    with MemberProcess() as member:
        yield member
    with host_to_oneself():
        cleanup.clean()


def holds(name: str) -> list[int]:
    return [member.holds for member in shmrpc.members(name)]


def waiters(name: str) -> int:
    from shmrpc.discovery.members import inspect_object

    report = inspect_object(name)
    return 0 if report is None else report.waiters


# --- a holder is no number that is given again ---


@pytest.mark.parametrize("reentrant", [False, True])
async def test_no_other_task_is_taken_for_one_that_has_ended_with_the_lock(reentrant: bool) -> None:
    lock = shmrpc.Lock("it", reentrant=reentrant)

    async def holder() -> None:
        await lock.acquire()

    async def other_task() -> None:
        with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
            lock.release()
        with pytest.raises(shmrpc.WaitTimeout):
            await lock.acquire(0)

    try:
        await asyncio.create_task(holder())
        gc.collect()
        for _ in range(MANY):
            await asyncio.create_task(other_task())
    finally:
        lock.close()


@pytest.mark.parametrize("reentrant", [False, True])
def test_no_other_thread_is_taken_for_one_that_has_ended_with_the_lock(reentrant: bool) -> None:
    lock = shmrpc.sync.Lock("it", reentrant=reentrant)

    def other_thread() -> str:
        with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
            lock.release()
        with pytest.raises(shmrpc.WaitTimeout):
            lock.acquire(0)
        return "neither"

    try:
        assert InThread(lock.acquire).join() is True
        for _ in range(20):
            assert InThread(other_thread).join() == "neither"
    finally:
        lock.close()


async def test_no_other_task_is_taken_for_one_that_has_ended_within_a_transaction() -> None:
    store = shmrpc.store("it")
    left: list[Any] = []

    async def holder() -> None:
        transaction = store.transaction()
        await transaction.__aenter__()
        store["half"] = 1
        left.append(transaction)

    async def other_task() -> None:
        with pytest.raises(shmrpc.WaitTimeout):
            await store.transaction(0).__aenter__()
        assert "half" not in store

    try:
        await asyncio.create_task(holder())
        gc.collect()
        for _ in range(MANY):
            await asyncio.create_task(other_task())
        left.clear()  # The transaction is dropped, and rolled back.
        async with store.transaction(0):
            assert "half" not in store
    finally:
        store.close()


async def test_tasks_without_room_for_an_attribute_are_distinguished_too() -> None:
    class Bare(asyncio.Task[Any]):
        def __setattr__(self, name: str, value: object) -> None:
            if "shmrpc" in name:
                raise AttributeError(name)
            super().__setattr__(name, value)

    lock = shmrpc.Lock("it")

    async def holds_it() -> None:
        async with lock:
            task = Bare(other_task(), loop=asyncio.get_running_loop())
            assert await task == "neither"

    async def other_task() -> str:
        with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
            lock.release()
        with pytest.raises(shmrpc.WaitTimeout):
            await lock.acquire(0)
        return "neither"

    try:
        await Bare(holds_it(), loop=asyncio.get_running_loop())
        assert not lock.locked()
    finally:
        lock.close()


# --- the holder is the task that calls acquire() ---

WAYS: dict[str, Callable[[Coroutine[Any, Any, bool]], Awaitable[Any]]] = {
    "await": lambda acquire: acquire,
    "wait_for": lambda acquire: asyncio.wait_for(acquire, LONG),
    "create_task": lambda acquire: asyncio.create_task(acquire),
    "gather": lambda acquire: asyncio.gather(acquire),
    "shield": lambda acquire: asyncio.shield(acquire),
}


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reentrant", [False, True])
async def test_a_lock_is_held_by_the_task_that_calls_acquire(
    reentrant: bool, way: str, contended: bool, other: MemberProcess
) -> None:
    lock = shmrpc.Lock("it", reentrant=reentrant)
    try:
        if contended:
            other.do("it = sync.Lock('it'); it.acquire()")
            asyncio.get_running_loop().call_later(0.05, other.begin, "it.release()")
        await WAYS[way](lock.acquire())
        with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
            await asyncio.create_task(_release(lock))
        lock.release()
        assert not lock.locked()
    finally:
        lock.close()


async def _release(lock: shmrpc.Lock) -> None:
    lock.release()


async def test_a_task_that_holds_the_lock_may_let_another_one_wait_in_its_place() -> None:
    lock = shmrpc.Lock("it")
    try:
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        assert await eventually_in_loop(lambda: waiters("it") == 1)
        with pytest.raises(shmrpc.LocalProtocolError, match="would wait for itself"):
            await lock.acquire()
        lock.release()
        assert await waiting
        lock.release()
        assert not lock.locked()
    finally:
        lock.close()


async def test_a_reentrant_lock_counts_what_is_acquired_together(other: MemberProcess) -> None:
    lock = shmrpc.Lock("it", reentrant=True)
    try:
        other.do("it = sync.Lock('it'); it.acquire()")
        # Longer than one waits before it insists.
        asyncio.get_running_loop().call_later(0.1, other.begin, "it.release()")
        assert all(await asyncio.gather(lock.acquire(), lock.acquire()))
        lock.release()
        assert lock.locked()
        lock.release()
        assert not lock.locked()
    finally:
        lock.close()


def test_a_lock_that_is_acquired_for_a_thread_is_its_own() -> None:
    lock = shmrpc.Lock("it")
    try:
        assert asyncio.run(lock.acquire())
        lock.release()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        assert asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(LONG)
        lock.release()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    finally:
        lock.close()


# --- the table of the guide ---


async def _refused(release: Callable[[], object]) -> None:
    with pytest.raises(shmrpc.LocalProtocolError):
        release()


async def _task(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    async with lock:
        await asyncio.create_task(_refused(lock.release))
    await lock.acquire()
    await asyncio.to_thread(lambda: asyncio.run(_refused(lock.release)))
    lock.release()


async def _caller(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    for way in WAYS.values():
        await way(lock.acquire())
        await asyncio.create_task(_refused(lock.release))
        lock.release()


async def _calling_thread(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    def acquire() -> None:
        asyncio.run(lock.acquire())
        asyncio.run(_refused(lock.release))
        lock.release()

    await asyncio.to_thread(acquire)


async def _thread(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    def acquire() -> None:
        with blocking:
            assert InThread(blocking.release).join().__class__ is shmrpc.LocalProtocolError
        blocking.acquire()
        blocking.release()

    await asyncio.to_thread(acquire)


async def _task_that_blocks(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    with blocking:
        await asyncio.create_task(_refused(lock.release))
    blocking.acquire()
    lock.release()


async def _pool_thread(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    await asyncio.to_thread(blocking.acquire)
    await _refused(blocking.release)
    assert lock.locked()


async def _ended(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    await asyncio.create_task(_acquired(lock))
    await _refused(lock.release)
    lock.close()
    assert lock._object.is_closed and holds("it") == [1]
    blocking.close()
    assert holds("it") == []


async def _acquired(lock: shmrpc.Lock) -> None:
    await lock.acquire()


async def _forked(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    with MemberProcess() as parent:
        parent.do("it = sync.Lock('it'); it.acquire(); import os, threading")
        child = (
            "child = os.fork()\n"
            "if child == 0:\n"
            " try: it.release()\n"
            " except shmrpc.LocalProtocolError: os._exit(7)\n"
            "result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
        )
        assert parent.do(child) == 7
        assert holds("it") == [0, 1]
        parent.do("it.release()")


async def _process(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    gate = shmrpc.Semaphore("gate")
    await asyncio.create_task(gate.acquire())
    await asyncio.to_thread(gate.release)
    assert not gate.locked()
    gate.close()


async def _transaction(lock: shmrpc.Lock, blocking: shmrpc.sync.Lock) -> None:
    async def sees_nothing() -> None:
        assert "half" not in store

    store = shmrpc.store("store")
    async with store.transaction():
        store["half"] = 1
        await asyncio.create_task(sees_nothing())
    transaction = store.transaction()
    await asyncio.wait_for(transaction.__aenter__(), LONG)
    store["half"] = 2
    del transaction
    assert store["half"] == 1
    store.close()


#: By the words with which the rows of the table begin.
ROWS = {
    "`async with lock:` or": _task,
    "`wait_for(lock.acquire(), 5)`": _caller,
    "`asyncio.run(lock.acquire())`": _calling_thread,
    "`with lock:` or `lock.acquire()` of `shmrpc.sync` in a thread": _thread,
    "`with lock:` or `lock.acquire()` of `shmrpc.sync` in a task": _task_that_blocks,
    "`asyncio.to_thread(lock.acquire)`": _pool_thread,
    "a task or thread that has ended": _ended,
    "a process that forks": _forked,
    "`acquire()` of a semaphore": _process,
    "`store.transaction()`": _transaction,
}


def test_each_row_of_the_table_of_holders_is_tested() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "shared-objects.md").read_text()
    table = guide.split("## Who may be holder")[1].split("|---|---|\n")[1].split("\n\n")[0]
    rows = [row.removeprefix("| ") for row in table.splitlines()]
    assert len(rows) == len(ROWS)
    for row, start in zip(rows, ROWS, strict=True):
        assert row.startswith(start)


@pytest.mark.parametrize("row", ROWS)
async def test_the_holder_is_whom_the_guide_says(row: str) -> None:
    lock, blocking = shmrpc.Lock("it"), shmrpc.sync.Lock("it")
    try:
        await ROWS[row](lock, blocking)
    finally:
        lock.close()
        blocking.close()


# --- a permit stays with its holder, though its handle goes ---


@pytest.mark.parametrize("acquire", ["Lock('it')", "Semaphore('it', 2)", "memory('it', 100).lock"])
def test_a_name_stays_open_while_a_permit_is_held_by_a_handle_that_is_gone(acquire: str, other: MemberProcess) -> None:
    other.do(f"sync.{acquire}.acquire(); import gc; gc.collect()")
    assert holds("it") == [1]
    other.do(f"it = sync.{acquire}; it.release(); del it; gc.collect()")
    assert shmrpc.members("it") == []
    other.do(f"sync.{acquire}.acquire(); it = sync.{acquire.removesuffix('.lock')}; it.close()")
    assert shmrpc.members("it") == []  # The last handle was closed.


def test_a_handle_that_is_gone_keeps_no_name_open_once_its_permits_are_back(other: MemberProcess) -> None:
    other.do("one, two = sync.Semaphore('it', 3), sync.Semaphore('it', 3); one.acquire(); two.acquire(); del one")
    assert holds("it") == [2]
    other.do("two.release(); two.release(); del two")
    assert shmrpc.members("it") == []


def test_a_task_that_has_left_a_permit_regains_it_before_it_waits_for_itself(other: MemberProcess) -> None:
    other.do("sync.Semaphore('it').acquire(); it = sync.Semaphore('it'); it.acquire(1)")
    assert holds("it") == [1]
    with pytest.raises(RuntimeError, match="WaitTimeout"):
        other.do("it.acquire(0)")
    other.do("import asyncio\nasync def main():\n await shmrpc.Semaphore('loop').acquire()\n"
             " await shmrpc.Semaphore('loop').acquire(1)\nasyncio.run(main())")  # fmt: skip
    assert holds("loop") == [1]


def test_a_permit_that_was_left_and_released_is_not_had_again(other: MemberProcess) -> None:
    first, seen = (shmrpc.sync.Semaphore("it", 2) for _ in range(2))
    with contextlib.closing(first), contextlib.closing(seen):
        InThread(first.acquire).join()
        shmrpc.sync.Semaphore("it", 2).acquire()
        seen.release()
        other.do("it = sync.Semaphore('it', 2); it.acquire(1)")
        with pytest.raises(shmrpc.WaitTimeout):
            seen.acquire(0)


def test_a_permit_is_not_given_to_the_thread_in_which_the_handle_of_another_one_is_collected() -> None:
    seen = shmrpc.sync.Semaphore("it")
    is_lost, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        handle = shmrpc.sync.Semaphore("it")
        handle.acquire()
        cycle: list[object] = [handle]
        cycle.append(cycle)
        del handle, cycle
        is_lost.set()
        assert is_over.wait(LONG)

    holding = InThread(hold)
    try:
        assert is_lost.wait(LONG)
        gc.collect()
        with pytest.raises(shmrpc.WaitTimeout):
            seen.acquire(0)
        assert holds("it") == [1]
    finally:
        is_over.set()
        holding.join()
        seen.release()
        seen.close()


def test_an_exception_passes_a_handle_that_goes_with_a_permit() -> None:
    def acquire() -> object:
        handle = shmrpc.sync.Semaphore("it", 2)
        handle.acquire()
        return handle

    def fail() -> object:
        raise ZeroDivisionError

    with contextlib.closing(shmrpc.sync.Semaphore("it", 2)) as seen:
        with pytest.raises(ZeroDivisionError) as caught:
            assert [acquire(), fail()]
        assert caught.value.__context__ is None
        assert holds("it") == [1]
        seen.release()


# --- what they return ---


def test_acquire_and_wait_in_threads_return_true() -> None:
    lock, gate, event, ready, memory = (
        shmrpc.sync.Lock("lock"),
        shmrpc.sync.Semaphore("gate", 2),
        shmrpc.sync.Event("event"),
        shmrpc.sync.Signal("ready"),
        shmrpc.sync.memory("memory", 10),
    )
    for held in (lock, gate, memory.lock):
        assert not held.locked()
        assert held.acquire() is True
        assert held.locked() is (held is not gate)
        held.release()
    gate.acquire()
    gate.acquire()
    assert gate.locked()
    ready.signal()
    assert ready.wait() is True
    waiting = InThread(ready.wait)
    assert eventually(lambda: waiters("ready") == 1)
    ready.signal()
    assert waiting.join() is True
    event.set()
    assert event.wait() is True
    for each in (lock, gate, event, ready, memory):
        each.close()
    with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
        lock.locked()


async def test_acquire_and_wait_in_loops_return_true() -> None:
    lock, gate, event = shmrpc.Lock("lock"), shmrpc.Semaphore("gate"), shmrpc.Event("event")
    ready = shmrpc.Signal("ready")
    for held in (lock, gate):
        assert await held.acquire() is True
        assert held.locked()
        held.release()
        assert not held.locked()
    ready.signal()
    assert await ready.wait() is True
    waiting = [asyncio.create_task(event.wait()), asyncio.create_task(ready.wait())]
    assert await eventually_in_loop(lambda: waiters("event") == waiters("ready") == 1)
    event.set()
    ready.signal()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await event.wait() is True
    for each in (lock, gate, event, ready):
        each.close()


async def test_memories_and_events_are_closed_at_the_end_of_a_block() -> None:
    with shmrpc.sync.memory("it", 10) as memory, shmrpc.sync.Event("event") as event:
        memory.buf[0] = 1
        event.set()
    assert memory._object.is_closed and event._object.is_closed
    with shmrpc.memory("it", 10) as memory_, shmrpc.Event("event") as event_:
        pass
    assert memory_._object.is_closed and event_._object.is_closed
    async with shmrpc.memory("it", 10) as memory_, shmrpc.Event("event") as event_:
        assert shmrpc.members("it") and shmrpc.members("event")
    assert memory_._object.is_closed and event_._object.is_closed
    assert not shmrpc.members("it") and not shmrpc.members("event")


def test_more_signals_than_the_maximum_are_refused_and_spoil_nothing(other: MemberProcess) -> None:
    ready = shmrpc.sync.Signal("it")
    ready.signal((1 << 62) - 1)
    for count in (2, (1 << 64) - 1):
        with pytest.raises(ValueError, match=rf"cannot add {count} signals .*the maximum is {1 << 62};"):
            ready.signal(count)
    with pytest.raises(ValueError, match="expected a number of signals"):
        ready.signal(1 << 64)
    ready.signal()
    with pytest.raises(ValueError, match="cannot add 1 signals"):
        ready.signal()
    other.do("it = sync.Signal('it'); it.wait(); it.signal()")
    assert ready.drain() == 1 << 62
    ready.close()


async def test_attach_without_a_limit_waits(other: MemberProcess) -> None:
    waiting = asyncio.create_task(shmrpc.attach("it", None))
    blocking = InThread(lambda: shmrpc.sync.attach("it", timeout=None))
    await asyncio.sleep(0.05)
    other.do("it = sync.Event('it')")
    for found in (await waiting, await asyncio.to_thread(blocking.join)):
        assert isinstance(found, shmrpc.Event | shmrpc.sync.Event)
        found.close()


# --- signals ---


class Frames:
    """The functions of Python that this thread calls within the block."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self.called.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    def __enter__(self) -> Frames:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)


TAKEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "lock": (lambda: shmrpc.sync.Lock("it"), lambda it: it),
    "reentrant lock": (lambda: shmrpc.sync.Lock("it", reentrant=True), lambda it: it),
    "semaphore": (lambda: shmrpc.sync.Semaphore("it"), lambda it: it),
    "memory": (lambda: shmrpc.sync.memory("it", 10), lambda it: it.lock),
    "transaction": (lambda: shmrpc.sync.store("it"), lambda it: it.transaction()),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", TAKEN)
def test_no_frame_of_python_is_between_what_with_takes_and_its_block(kind: str, waits: bool) -> None:
    make, use = TAKEN[kind]
    it = make()
    held = threading.Event()

    def hold() -> None:
        with use(it):
            held.set()
            assert eventually(lambda: waiters("it") == 1)

    with contextlib.closing(it):
        holding = InThread(hold) if waits else None
        if waits:
            assert held.wait(LONG)
        taken = use(it)
        within = False
        with Frames() as frames:
            with taken:
                within = True
                sys.setprofile(None)
        assert within
        assert [name for name in frames.called if not name.startswith("Frames.")] == []
        if holding is not None:
            holding.join()


WAITS: dict[str, Callable[[contextlib.ExitStack], Callable[[], object]]] = {}


def _waits(make: Callable[[contextlib.ExitStack], Callable[[], object]]) -> None:
    WAITS[make.__name__.removeprefix("_").replace("_", " ")] = make


def _opened(stack: contextlib.ExitStack, handle: Any) -> Any:
    return stack.enter_context(contextlib.closing(handle))


@_waits
def _lock(stack: contextlib.ExitStack) -> Callable[[], object]:
    lock = _opened(stack, shmrpc.sync.Lock("it"))
    InThread(lock.acquire).join()
    return lambda: lock.acquire(LONG)


@_waits
def _semaphore(stack: contextlib.ExitStack) -> Callable[[], object]:
    gate = _opened(stack, shmrpc.sync.Semaphore("it"))
    gate.acquire()
    return lambda: gate.acquire(LONG)


@_waits
def _signal(stack: contextlib.ExitStack) -> Callable[[], object]:
    ready = _opened(stack, shmrpc.sync.Signal("it"))
    return lambda: ready.wait(LONG)


@_waits
def _event(stack: contextlib.ExitStack) -> Callable[[], object]:
    event = _opened(stack, shmrpc.sync.Event("it"))
    return lambda: event.wait(LONG)


@_waits
def _get(stack: contextlib.ExitStack) -> Callable[[], object]:
    queue = _opened(stack, shmrpc.sync.queue("it"))
    return lambda: queue.get(timeout=LONG)


@_waits
def _put(stack: contextlib.ExitStack) -> Callable[[], object]:
    queue = _opened(stack, shmrpc.sync.queue("it", maxsize=1))
    queue.put(1)
    return lambda: queue.put(2, timeout=LONG)


@_waits
def _claim(stack: contextlib.ExitStack) -> Callable[[], object]:
    queue = _opened(stack, shmrpc.sync.queue("it"))
    return lambda: queue.claim(timeout=LONG)


@_waits
def _message(stack: contextlib.ExitStack) -> Callable[[], object]:
    subscription = _opened(stack, shmrpc.sync.subscribe("it"))
    return lambda: subscription.get(timeout=LONG)


@_waits
def _change(stack: contextlib.ExitStack) -> Callable[[], object]:
    store = _opened(stack, shmrpc.sync.store("it"))
    return lambda: store.wait_changed(LONG)


@_waits
def _inbox(stack: contextlib.ExitStack) -> Callable[[], object]:
    store = _opened(stack, shmrpc.sync.store("it"))
    return lambda: store.inbox.take(LONG)


class Interrupted(BaseException):
    """A handler of a signal has raised it."""


@pytest.mark.parametrize("kind", WAITS)
def test_a_signal_that_comes_before_a_wait_sleeps_is_heard(kind: str) -> None:
    def raise_it(_number: int, _frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with contextlib.ExitStack() as stack:
            wait = WAITS[kind](stack)
            for microseconds in range(20, 160, 10):
                with pytest.raises(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
                    wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


#: The items that another process puts one by one, while a signal interrupts about every other wait.
ITEMS = 400


def _take_item(stack: contextlib.ExitStack, other: MemberProcess) -> Callable[[float], object]:
    queue = _opened(stack, shmrpc.sync.queue("it"))
    other.do("q = sync.queue('it'); put = q.put")
    return lambda timeout: queue.get(timeout=timeout)


def _take_some(stack: contextlib.ExitStack, other: MemberProcess) -> Callable[[float], object]:
    queue = _opened(stack, shmrpc.sync.queue("it"))
    other.do("q = sync.queue('it'); put = q.put")
    return lambda timeout: queue.get_many(1, timeout)[0]


def _take_large(stack: contextlib.ExitStack, other: MemberProcess) -> Callable[[float], object]:
    queue = _opened(stack, shmrpc.sync.queue("it"))
    other.do("q = sync.queue('it'); put = lambda n: q.put([n, bytes(100_000)])")
    return lambda timeout: queue.get(timeout=timeout)[0]


def _take_message(stack: contextlib.ExitStack, other: MemberProcess) -> Callable[[float], object]:
    subscription = _opened(stack, shmrpc.sync.subscribe("it"))
    other.do("t = sync.topic('it').__enter__(); put = t.publish")
    return lambda timeout: subscription.get(timeout=timeout).value


def _take_sent(stack: contextlib.ExitStack, other: MemberProcess) -> Callable[[float], object]:
    store = _opened(stack, shmrpc.sync.store("it"))
    other.do("s = sync.store('it'); put = s.inbox.put")
    return lambda timeout: store.inbox.take(timeout)


TAKES = {
    "get": _take_item,
    "get_many": _take_some,
    "a large item": _take_large,
    "a message": _take_message,
    "inbox": _take_sent,
}


@pytest.mark.parametrize("kind", TAKES)
def test_a_wait_that_a_signal_ends_loses_nothing_that_it_has_taken(kind: str, other: MemberProcess) -> None:
    armed = False

    def raise_it(_number: int, _frame: object) -> None:
        if armed:
            raise Interrupted

    numbers = random.Random(kind)
    got: list[Any] = []
    interrupted = 0
    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with contextlib.ExitStack() as stack:
            take = TAKES[kind](stack, other)
            other.begin(
                "import random, time\n"
                f"for n in range({ITEMS}): put(n); time.sleep(random.random() * 0.0005)\n"
                "put('last')"
            )
            while "last" not in got:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, numbers.uniform(1e-5, 4e-4))
                    got.extend(map(take, (LONG,)))  # No frame of the test's is between what is taken and its list.
                    armed = False
                except Interrupted:
                    armed = False
                    interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            other.end()
            with contextlib.suppress(shmrpc.WaitTimeout, shmrpc.QueueEmpty):
                while True:
                    got.append(take(0))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0
    assert got == [*range(ITEMS), "last"]


def test_a_claim_that_is_interrupted_as_it_is_made_gives_its_item_back(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with contextlib.closing(shmrpc.sync.queue("it")) as queue:
        queue.put("item")
        places = 0
        while True:
            steps = places

            def interrupt(frame: FrameType, _event: str, _argument: object) -> Any:
                nonlocal steps
                if "shmrpc" not in frame.f_code.co_filename:
                    return None
                frame.f_trace_opcodes = True
                steps -= 1
                if steps < 0:
                    sys.settrace(None)
                    raise Interrupted
                return interrupt

            try:
                sys.settrace(interrupt)
                claim = queue.claim(timeout=LONG)
                sys.settrace(None)
            except Interrupted:
                places += 1
            else:
                break
            finally:
                sys.settrace(None)
            assert queue.qsize() == 1, places
        assert places > 20
        claim.ack()
    gc.collect()
    assert unraisable == []


class InterruptedByError(Exception):
    """A handler of a signal has raised it, as one that ends a wait by TimeoutError does."""


#: The exception by which the next reading is interrupted.
_interruptions: list[type[BaseException]] = []


def _read(number: int) -> int:
    if _interruptions:
        signal.raise_signal(signal.SIGALRM)
    return number


@pytest.fixture
def interrupting() -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise _interruptions.pop()

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


class Written:
    """A value that is interrupted while it is written."""

    def __reduce__(self) -> tuple[Callable[[int], int], tuple[int]]:
        return _read, (_read(0),)


class Read:
    """A value that can be interrupted while it is read."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[int], int], tuple[int]]:
        return _read, (self.number,)


@pytest.mark.usefixtures("interrupting")
@pytest.mark.parametrize("error", [Interrupted, InterruptedByError])
@pytest.mark.parametrize("large", [False, True])
def test_an_item_or_a_message_whose_reading_is_interrupted_stays_the_next_one(
    large: bool, error: type[BaseException]
) -> None:
    rest = [np.zeros(100_000)] if large else []
    with (
        contextlib.closing(shmrpc.sync.queue("queue", codec="pickle")) as queue,
        contextlib.closing(shmrpc.sync.subscribe("topic", codec="pickle")) as subscription,
        contextlib.closing(shmrpc.sync.topic("topic", codec="pickle").__enter__()) as topic,
    ):
        for number in range(3):
            queue.put([Read(number), *rest])
            topic.publish([Read(number), *rest])
        for number in range(3):
            for take in (
                queue.get_nowait,
                queue.get,
                lambda: queue.get_many(3),
                subscription.get_nowait,
                subscription.get,
                lambda: subscription.get_many(3),
            ):
                _interruptions.append(error)
                with pytest.raises(error):
                    take()
            assert queue.get()[0] == number
            value = subscription.get(LONG).value
            assert value[0] == number
            assert all(np.array_equal(array, rest[0]) for array in value[1:])


@pytest.mark.usefixtures("interrupting")
def test_an_error_of_a_handler_while_a_value_is_written_is_not_attributed_to_the_value() -> None:
    with (
        contextlib.closing(shmrpc.sync.queue("queue", codec="pickle")) as queue,
        contextlib.closing(shmrpc.sync.topic("topic", codec="pickle")) as topic,
    ):
        for put in (queue.put, queue.put_nowait, topic.publish, topic.publish_nowait):
            _interruptions.append(InterruptedByError)
            with pytest.raises(InterruptedByError):
                put(Written())
        assert queue.qsize() == topic.published == 0
