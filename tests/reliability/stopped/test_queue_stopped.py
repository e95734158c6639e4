"""A stopped member of a queue keeps its items; other members raise errors with its id, and go on when it does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers import crash_points
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import PATIENCE, is_stopped, stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures

pytestmark = pytest.mark.crashpoints

#: A name that only this test run uses.
OURS = f"standing{os.getpid()}"
#: Elements of an array that has memory of its own.
WORDS = 50_000
#: Tasks of a loop that use the queue at the same time.
TASKS = 30
#: Seconds for which a loop may be blocked at most; the tasks in sequence would block it longer.
HOLD = 1.5


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield
    with host_to_oneself():
        cleanup.clean()


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    crash_points.require_core()
    with MemberProcess(points=True) as member:
        yield member


@pytest.fixture
def q() -> Iterator[shmrpc.sync.Queue]:
    with shmrpc.sync.queue(OURS) as opened:
        yield opened


def test_a_stopped_holder_of_a_claim_keeps_it(q: shmrpc.sync.Queue, other: MemberProcess) -> None:
    q.put_many(["held", "next"])
    other.do(f"q = sync.attach({OURS!r}, 5); c = q.claim()")
    with stopped(other.pid):
        assert q.get() == "next"
        with pytest.raises(shmrpc.QueueEmpty, match=rf"process {other.pid}.* holds 1.*stopped"):
            q.get(timeout=0.2)
    other.do("c.ack()")
    assert q.empty() and q.stats().held == []


def test_a_lease_takes_a_claim_from_a_stopped_member(q: shmrpc.sync.Queue, other: MemberProcess) -> None:
    q.put("item")
    other.do(f"q = sync.attach({OURS!r}, 5); c = q.claim(lease_timeout=0.3)")
    with stopped(other.pid), q.claim(timeout=PATIENCE) as again:
        assert again.value == "item" and again.redelivered
    with pytest.raises(RuntimeError, match="StaleClaim"):
        other.do("c.ack()")
    assert q.empty() and q.stats().held == []


@contextlib.contextmanager
def stopped_at(other: MemberProcess, point: str) -> Iterator[None]:
    """Stop a member within a transaction, and continue it after the block."""
    other.do(f"q = sync.attach({OURS!r}, 5)")
    other.begin(f"crash_points.stop_at_point({point!r}, 1); q.put('of the other')")
    assert eventually(lambda: is_stopped(other.pid), PATIENCE)
    try:
        yield
    finally:
        other.signal(signal.SIGCONT)
        other.end()


#: Points at which a member has the owner lock.
POINTS = ["LockAcquired", "SequenceOdd", "EntryCounted", "WordChanged", "ItemsWritten", "Committed", "SequenceEven"]
#: Operations of other members in the meantime.
USES: dict[str, Callable[[Any], Any]] = {
    "put": lambda q: q.put("ours", 0.2),
    "put many": lambda q: q.put_many([b"x" * 50_000] * 3, 0.2),
    "get": lambda q: q.get(0.2),
    "get many": lambda q: q.get_many(5, 0.2),
    "claim": lambda q: q.claim(0.2),
    "put at once": lambda q: q.put_nowait(1),
    "get at once": lambda q: q.get_nowait(),
    "shut down": lambda q: q.shutdown(),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_member_stopped_within_a_change_is_named_and_goes_on(
    q: shmrpc.sync.Queue, other: MemberProcess, point: str
) -> None:
    q.put("first")
    with stopped_at(other, point):
        for use in USES.values():
            with pytest.raises(shmrpc.WaitTimeout, match=rf"process {other.pid} is in the middle of changing it"):
                use(q)
    assert q.get_many(5) == ["first", "of the other"]
    assert q.stats().held == [] and not q.stats().is_shut_down


async def _join(q: shmrpc.Queue) -> None:
    await q.join(PATIENCE)


async def _reserve(q: shmrpc.Queue) -> None:
    async with q.reserve(1 << 20, "u1", PATIENCE) as array:
        array[:] = 7


@pytest.mark.parametrize("use", [_join, _reserve])
async def test_a_task_waits_for_a_member_that_was_stopped_within_a_change(
    q: shmrpc.sync.Queue, other: MemberProcess, use: Callable[[shmrpc.Queue], Coroutine[Any, Any, None]]
) -> None:
    async with shmrpc.queue(OURS) as opened:
        with stopped_at(other, "WordChanged"):
            waiting = asyncio.create_task(use(opened))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done, waiting
        q.get(timeout=PATIENCE)
        q.task_done()
        await waiting


async def test_a_filled_reservation_is_put_once_a_stopped_member_goes_on(
    q: shmrpc.sync.Queue, other: MemberProcess
) -> None:
    async with shmrpc.queue(OURS) as opened:
        with contextlib.ExitStack() as stack:

            def go_on() -> None:
                stack.close()

            async with opened.reserve(1 << 20, "u1", PATIENCE) as array:
                array[:] = 7
                stack.enter_context(stopped_at(other, "WordChanged"))
                asyncio.get_running_loop().call_later(0.3, go_on)
        sizes = {len(await opened.get(PATIENCE)) for _ in range(2)}
        assert sizes == {len("of the other"), 1 << 20}


@pytest.mark.parametrize("use", ["put", "get", "claim"])
async def test_a_stopped_member_blocks_no_loop(q: shmrpc.sync.Queue, other: MemberProcess, use: str) -> None:
    q.put("first")
    held, last = 0.0, time.monotonic()

    async def tick() -> None:
        nonlocal held, last
        while True:
            held, last = max(held, time.monotonic() - last), time.monotonic()
            await asyncio.sleep(0.001)

    async def one(opened: shmrpc.Queue) -> None:
        with pytest.raises(shmrpc.WaitTimeout, match=rf"process {other.pid} is in the middle of changing it"):
            await USES[use](opened)

    async with shmrpc.queue(OURS) as opened:
        with stopped_at(other, "WordChanged"):
            ticking = asyncio.create_task(tick())
            await asyncio.sleep(0.01)
            await asyncio.gather(*(one(opened) for _ in range(TASKS)))
            await asyncio.sleep(0.01)
            ticking.cancel()
        assert held < HOLD
        assert await opened.get_many(5, PATIENCE) == ["first", "of the other"]
    figures.note(f"a loop whose {TASKS} tasks {use} while a member is stopped", held=f"{held * 1e3:.0f} ms")


def _claims(q: shmrpc.sync.Queue) -> Any:
    q.put(np.arange(WORDS))
    return q.claim()


def _reads_an_acknowledged_item(q: shmrpc.sync.Queue) -> Any:
    with _claims(q) as claim:
        return claim.value


def _fills(q: shmrpc.sync.Queue) -> Any:
    reservation = q.reserve(WORDS, "i8")
    reservation.__enter__()
    return reservation


#: Things that a member ends by dropping the last reference; and the number of items that remain waiting.
HELD: dict[str, tuple[Callable[[shmrpc.sync.Queue], Any], int]] = {
    "a claim": (_claims, 1),
    "a view": (_reads_an_acknowledged_item, 0),
    "a reservation": (_fills, 0),
}


@pytest.mark.parametrize("what", HELD)
def test_a_release_that_a_stopped_member_prevents_happens_later(
    q: shmrpc.sync.Queue, other: MemberProcess, what: str
) -> None:
    """No further operation of this process on the queue is needed."""
    take, left = HELD[what]
    with MemberProcess() as witness:
        witness.do(f"q = sync.attach({OURS!r}, 5)")
        held = take(q)
        with stopped_at(other, "WordChanged"):
            del held
            gc.collect()
        is_ended = "result = [q.qsize(), len(q.stats().held)]"
        assert eventually(lambda: witness.do(is_ended) == [1 + left, 0], PATIENCE)
        if left:
            assert witness.do("c = q.claim(); result = [c.redelivered, len(c.value)]; c.ack(); del c") == [True, WORDS]
        assert witness.do("result = q.get()") == "of the other"
        assert eventually(lambda: witness.do("result = q.stats().used") < WORDS * 8, PATIENCE)
