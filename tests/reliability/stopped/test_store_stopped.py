"""A stopped member of a store: readers go on, writers end at their deadlines with errors that name it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers import crash_points
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually
from tests.helpers.stopped_processes import is_stopped, stopped
from tests.helpers.time_bound import bounded
from tests.reliability import store_roles

pytestmark = pytest.mark.crashpoints

#: A name that only this test run uses.
OURS = f"storestopped{os.getpid()}"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    crash_points.require_core()
    with bounded():
        yield
    with host_to_oneself():
        cleanup.clean()


def test_a_process_that_is_stopped_within_a_transaction_is_named_and_readers_go_on(runtime: Path) -> None:
    with MemberProcess() as member, shmrpc.sync.store(OURS, busy_timeout=0.2) as store:
        store["n"] = 1
        member.do(f"s = sync.store({OURS!r}, busy_timeout=0.2); t = s.transaction(); t.__enter__(); s['n'] = 2")
        with stopped(member.pid):
            assert store["n"] == 1, "a reader waits"
            assert store.stats().holder == member.pid
            with pytest.raises(shmrpc.StoreBusy, match=str(member.pid)):
                store["n"] = 3
            with pytest.raises(shmrpc.WaitTimeout, match=str(member.pid)), store.transaction(0.1):
                pass
        member.do("t.__exit__(None, None, None); s.close()")
        assert store["n"] == 2


#: Points at which a member has the owner lock of the store, and the role that reaches them.
HOLDS = {
    "LockAcquired": "adds",
    "OnlyWordStored": "adds",
    "NumberTaken": "transfers",
    "LogWritten": "transfers",
    "LogCounted": "transfers",
    "LogWordStored": "transfers",
    "LogEnded": "transfers",
    "LogSettled": "transfers",
    "TransactionBegun": "transfers",
    "TransactionMarked": "transfers",
    "HeapGrown": "grows",
    "HeapFreed": "removes large values",
    "HeapPunched": "removes large values",
}
#: Points at which the member writes committed values, so that other members cannot read.
STORES = ("LogWordStored", "LogEnded")
#: Points at which the member no longer has the owner lock, and others go on.
LETS_GO = {
    "LockReleased": "adds",
    "StoreInitialized": "adds",
    "StoreChanged": "puts messages",
    "TransactionEnded": "transfers",
    "MessageTaken": "takes messages",
    "BufferPinned": "reads a removed value",
    "BufferUnpinned": "reads a removed value",
    "WatchBegun": "waits",
    "WatchEnded": "waits",
}


@pytest.mark.parametrize(("point", "role"), [*HOLDS.items(), *LETS_GO.items()])
def test_a_member_stopped_at_a_point_is_named_and_goes_on(runtime: Path, tmp_path: Path, point: str, role: str) -> None:
    plain = store_roles.Plain()
    with MemberProcess(points=True) as member, shmrpc.sync.store(OURS, busy_timeout=0.05) as store:
        for each in (store, plain):
            store_roles.begin(each)
        member.do("from tests.reliability import store_roles")
        member.begin(
            f"crash_points.stop_at_point({point!r}, 1); "
            f"store_roles.follow({OURS!r}, {role!r}, 3, {str(tmp_path / 'ledger')!r})"
        )
        assert eventually(lambda: is_stopped(member.pid), 30)
        if point in HOLDS:
            with pytest.raises(shmrpc.StoreBusy, match=rf"process {member.pid} is in the middle of changing it"):
                store["ours"] = 1
            with (
                pytest.raises((shmrpc.StoreBusy, shmrpc.WaitTimeout), match=rf"process {member.pid} "),
                store.transaction(0.05),
            ):
                pass
        else:
            store["ours"] = 1
            del store["ours"]
        if point in STORES:
            with pytest.raises(shmrpc.StoreBusy, match=rf"process {member.pid} is in the middle of changing it"):
                store["text"]
        else:
            assert store["text"] == plain["text"], "a reader waits"
            assert store.stats().holder == (member.pid if point in HOLDS else None)
        member.signal(signal.SIGCONT)
        member.end()
        for _ in store_roles.play(plain, role, 3):
            pass
        assert store.copy() == plain


def test_a_check_for_messages_that_waits_lets_other_threads_run(runtime: Path, tmp_path: Path) -> None:
    with MemberProcess(points=True) as member, shmrpc.sync.store(OURS, busy_timeout=5.0) as store:
        store_roles.begin(store)
        _stop_within_commit(member, tmp_path)
        checking = InThread(store.inbox.has_messages)
        member.signal(signal.SIGCONT)  # Comes after the busy timeout if the check kept this thread from running.
        assert checking.join() is True
        member.end()


def test_a_receiver_woken_while_the_store_cannot_be_read_raises(runtime: Path, tmp_path: Path) -> None:
    """The receiver has used the wake-up, so nothing would wake it for the message if it slept on."""
    with (
        MemberProcess(points=True) as sender,
        MemberProcess(points=True) as writer,
        shmrpc.sync.store(OURS, busy_timeout=0.05) as store,
    ):
        store_roles.begin(store)
        while store.inbox.has_messages():
            store.inbox.take()
        receiving = InThread(store.inbox.take)
        time.sleep(0.3)  # Until it sleeps. It may still be awake on a busy machine: it then raises the same error.
        sender.begin(
            f"s = sync.store({OURS!r}); crash_points.stop_at_point('StoreChanged', 1); s.inbox.put('sent'); s.close()"
        )
        assert eventually(lambda: is_stopped(sender.pid), 30)
        _stop_within_commit(writer, tmp_path)
        sender.signal(signal.SIGCONT)
        error = receiving.join()
        assert isinstance(error, shmrpc.StoreBusy), error
        assert f"process {writer.pid} is in the middle of changing it" in str(error)
        writer.signal(signal.SIGCONT)
        writer.end()
        sender.end()
        assert store.inbox.take(10) == "sent"


def _stop_within_commit(member: MemberProcess, directory: Path) -> None:
    """Let a member begin to write committed values, and stop there: others cannot read until it goes on."""
    member.do("from tests.reliability import store_roles")
    member.begin(
        "crash_points.stop_at_point('LogWordStored', 1); "
        f"store_roles.follow({OURS!r}, 'transfers', 3, {str(directory / 'ledger')!r})"
    )
    assert eventually(lambda: is_stopped(member.pid), 30)


def test_a_transaction_waits_for_a_single_operation_as_for_another_transaction(runtime: Path, tmp_path: Path) -> None:
    """The wait lasts as long as its timeout: the end of a single operation wakes no waiter for a transaction."""
    with MemberProcess(points=True) as member, shmrpc.sync.store(OURS, busy_timeout=60) as store:
        store_roles.begin(store)
        member.do("from tests.reliability import store_roles")
        ways = (_in_thread, _in_loop, _blocking_in_loop, _within_one_operation)
        for number, begin in enumerate(ways):
            member.begin(
                "crash_points.stop_at_point('OnlyWordStored', 1); "
                f"store_roles.follow({OURS!r}, 'adds', 0, {str(tmp_path / 'ledger')!r})"
            )
            assert eventually(lambda: is_stopped(member.pid), 30)
            waiting = InThread(partial(begin, store, number))
            time.sleep(0.25)  # Longer than any limit but that of the wait.
            with pytest.raises(shmrpc.WaitTimeout, match=rf"process {member.pid} "), store.transaction(0.01):
                pass
            member.signal(signal.SIGCONT)
            assert waiting.join() is None
            member.end()
            assert store["ours"] == number and store.stats().holder is None


def _in_thread(store: shmrpc.sync.Store, number: int) -> None:
    with store.transaction(60):
        store["ours"] = number


def _in_loop(store: shmrpc.sync.Store, number: int) -> None:
    async def main() -> None:
        async with shmrpc.store(OURS) as same:
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(turn())
            async with same.transaction(60):
                same["ours"] = number
            task.cancel()
            assert turns > 2, "the loop was blocked"

    asyncio.run(main())


def _blocking_in_loop(store: shmrpc.sync.Store, number: int) -> None:
    async def main() -> None:
        _in_thread(store, number)

    asyncio.run(main())


def _within_one_operation(store: shmrpc.sync.Store, number: int) -> None:
    store.setdefault("ours", 0)
    shmrpc.atomic.update(store, "ours", lambda _: number)
