"""Names whose members are equals: who makes them, who may leave, what is waited for, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from shmrpc.objects import wait_queue
from tests.helpers import traces
from tests.helpers.host_names import host_to_oneself
from tests.helpers.loops import one_loop
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually
from tests.helpers.stopped_processes import stopped

LONG = 60.0
#: A name that no other run of these tests has.
OURS = f"it{os.getpid()}"


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    """Another process."""
    with MemberProcess() as member:
        yield member
    with host_to_oneself():  # The files of a killed last member stay until a clean-up.
        left = {each.path for each in cleanup.clean() if "@" in each.path and each.file != "unknown"}
    assert not any(map(os.path.exists, left))


@contextlib.contextmanager
def closing(*names: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for name in names:
            name.close()


def pids(name: str) -> list[int]:
    return [member.pid for member in shmrpc.members(name)]


def holds(name: str) -> dict[int, int]:
    return {member.pid: member.holds for member in shmrpc.members(name)}


def files(runtime: Path) -> list[str]:
    """Return the files of shared objects, in the runtime directory and in /dev/shm."""
    in_memory = [name for name in os.listdir("/dev/shm") if name.startswith(f"shmrpc.{OURS}@")]
    return sorted(name for name in os.listdir(runtime) if name.startswith(f"{OURS}@")) + in_memory


KINDS: dict[str, Callable[[str], Any]] = {
    "semaphore": lambda name: shmrpc.Semaphore(name, 3),
    "lock": shmrpc.Lock,
    "event": shmrpc.Event,
    "signal": shmrpc.Signal,
    "memory": lambda name: shmrpc.memory(name, 1000),
}
TEXTS = {
    "semaphore": "a semaphore of 3 permits",
    "lock": "a lock",
    "event": "an event",
    "signal": "a signal",
    "memory": "a memory of 1000 bytes",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_maker_may_leave_and_the_last_takes_the_name_away(kind: str, other: MemberProcess, runtime: Path) -> None:
    ours = KINDS[kind](OURS)
    assert pids(OURS) == [os.getpid()]
    since = shmrpc.members(OURS)[0].since
    assert datetime.now(UTC) - since < timedelta(seconds=LONG)
    assert other.do(f"it = sync.attach({OURS!r}); result = repr(it)") == f"<shmrpc {kind} {OURS!r}>"
    assert pids(OURS) == [os.getpid(), other.pid]
    ours.close()
    ours.close()
    assert pids(OURS) == [other.pid]
    again = KINDS[kind](OURS)
    assert sorted(pids(OURS)) == sorted([os.getpid(), other.pid])
    again.close()
    other.do("it.close()")
    assert pids(OURS) == []
    assert files(runtime) == []


@pytest.mark.parametrize("opener", ["Lock", "topic", "queue", "store"])
def test_a_look_while_the_last_member_leaves_sees_it_or_no_member(opener: str, other: MemberProcess) -> None:
    other.begin(f"for _ in range(200): sync.{opener}({OURS!r}).close()")
    while not other.ends(0):
        assert set(pids(OURS)) <= {other.pid}
    other.end()


@pytest.mark.parametrize("asked", KINDS)
@pytest.mark.parametrize("there", KINDS)
def test_kinds_that_disagree_are_an_error_with_both(there: str, asked: str) -> None:
    with closing(KINDS[there]("it")):
        if there == asked:
            KINDS[asked]("it").close()
            return
        with pytest.raises(shmrpc.NameConflict) as raised:
            KINDS[asked]("it")
        assert TEXTS[there] in str(raised.value)
        assert TEXTS[asked] in str(raised.value)


def test_sizes_that_disagree_are_an_error_with_both(other: MemberProcess) -> None:
    with closing(shmrpc.Semaphore("gpu", 2), shmrpc.memory("frame", 100)):
        with pytest.raises(RuntimeError, match=r"NameConflict: .*of 2 permits, not a semaphore of 3 permits"):
            other.do("sync.Semaphore('gpu', 3)")
        with pytest.raises(RuntimeError, match=r"NameConflict: .*of 100 bytes, not a memory of 200 bytes"):
            other.do("sync.memory('frame', 200)")
        with pytest.raises(shmrpc.NameConflict):
            shmrpc.Semaphore("gpu", 3)


@pytest.mark.parametrize("wrong", ["", "a/b", "..", "x" * 65, "a@b"])
def test_an_invalid_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected 1 to 64 of"):
        shmrpc.Lock(wrong)


@pytest.mark.parametrize(
    "make", [lambda: shmrpc.Semaphore("it", 0), lambda: shmrpc.Semaphore("it", 65537), lambda: shmrpc.memory("it", 0)]
)
def test_an_invalid_size_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"expected .*, got"):
        make()


@contextlib.contextmanager
def _greedy(other: MemberProcess | None, name: str) -> Iterator[list[int]]:
    """Let a thread release and acquire a lock in a loop during the block, which gets the function that counts that."""
    turns, is_over = [0], threading.Event()

    def hold() -> None:
        with closing(lock := shmrpc.sync.Lock(name)):
            while not is_over.is_set():
                with lock:
                    time.sleep(0.002)
                turns[0] += 1

    if other is not None:
        other.begin(
            f"import time, shmrpc.sync\nlock = shmrpc.sync.Lock({name!r})\nwhile True:\n with lock: time.sleep(0.002)"
        )
        yield turns
        other.kill()
        return
    thread = InThread(hold)
    try:
        yield turns
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("place", ["thread", "process"])
async def test_tasks_get_a_lock_beside_a_greedy_process(place: str, other: MemberProcess) -> None:
    lock = shmrpc.Lock("it")
    with closing(lock), _greedy(other if place == "process" else None, "it"):

        async def use() -> None:
            await lock.acquire(LONG)
            lock.release()

        async with asyncio.timeout(LONG):
            await asyncio.gather(*(use() for _ in range(100)))


@pytest.mark.parametrize("place", ["thread", "process"])
def test_a_thread_gets_a_lock_beside_a_greedy_process(place: str, other: MemberProcess) -> None:
    lock = shmrpc.sync.Lock("it")
    with closing(lock), _greedy(other if place == "process" else None, "it"):
        end = time.monotonic() + LONG
        for _ in range(100):
            lock.acquire(end - time.monotonic())
            lock.release()


def test_the_most_permits_can_all_be_had() -> None:
    gate = shmrpc.sync.Semaphore("it", 65536)
    with closing(gate):
        for _ in range(65536):
            gate.acquire(0)
        with pytest.raises(shmrpc.WaitTimeout):
            gate.acquire(0)
        gate.release()
        gate.acquire(0)
        assert holds("it") == {os.getpid(): 65536}


def test_a_memory_for_which_there_is_no_room_is_an_error_and_leaves_nothing(runtime: Path) -> None:
    free = os.statvfs("/dev/shm")
    with pytest.raises(shmrpc.SharedMemoryError, match=r"memory 'it.*': there is no room for its \d+ bytes") as raised:
        shmrpc.memory(OURS, free.f_blocks * free.f_frsize + (1 << 20))
    assert raised.value.errno is not None
    assert [name for name in files(runtime) if not name.endswith(".lock")] == []
    shmrpc.memory(OURS, 10).close()
    assert files(runtime) == []


def test_names_that_were_waited_for_and_closed_take_no_memory() -> None:
    def wait(rounds: int) -> None:
        for _ in range(rounds):
            with closing(event := shmrpc.sync.Event(OURS)), pytest.raises(shmrpc.WaitTimeout):
                event.wait(0.0001)

    wait(500)
    before = traces.resident()
    wait(2000)
    assert traces.resident() - before < 2 << 20


# --- what is held ---


def test_permits_belong_to_processes_and_one_without_cannot_release(other: MemberProcess) -> None:
    gate = shmrpc.sync.Semaphore("gpu", 2)
    with closing(gate):
        other.do("gate = sync.Semaphore('gpu', 2); gate.acquire()")
        with pytest.raises(shmrpc.LocalProtocolError, match="this process has no permit to release"):
            gate.release()
        gate.acquire()
        assert holds("gpu") == {os.getpid(): 1, other.pid: 1}
        other.do("gate.close()")
        assert holds("gpu") == {os.getpid(): 1}
        gate.acquire(0)


async def test_two_uses_of_a_name_in_a_process_are_one_member() -> None:
    one, two = shmrpc.Semaphore("gpu", 1), shmrpc.sync.Semaphore("gpu", 1)
    with closing(two):
        await one.acquire()
        with pytest.raises(shmrpc.WaitTimeout):
            await asyncio.to_thread(two.acquire, 0)
        one.close()
        assert holds("gpu") == {os.getpid(): 1}, "the other use is open"
        with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
            one.release()
        two.release()


async def test_a_lock_belongs_to_a_task_or_a_thread() -> None:
    lock = shmrpc.Lock("config")
    with closing(lock):
        async with lock:
            with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
                await asyncio.create_task(_release(lock))
            with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
                await asyncio.to_thread(lock.release)
            with pytest.raises(shmrpc.LocalProtocolError, match="would wait for itself"):
                await lock.acquire()
            with pytest.raises(shmrpc.LocalProtocolError, match="use 'async with'"):
                await asyncio.create_task(_enter(lock))
        with pytest.raises(shmrpc.LocalProtocolError, match="does not hold it"):
            lock.release()


async def _release(lock: shmrpc.Lock) -> None:
    lock.release()


async def _enter(lock: shmrpc.Lock) -> None:
    with lock:
        pass


def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired() -> None:
    lock, other = shmrpc.sync.Lock("config", reentrant=True), shmrpc.sync.Lock("config")
    with closing(lock, other):
        with lock, lock:
            assert holds("config") == {os.getpid(): 1}
        with lock:
            with lock:
                pass
            waiting = InThread(lambda: other.acquire(0))
            with pytest.raises(shmrpc.WaitTimeout, match="the lock was not free within 0 s: this process has it"):
                _raise(waiting.join())
        assert holds("config") == {os.getpid(): 0}


def _raise(error: object) -> None:
    assert isinstance(error, Exception)
    raise error


async def test_the_lock_of_a_memory_is_its_own() -> None:
    frame = shmrpc.memory("frame", 8)
    with closing(frame):
        async with frame.lock:
            assert holds("frame") == {os.getpid(): 1}
        assert holds("frame") == {os.getpid(): 0}


# --- waiting ---


async def test_a_timeout_names_those_who_have_it(other: MemberProcess) -> None:
    gate = shmrpc.Semaphore("gpu", 2)
    with closing(gate):
        other.do("gate = sync.Semaphore('gpu', 2); gate.acquire()")
        async with gate:
            with pytest.raises(TimeoutError) as raised:
                await gate.acquire(0.01)
            assert isinstance(raised.value, shmrpc.WaitTimeout)
            assert str(raised.value) == (
                f"semaphore 'gpu': no permit was free within 0.01 s: this process has 1, process {other.pid} has 1"
            )
            with stopped(other.pid), pytest.raises(shmrpc.WaitTimeout, match=f"stopped; .* kill -CONT {other.pid}"):
                await gate.acquire(0.01)


async def test_a_permit_that_comes_free_goes_to_who_waits_in_a_loop_or_thread(other: MemberProcess) -> None:
    gate, blocking = shmrpc.Semaphore("gpu", 1), shmrpc.sync.Semaphore("gpu", 1)
    with closing(gate, blocking):
        other.do("gate = sync.Semaphore('gpu', 1); gate.acquire()")
        waiting = asyncio.create_task(gate.acquire(LONG))
        await _until_waiting("gpu", 1)
        other.do("gate.release()")
        await waiting
        other.begin("gate.acquire()")
        await _until_waiting("gpu", 1)
        gate.release()
        await asyncio.to_thread(other.end)
        in_thread = asyncio.create_task(asyncio.to_thread(blocking.acquire, LONG))
        await _until_waiting("gpu", 1)
        other.do("gate.release()")
        await in_thread
        blocking.release()


def _waiters(name: str) -> int:
    from shmrpc.discovery.members import inspect_all_objects

    return next((each.waiters for each in inspect_all_objects(print) if each.name == name), 0)


async def _until_waiting(name: str, count: int) -> None:
    deadline = time.monotonic() + LONG
    while _waiters(name) != count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def test_waiters_are_served_in_order() -> None:
    gate = shmrpc.sync.Semaphore("gpu", 1)
    got: list[int] = []

    def take(number: int) -> None:
        gate.acquire(LONG)
        got.append(number)

    with closing(gate):
        gate.acquire()
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            await _until_waiting("gpu", number + 1)
        for served in range(1, 6):
            gate.release()
            while len(got) < served:
                await asyncio.sleep(0.001)
        for thread in threads:
            thread.join()
        assert got == [0, 1, 2, 3, 4]


async def test_tasks_of_a_loop_are_served_in_the_order_in_which_they_came() -> None:
    gate = shmrpc.Semaphore("gpu", 1)
    got: list[int] = []

    async def take(number: int) -> None:
        async with gate:
            got.append(number)

    with closing(gate):
        async with gate:
            tasks = [asyncio.create_task(take(number)) for number in range(20)]
            await _until_waiting("gpu", 1)
        await asyncio.gather(*tasks)
        assert got == list(range(20))


async def test_a_cancelled_wait_loses_no_permit() -> None:
    gate = shmrpc.Semaphore("gpu", 1)
    with closing(gate):
        for cancel_after in range(6):
            await gate.acquire()
            first, second = asyncio.create_task(gate.acquire()), asyncio.create_task(gate.acquire())
            await _until_waiting("gpu", 1)
            gate.release()
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
                gate.release()
            await asyncio.wait_for(second, LONG)
            gate.release()
            assert holds("gpu") == {os.getpid(): 0}


async def test_a_wait_under_a_timeout_of_asyncio_loses_no_permit(other: MemberProcess) -> None:
    gate = shmrpc.Semaphore("gpu", 1)
    with closing(gate):
        other.do("gate = sync.Semaphore('gpu', 1); gate.acquire()")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await gate.acquire()
        other.do("gate.release()")
        await gate.acquire(0)
        gate.release()


async def test_signals_outlive_their_sender_and_drain_says_how_many(other: MemberProcess) -> None:
    ready = shmrpc.Signal("ready")
    with closing(ready):
        waiting = asyncio.create_task(ready.wait(LONG))
        await _until_waiting("ready", 1)
        other.do("sync.Signal('ready').signal(5)")
        other.kill()
        await waiting
        await ready.wait(0)
        assert ready.drain() == 3
        assert ready.drain() == 0
        with pytest.raises(shmrpc.WaitTimeout, match=r"signal 'ready': no signal came within 0\.01 s$"):
            await ready.wait(0.01)
        with pytest.raises(ValueError, match="expected a number of signals, got -1"):
            ready.signal(-1)


async def test_a_cancelled_wait_for_a_signal_leaves_it_to_the_next() -> None:
    ready = shmrpc.Signal("ready")
    with closing(ready):
        first, second = asyncio.create_task(ready.wait()), asyncio.create_task(ready.wait())
        await _until_waiting("ready", 1)
        ready.signal()
        await asyncio.sleep(0)
        first.cancel()
        done, _ = await asyncio.wait([first, second], timeout=LONG)
        assert len(done) == 2 or not first.cancelled()
        second.cancel()
        await asyncio.wait([second])
        taken = [task for task in (first, second) if not task.cancelled()]
        assert len(taken) + ready.drain() == 1


async def test_an_event_wakes_all_even_if_it_is_cleared_at_once(other: MemberProcess) -> None:
    go = shmrpc.Event("go")
    with closing(go):
        assert not go.is_set()
        waiting = [asyncio.create_task(go.wait(LONG)) for _ in range(3)]
        other.begin("go = sync.Event('go'); go.wait()")
        await _until_waiting("go", 2)
        go.set()
        go.clear()
        await asyncio.gather(*waiting)
        await asyncio.to_thread(other.end)
        with pytest.raises(shmrpc.WaitTimeout, match="event 'go': it was not set within 0 s"):
            await go.wait(0)
        other.do("go.set()")
        await go.wait()
        assert go.is_set()


async def test_stop_ends_waits_of_this_handle_until_resume(other: MemberProcess) -> None:
    gate, blocking, kept = shmrpc.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu")
    with closing(gate, blocking, kept):
        other.do("gate = sync.Semaphore('gpu'); gate.acquire()")
        task, thread = asyncio.create_task(gate.acquire()), InThread(lambda: blocking.acquire())
        goes_on = InThread(lambda: kept.acquire())
        await _until_waiting("gpu", 3)
        gate.stop()
        blocking.stop()
        with pytest.raises(shmrpc.WaitStopped, match="semaphore 'gpu': the waits of this handle were stopped"):
            await task
        assert isinstance(await asyncio.to_thread(thread.join), shmrpc.WaitStopped)
        with pytest.raises(shmrpc.WaitStopped):
            await gate.acquire()
        await _until_waiting("gpu", 1)
        gate.resume()
        with pytest.raises(shmrpc.WaitTimeout):
            await gate.acquire(0)
        other.do("gate.release()")
        assert await asyncio.to_thread(goes_on.join) is True
        kept.release()


def test_a_wait_that_is_stopped_as_it_gets_its_permit_loses_none() -> None:
    gate = shmrpc.sync.Semaphore("gpu")
    with closing(gate):
        for _ in range(300):
            gate.acquire()
            waiting = InThread(lambda: gate.acquire(LONG))
            while not _waiters("gpu"):
                pass
            stopping = InThread(gate.stop)
            gate.release()
            stopping.join()
            if waiting.join() is None:
                gate.release()
            gate.resume()
            assert holds("gpu") == {os.getpid(): 0}


async def test_closing_one_of_several_uses_ends_its_waits(other: MemberProcess) -> None:
    gate, blocking, kept = shmrpc.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu"), shmrpc.Semaphore("gpu")
    other.do("gate = sync.Semaphore('gpu'); gate.acquire()")
    with closing(kept):
        task, thread = asyncio.create_task(gate.acquire()), InThread(lambda: blocking.acquire())
        goes_on = asyncio.create_task(kept.acquire())
        await _until_waiting("gpu", 3)
        gate.close()
        blocking.close()
        with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
            await asyncio.wait_for(task, LONG)
        assert isinstance(await asyncio.to_thread(thread.join), shmrpc.LocalProtocolError)
        assert not goes_on.done()
        other.do("gate.release()")
        await goes_on


@pytest.mark.parametrize("timeout", [math.inf, 1e300])
async def test_a_timeout_may_be_longer_than_any_timer(timeout: float) -> None:
    gate, blocking = shmrpc.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu")
    with closing(gate, blocking):
        await gate.acquire()
        task = asyncio.create_task(gate.acquire(timeout))
        await _until_waiting("gpu", 1)
        gate.release()
        await task
        thread = InThread(lambda: blocking.acquire(timeout))
        await _until_waiting("gpu", 1)
        gate.release()
        assert await asyncio.to_thread(thread.join) is True


async def test_a_timeout_that_is_no_time_is_refused() -> None:
    gate, blocking = shmrpc.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu")
    with closing(gate, blocking):
        await gate.acquire()
        for wrong in (math.nan, -1, -math.inf):
            with pytest.raises(ValueError, match=f"expected seconds, 0 or more .*, got {wrong}"):
                await gate.acquire(wrong)
            with pytest.raises(ValueError, match=f"expected seconds, 0 or more .*, got {wrong}"):
                blocking.acquire(wrong)


async def test_closing_ends_the_waits(other: MemberProcess) -> None:
    gate, blocking = shmrpc.Semaphore("gpu"), shmrpc.sync.Semaphore("gpu")
    other.do("gate = sync.Semaphore('gpu'); gate.acquire()")
    task, thread = asyncio.create_task(gate.acquire()), InThread(lambda: blocking.acquire())
    await _until_waiting("gpu", 2)
    gate.close()
    blocking.close()
    with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
        await asyncio.wait_for(task, LONG)
    assert isinstance(await asyncio.to_thread(thread.join), shmrpc.LocalProtocolError)


def test_ctrl_c_ends_the_wait_of_a_thread(other: MemberProcess) -> None:
    gate = shmrpc.sync.Semaphore("gpu")
    with closing(gate):
        gate.acquire()
        other.begin("sync.Semaphore('gpu').acquire()")
        assert eventually(lambda: _waiters("gpu") == 1)
        other.signal(signal.SIGINT)
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            other.end()
        gate.release()
        gate.acquire(0)


@one_loop
async def test_waiters_do_not_wake_up(other: MemberProcess) -> None:
    gate = shmrpc.sync.Semaphore("gpu")
    with closing(gate):
        gate.acquire()
        with MemberProcess() as looping:
            other.begin("sync.Semaphore('gpu').acquire()")
            looping.begin("import asyncio; asyncio.run(shmrpc.Semaphore('gpu').acquire())")
            await _until_waiting("gpu", 2)
            await asyncio.sleep(0.2)
            before = [_switches(other.pid), _switches(looping.pid)]
            await asyncio.sleep(1.5)
            assert [_switches(other.pid), _switches(looping.pid)] == before


def _switches(pid: int) -> dict[str, str]:
    """Return the number of sleeps of each thread of a process."""
    return {
        path.parent.name: line
        for path in Path(f"/proc/{pid}/task").glob("*/status")
        for line in path.read_text().splitlines()
        if line.startswith("voluntary")
    }


# --- attaching ---


async def test_attach_waits_for_a_name_to_appear(other: MemberProcess) -> None:
    other.begin("it = sync.attach('it', 60); result = it.size")
    waiting = asyncio.create_task(shmrpc.attach("it", LONG))
    await asyncio.sleep(0.05)
    frame = shmrpc.memory("it", 10)
    assert await asyncio.to_thread(other.end) == 10
    found = await waiting
    assert isinstance(found, shmrpc.Memory)
    assert found.size == 10
    found.close()
    frame.close()


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("run", ["asyncio", "uvloop"])
def test_a_wait_for_a_name_sleeps_until_it_appears(other: MemberProcess, run: str, taken_over: bool) -> None:
    if taken_over:
        with MemberProcess() as last:
            last.do(f"it = shmrpc.Lock({OURS!r})")
    with MemberProcess() as looping:
        other.begin(f"it = sync.attach({OURS!r}, 60); result = repr(it)")
        looping.begin(f"import {run}; it = {run}.run(shmrpc.attach({OURS!r}, 60)); result = repr(it)")
        assert eventually(lambda: _watches(other.pid) and _watches(looping.pid))
        time.sleep(0.2)
        before = [_switches(other.pid), _switches(looping.pid)]
        time.sleep(1.0)
        assert [_switches(other.pid), _switches(looping.pid)] == before
        with closing(shmrpc.Lock(OURS)):
            assert [other.end(), looping.end()] == [f"<shmrpc lock {OURS!r}>"] * 2
        assert not _watches(other.pid) and not _watches(looping.pid)


def _watches(pid: int) -> bool:
    """Return True if a process watches a directory."""
    targets = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            targets.append(os.readlink(each))
    return "anon_inode:inotify" in targets


async def test_attach_is_not_over_before_its_time_for_what_another_name_does() -> None:
    waiting = asyncio.create_task(shmrpc.attach(OURS, LONG))
    assert await asyncio.to_thread(eventually, lambda: _watches(os.getpid()))
    shmrpc.Lock("another").close()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not _watches(os.getpid())


async def test_attach_hears_of_names_in_a_directory_that_was_taken_away_meanwhile(runtime: Path) -> None:
    waiting = asyncio.create_task(shmrpc.attach(OURS, LONG))
    assert await asyncio.to_thread(eventually, lambda: _watches(os.getpid()))
    shutil.rmtree(runtime)
    await asyncio.sleep(0.05)
    with closing(shmrpc.Lock(OURS), await waiting):
        pass


def test_attach_where_nothing_can_be_watched_looks_again() -> None:
    namespace = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no user namespaces")
    limit = 'echo 0 > /proc/sys/user/max_inotify_instances; exec "$@"'
    source = f"import shmrpc.sync\nprint('waits', flush=True)\nprint(shmrpc.sync.attach({OURS!r}, 60))"
    command = [*namespace, "sh", "-c", limit, "sh", sys.executable, "-c", source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as limited:
        assert limited.stdout is not None
        assert limited.stdout.readline() == "waits\n"
        time.sleep(0.2)
        assert not _watches(limited.pid)
        with closing(shmrpc.Lock(OURS)):
            assert limited.stdout.readline() == f"<shmrpc lock {OURS!r}>\n"


async def test_attach_raises_if_no_process_has_the_name() -> None:
    with pytest.raises(shmrpc.WaitTimeout, match=r"name 'it': no process has opened it \(waited 0\.02 s\)"):
        await shmrpc.attach("it", 0.02)
    with pytest.raises(shmrpc.WaitTimeout):
        shmrpc.sync.attach("it", 0)


# --- memory ---


def test_a_memory_is_seen_by_all_as_bytes_and_arrays(other: MemberProcess) -> None:
    frame = shmrpc.memory("frame", 480 * 640 + 8)
    with closing(frame):
        assert bytes(frame.buf[:8]) == bytes(8)
        array = frame.array((480, 640), "u1")
        array[:] = 7
        assert other.do("it = sync.attach('frame'); result = int(it.array((480, 640), 'u1').sum())") == 7 * 480 * 640
        other.do("it.buf[:5] = b'hello'; it.array(1, 'f8', 480 * 640)[0] = 1.5")
        assert bytes(array[0, :5]) == b"hello"
        assert frame.array((1,), np.float64, offset=480 * 640)[0] == 1.5
        with pytest.raises(
            ValueError, match=r"has 307208 bytes; an array of shape \(481, 640\) .* would end at byte 307840"
        ):
            frame.array((481, 640))
        with pytest.raises(ValueError, match="no other process can see"):
            frame.array(1, object)
        with pytest.raises(ValueError, match="from byte -1"):
            frame.array(1, "u1", -1)
        for shape in (-1, (-1, 5), (-2, -2)):
            with pytest.raises(ValueError, match="memory 'frame': expected lengths of 0 or more"):
                frame.array(shape)


def test_an_array_of_a_memory_takes_the_shapes_that_numpy_takes() -> None:
    with shmrpc.sync.memory(OURS, 100) as memory:
        shapes: dict[Any, tuple[int, ...]] = {
            np.int64(5): (5,),
            (np.int64(2), 3): (2, 3),
            np.uint8(7): (7,),
        }
        for shape, expected in shapes.items():
            assert memory.array(shape).shape == expected
        assert memory.array(np.array([2, 3])).shape == (2, 3)
        with pytest.raises(ValueError, match="has 100 bytes"):
            memory.array((np.int64(1 << 40), np.int64(1 << 40)))
        for wrong in (1.5, "ab", (1.5,), None, np.float64(3)):
            with pytest.raises(TypeError):
                memory.array(wrong)  # type: ignore[arg-type]


def test_views_can_be_read_after_the_name_is_gone() -> None:
    frame = shmrpc.memory("frame", 100)
    view, array = frame.buf, frame.array(100)
    array[:] = 3
    frame.close()
    assert bytes(view) == b"\3" * 100
    assert array.sum() == 300
    with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
        frame.lock.release()


# --- forks ---


def test_a_forked_child_is_detached_and_its_parent_keeps_all(other: MemberProcess) -> None:
    other.do("""
