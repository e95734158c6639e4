"""A stopped member holds a store: other members fail over to a copy, and it is fenced off when it wakes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers import crash_points
from tests.helpers.host_names import assert_none_left, host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import is_stopped, stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures, store_roles
from tests.reliability.stopped.test_store_stopped import HOLDS

pytestmark = pytest.mark.crashpoints

#: A name that only this test run uses.
OURS = f"storereplaced{os.getpid()}"
#: Points at which the change under way is committed.
COMMITTED = ("OnlyWordStored", "LogCounted", "LogWordStored", "LogEnded", "LogSettled", "HeapFreed", "HeapPunched")
#: Failovers in the test with random stops.
FAILOVERS = scaled(8, 300)
WORKERS = 4
FENCED = r"LocalProtocolError: store '.*' was replaced by a copy because this process held it up"


@pytest.fixture(autouse=True)
def in_time(runtime: Path) -> Iterator[None]:
    crash_points.require_core()
    with bounded(scaled(120, 1800)):
        yield
    with host_to_oneself():
        cleanup.clean()
    assert_none_left(OURS, runtime)


def is_fenced(member: MemberProcess, code: str) -> None:
    """Check that an operation of the member raises that it was fenced off."""
    with pytest.raises(RuntimeError, match=FENCED):
        member.do(code)


HOLD = (
    f"s = sync.store({OURS!r}, busy_timeout=0.1); t = s.transaction(); t.__enter__(); s['n'] = 2; s['list'].append(2)"
)


def test_a_stopped_holder_is_fenced_off_and_others_go_on(runtime: Path) -> None:
    with MemberProcess() as member, MemberProcess() as other, shmrpc.sync.store(OURS, busy_timeout=0.1) as store:
        store["n"], store["list"], store["frame"], store["gone"] = 1, [1], np.arange(1000), np.arange(1000)
        members, frame = store["list"], store["frame"]
        gone = store["gone"]
        del store["gone"]
        other.do(f"s = sync.store({OURS!r}); l = s['list']; frame = s['frame']")
        member.do(HOLD)
        with stopped(member.pid):
            assert store.fail_over() == member.pid
            assert store.copy()["list"] == [1]
            members.append(3)
            frame[0] = 77
            assert other.do("l.append(4); result = [l.copy(), int(frame[0])]") == [[1, 3, 4], 77]
            assert members == [1, 3, 4]
            assert gone[999] == 999, "the copy lacks a value that only a view keeps"
            assert store.stats().holder is None
            assert store.fail_over() is None, "the copy has a holder"
        is_fenced(member, "s['n']")
        is_fenced(member, "t.__exit__(None, None, None)")
        for code in (
            "s['n'] = 5",
            "s['list'].append(9)",
            "s.inbox.put(1)",
            "s.transaction().__enter__()",
            "s.fail_over()",
        ):
            is_fenced(member, code)
        assert store.copy()["list"] == [1, 3, 4]
        member.do("s.close()")
        assert member.do(f"s = sync.store({OURS!r}); s['n'] += 1; result = s['n']") == 2
        assert store["n"] == 2
        member.do("s.close()")
        other.do("del frame; s.close()")
        del frame, gone


def test_a_store_without_a_holder_does_not_fail_over(runtime: Path) -> None:
    with MemberProcess() as member, shmrpc.sync.store(OURS, busy_timeout=0.1) as store:
        store["n"] = 1
        assert store.fail_over() is None
        with (
            store.transaction(),
            pytest.raises(shmrpc.LocalProtocolError, match="of this process is within a transaction"),
        ):
            store.fail_over()
        member.do(f"s = sync.store({OURS!r}); t = s.transaction(); t.__enter__(); s['n'] = 2")
        member.kill()
        assert store.fail_over() is None, "the store of a dead holder has failed over"
        assert store["n"] == 1


def test_waiters_go_on_in_the_copy(runtime: Path) -> None:
    async def main() -> None:
        async with shmrpc.store(OURS, busy_timeout=0.1) as store:
            store["n"], store["list"] = 1, [1]
            with MemberProcess() as member, MemberProcess() as other:
                other.do(f"s = sync.store({OURS!r}); l = s['list']")
                waits = asyncio.create_task(store.inbox.take(30))
                await asyncio.sleep(0)
                member.do(HOLD)
                with stopped(member.pid):
                    other.begin("t = s.transaction(30); t.__enter__(); t.__exit__(None, None, None)")
                    await asyncio.sleep(0.05)
                    assert await store.fail_over() == member.pid
                    store.inbox.put("for the waiter")
                    assert await waits == "for the waiter"
                    other.end()
                    other.begin("l.wait_changed(30); result = l.copy()")
                    assert not other.ends(0.05)
                    store["list"].append(5)
                    assert other.end() == [1, 5]
                other.do("s.close()")
                member.do("s.close()")

    asyncio.run(main())


def test_a_task_that_waits_for_the_transaction_of_a_fenced_member_begins_its_own(
    runtime: Path,
) -> None:
    async def main() -> None:
        async with shmrpc.store(OURS, busy_timeout=0.1) as store:
            store["n"], store["list"] = 1, [1]
            with MemberProcess() as member:
                member.do(HOLD)
                with stopped(member.pid):
                    waits = asyncio.create_task(enter(store))
                    await asyncio.sleep(0.05)
                    assert await store.fail_over() == member.pid
                    await waits
                    assert store["n"] == 2
                member.do("s.close()")

    async def enter(store: shmrpc.Store) -> None:
        async with store.transaction(30):
            store["n"] += 1

    asyncio.run(main())


def test_a_waiter_for_a_change_is_woken_by_a_change_of_the_copy(runtime: Path) -> None:
    with MemberProcess() as member, MemberProcess() as other, shmrpc.sync.store(OURS, busy_timeout=0.1) as store:
        store["n"], store["list"] = 1, [1]
        other.do(f"s = sync.store({OURS!r}); l = s['list']")
        other.begin("l.wait_changed(30); result = l.copy()")
        assert not other.ends(0.05)
        member.do(HOLD)
        with stopped(member.pid):
            assert store.fail_over() == member.pid
            assert not other.ends(0.05), "the failover counts as a change"
            store["list"].append(6)
            assert other.end() == [1, 6]
        member.do("s.close()")
        other.do("s.close()")


@pytest.mark.parametrize(("point", "role"), HOLDS.items())
def test_a_member_stopped_at_a_point_is_fenced_off(runtime: Path, tmp_path: Path, point: str, role: str) -> None:
    plain = store_roles.Plain()
    with MemberProcess(points=True) as member, shmrpc.sync.store(OURS, busy_timeout=0.05) as store:
        for each in (store, plain):
            store_roles.begin(each)
        member.do("from tests.reliability import store_roles")
        ledger = tmp_path / "ledger"
        member.begin(
            f"crash_points.stop_at_point({point!r}, 1); store_roles.follow({OURS!r}, {role!r}, 3, {str(ledger)!r})"
        )
        assert eventually(lambda: is_stopped(member.pid), 30)
        assert store.fail_over() == member.pid
        done = store_roles.acknowledged(ledger)
        for _ in store_roles.play(plain, role, 3, done + (point in COMMITTED)):
            pass
        assert store.copy() == plain
        store["ours"] = plain["ours"] = ["and on we go", bytearray(store_roles.LARGE)]
        member.signal(signal.SIGCONT)
        with pytest.raises(RuntimeError, match=FENCED):
            member.end()
        assert store.copy() == plain, "the fenced member has changed the store"
        assert store_roles.acknowledged(ledger) == done, "a lost step is acknowledged"
        assert [store.inbox.take() for _ in plain.messages] == plain.messages
        store.clear()
        assert store.stats().memory < 4 * store_roles.LARGE, "the fenced member keeps memory"


@pytest.mark.parametrize("point", sorted(crash_points.POINTS_OF_COPIES))
def test_a_death_during_a_failover_leaves_it_to_the_next_member(runtime: Path, point: str) -> None:
    with (
        MemberProcess() as member,
        MemberProcess(points=True) as replacing,
        shmrpc.sync.store(OURS, busy_timeout=0.1) as store,
    ):
        store["n"], store["list"] = 1, [1]
        member.do(HOLD)
        replacing.do(f"s = sync.store({OURS!r}, busy_timeout=0.1)")
        with stopped(member.pid):
            replacing.begin(f"crash_points.die_at_point({point!r}, 1, -1); s.fail_over()")
            assert replacing.wait() == -signal.SIGKILL
            with host_to_oneself():  # A clean-up keeps a copy that members have not found so far.
                cleanup.clean()
            store["list"].append(2)
            assert store.copy() == {"n": 1, "list": [1, 2]}
            with MemberProcess() as newcomer:
                assert newcomer.do(f"s = sync.store({OURS!r}); result = s['list'].copy(); s.close()") == [1, 2]
        is_fenced(member, "s['n'] = 9")
        member.do("s.close()")
        assert store["n"] == 1


def test_a_copy_whose_members_are_all_killed_is_found_by_the_next_one(runtime: Path) -> None:
    with MemberProcess() as member, MemberProcess() as other:
        other.do(f"s = sync.store({OURS!r}, busy_timeout=0.1); s['n'] = 1; s['list'] = [1]")
        member.do(HOLD)
        with stopped(member.pid):
            assert other.do("result = s.fail_over()") == member.pid
            other.do("s['n'] = 7")
        other.kill()
        member.kill()
    with shmrpc.sync.store(OURS) as store:
        assert store.copy() == {"n": 7, "list": [1]}
    assert not [name for name in os.listdir("/dev/shm") if OURS in name], "the last member has left the copy"


ADDS = """
import os
file = os.open({ledger!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while not os.path.exists({end!r}):
    try:
        with sync.store({name!r}, busy_timeout=20.0) as s:
            while not os.path.exists({end!r}):
                for _ in range(50):
                    shmrpc.atomic.add(s, {worker!r}, 1)
                    os.write(file, b"a")
                    with s.transaction():
                        s["one"] += 1
                        s["other"] -= 1
    except shmrpc.LocalProtocolError as error:
        assert "replaced by a copy" in str(error), error
        os.write(file, b"f")
"""


def test_no_acknowledged_addition_is_lost_beside_failovers(runtime: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    dice, failovers, end = random.Random(seed), 0, tmp_path / "end"
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(MemberProcess()) for _ in range(WORKERS)]
        with shmrpc.sync.store(OURS, busy_timeout=0.02) as store:
            store["one"] = store["other"] = 0
            store.update({f"w{number}": 0 for number in range(WORKERS)})
            for number, member in enumerate(members):
                ledger = str(tmp_path / f"w{number}")
                member.begin(ADDS.format(ledger=ledger, end=str(end), name=OURS, worker=f"w{number}"))
            while failovers < FAILOVERS:
                time.sleep(dice.random() * 0.02)
                # Usually the member does not hold the store, and no failover happens.
                with stopped(dice.choice(members).pid):
                    failovers += store.fail_over() is not None
            end.touch()
            for member in members:
                member.end()
            acknowledged = 0
            for number in range(WORKERS):
                ledger_text = (tmp_path / f"w{number}").read_bytes()
                done, fenced = ledger_text.count(b"a"), ledger_text.count(b"f")
                assert done <= store[f"w{number}"] <= done + fenced, "an acknowledged addition is lost or repeated"
                acknowledged += done
            assert store["one"] + store["other"] == 0
    figures.note("additions beside failovers", seed=seed, failovers=failovers, acknowledged=acknowledged)