import os, threading
gate, lock, frame = sync.Semaphore("gpu", 2), sync.Lock("config"), sync.memory("frame", 10)
ready = sync.Signal("ready")
gate.acquire(); lock.acquire(); frame.buf[0] = 5
blocked = threading.Thread(target=lambda: ready.wait(60))
blocked.start()
""")
    assert eventually(lambda: _waiters("ready") == 1)
    told = other.do("""
reading, writing = os.pipe()
child = os.fork()
if not child:
    told = []
    for use in (gate.release, lock.release, gate.acquire, ready.signal, frame.lock.acquire, gate.close, ready.drain):
        try:
            use()
            told.append("")
        except shmrpc.LocalProtocolError as error:
            told.append(str(error))
    try:
        member = sync.Semaphore("gpu", 2)  # Of its own.
        member.acquire(0)
        told.append(sorted(member.holds for member in shmrpc.members("gpu")))
    except BaseException as error:
        told.append(repr(error))
    import gc
    del gate, lock, frame, ready, use
    gc.collect()
    import json
    os.write(writing, json.dumps(told).encode())
    os._exit(0)
os.waitpid(child, 0)
import json
result = json.loads(os.read(reading, 100_000))
""")
    words = "was opened in another process, from which this one was forked; open it again here"
    *uses, closed, drained, joined = told
    assert all(words in text for text in uses), uses
    assert closed == ""
    assert joined == [1, 1]
    assert drained
    assert holds("gpu") == {other.pid: 1}, "the child has left, the parent has not"
    assert holds("config") == {other.pid: 1}
    ready = shmrpc.sync.Signal("ready")
    with closing(ready):
        ready.signal()
        assert eventually(lambda: _waiters("ready") == 0), "the parent's doorbells and slots stay"
        other.do("gate.release(); lock.release()")


# --- those who do not hear ---


async def test_a_permit_does_not_wait_for_a_loop_that_computes_or_a_process_that_is_stopped(
    other: MemberProcess,
) -> None:
    gate = shmrpc.sync.Semaphore("gpu")
    with closing(gate), MemberProcess() as looping, MemberProcess() as still:
        gate.acquire()
        looping.begin("""
import asyncio, time
async def wait_and_compute():
    gate = shmrpc.Semaphore("gpu")
    waiting = asyncio.create_task(gate.acquire())
    await asyncio.sleep(0.1)
    time.sleep(3600)
asyncio.run(wait_and_compute())
""")
        await _until_waiting("gpu", 1)
        still.begin("sync.Semaphore('gpu').acquire()")
        await _until_waiting("gpu", 2)
        other.begin("gate = sync.Semaphore('gpu'); gate.acquire(60)")
        await _until_waiting("gpu", 3)
        await asyncio.sleep(0.3)
        with stopped(still.pid):
            gate.release()
            await asyncio.to_thread(other.end)


# --- loops that hear a doorbell ---


async def _wait_once(ready: shmrpc.Signal) -> None:
    with pytest.raises(shmrpc.WaitTimeout):
        await ready.wait(0.001)


async def _doorbell_of(ready: shmrpc.Signal) -> int:
    await _wait_once(ready)
    sleeper = ready._wait_queue(0, wait_queue.WaitQueue)._sleeper
    assert sleeper is not None
    return sleeper.fileno()


@pytest.mark.parametrize("by", ["the loop", "a thread"])
async def test_a_loop_hears_no_doorbell_of_what_is_closed(by: str) -> None:
    """The next file gets the number of its descriptor, and the loop would not listen to that."""
    ready = shmrpc.Signal(OURS)
    doorbell = await _doorbell_of(ready)
    if by == "a thread":
        await asyncio.to_thread(ready.close)
    else:
        ready.close()
    await asyncio.sleep(0)
    assert not asyncio.get_running_loop().remove_reader(doorbell)


async def test_a_loop_stops_hearing_a_doorbell_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    # The test calls what the timer calls, so that no pause is too long.
    monkeypatch.setattr(wait_queue, "_LINGER", LONG)
    loop, ready = asyncio.get_running_loop(), shmrpc.Signal(OURS)
    with closing(ready):
        await _wait_once(ready)
        ours = ready._wait_queue(0, wait_queue.WaitQueue)

        def linger(sleeps: int) -> None:
            assert ours._linger_timer is not None
            ours._linger_timer.cancel()
            ours._end_linger(sleeps)

        for _ in range(3):
            before = ours._sleeps
            await _wait_once(ready)
            linger(before)
            assert ours._is_listening  # There was a wait since.
        linger(ours._sleeps)
        assert not ours._is_listening
        assert ours._linger_timer is None
        assert ours._sleeper is not None
        assert not loop.remove_reader(ours._sleeper.fileno())
        ready.signal()
        await ready.wait(LONG)


async def test_a_ring_after_the_last_wait_does_not_wake_the_loop_for_ever(other: MemberProcess) -> None:
    other.do(f"ready = shmrpc.Signal({OURS!r})")
    ready = shmrpc.Signal(OURS)
    with closing(ready):
        doorbell = await _doorbell_of(ready)
        waiting = asyncio.create_task(ready.wait(LONG))
        await asyncio.sleep(0.02)
        waiting.cancel()
        other.do("ready.signal()")  # The loop is blocked here: it is rung before it learns that no task waits.
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.02)
        assert select.select([doorbell], [], [], 0)[0] == []
        await ready.wait(LONG)
