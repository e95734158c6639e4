"""Members of a store die at every step: their committed changes stay, the others are undone."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc.sync
from tests.helpers import crash_points
from tests.helpers.host_names import assert_none_left
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import scaled
from tests.helpers.time_bound import bounded
from tests.reliability import figures, store_roles
from tests.reliability.deaths import store_workers
from tests.reliability.store_roles import LARGE, PATIENCE, ROLES, Plain

pytestmark = pytest.mark.crashpoints

OURS = f"storedeath{os.getpid()}"
KILLS = scaled(80, 10_000)
ROUND = 60


#: Bytes that an empty store may keep: memory that the allocator returns later.
KEPT = 2 * LARGE
#: Points that a member passes only after another one has died.
OF_HEIRS = ("RedoBegun", "RedoWordStored", "RedoDone", "RepairPunched", "StoreRecovered")
#: Points at which a member dies so that another one passes these, and how often a role passes them.
WRECKS = {"LogWordStored": 12, "NumberTaken": 2}
#: Further points beside those of stores, and the point at which a member dies first so that another one passes them.
POINTS = {
    "LockAcquired": "",
    "LockTakenOver": "LogWordStored",
    "LockReleased": "",
    **{point: "LogWordStored" if point in OF_HEIRS else "" for point in sorted(crash_points.POINTS_OF_STORES)},
    "DeadContainersRemoved": "NumberTaken",
}


@pytest.fixture(autouse=True)
def nothing_is_left(runtime: Path) -> Iterator[None]:
    crash_points.require_core()
    with bounded(scaled(120, 1800)):
        yield
    assert_none_left(OURS, runtime)


@pytest.fixture(scope="module")
def parent() -> Iterator[MemberProcess]:
    """Start the process that forks the victims: it has no objects open."""
    with MemberProcess(points=True) as member:
        member.do("from tests.reliability import store_roles; names = globals()")
        yield member


class Victims:
    """Members that die, one after the other, and the checks of the living member."""

    def __init__(self, parent: MemberProcess, runtime: Path, directory: Path) -> None:
        self._parent = parent
        parent.do(f"import os; os.environ['XDG_RUNTIME_DIR'] = {str(runtime.parent)!r}")
        self._directory = directory
        self._serial = 0
        #: Possible contents: with and without the change that was under way at a death.
        self._expected: list[Plain] = []
        self.deaths = 0
        #: Seconds of another member's first change after each death.
        self.seconds: list[float] = []

    def begin(self, store: shmrpc.sync.Store) -> None:
        """Fill the store before a death."""
        plain = Plain()
        for each in (store, plain):
            store_roles.begin(each)
        self._expected = [plain]

    def die(self, role: str, point: str, times: int) -> bool:
        """Let a member open the store, play a role, close it, and die at a point. Return False if it has not died."""
        self._serial += 1
        ledger = self._directory / str(self._serial)
        code = f"""
crash_points.die_at_point({point!r}, {times}, -1)
store_roles.follow({OURS!r}, {role!r}, {self._serial}, {str(ledger)!r})
"""
        ended = self._parent.do(f"result = forked({code!r}, names)")
        assert ended in (0, -9)
        self.deaths += ended == -9
        done = store_roles.acknowledged(ledger)
        found = []
        for plain in self._expected:
            for _ in store_roles.play(plain, role, self._serial, done):
                pass
            found.append(plain)
            if ended and done < len(ROLES[role]):
                more = copy.deepcopy(plain)
                ROLES[role][done](more, self._serial)
                found.append(more)
        self._expected = found
        return bool(ended)

    def settle(self, store: shmrpc.sync.Store) -> None:
        """Check that the contents are whole and have all acknowledged changes, and that the store works."""
        began = time.monotonic()
        store["after"] = None
        self.seconds.append(time.monotonic() - began)
        del store["after"]
        messages = []
        while store.inbox.has_messages():
            messages.append(store.inbox.take())
        found = store.copy()
        assert any(found == dict(plain) and messages == plain.messages for plain in self._expected)
        assert store.stats().holder is None


def _used(store: shmrpc.sync.Store) -> int:
    stats = store.stats()
    return stats.memory - stats.free


def _times(role: str, point: str) -> Iterator[int]:
    """Yield the passages at which a member dies: all of them, or in the short form the first and another one."""
    if scaled(0, 1):
        yield from range(1, 60)
        yield from range(60, 6000, 501)
    else:
        yield 1
        yield random.Random(f"{role} {point}").randrange(2, 12)


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_a_point_loses_no_commit_and_leaves_no_partial_one(
    parent: MemberProcess, runtime: Path, tmp_path: Path, point: str
) -> None:
    victims, wreck = Victims(parent, runtime, tmp_path), POINTS[point]
    with shmrpc.sync.store(OURS, busy_timeout=PATIENCE) as store:
        for role in ROLES:
            for times in _times(role, point):
                victims.begin(store)
                if wreck:
                    assert victims.die("transfers", wreck, times % WRECKS[wreck] + 1)
                has_died = victims.die(role, point, times)
                victims.settle(store)
                if not has_died:
                    break
        store.clear()
        assert _used(store) <= KEPT, "memory of the dead is left"
    assert victims.deaths > 0
    figures.note("deaths at points of a store", **{point: victims.deaths})
    figures.note("the first change after a death at a point of a store", **{point: figures.times(victims.seconds)})


#: Points that a member passes when it creates a store.
OF_FOUNDERS = ("HeapGrown", "LogWritten", "LogCounted", "LogWordStored", "LogEnded", "LogSettled", "StoreInitialized")


@pytest.mark.parametrize("point", OF_FOUNDERS)
def test_a_death_during_the_creation_of_a_store_leaves_a_usable_store(
    parent: MemberProcess, runtime: Path, tmp_path: Path, point: str
) -> None:
    victims = Victims(parent, runtime, tmp_path)
    assert victims.die("adds", point, 1)
    with shmrpc.sync.store(OURS) as store:
        assert store.copy() == {}
        victims.begin(store)
        victims.settle(store)


def test_a_death_while_waiting_for_the_owner_lock_delays_no_member(
    parent: MemberProcess, runtime: Path, tmp_path: Path
) -> None:
    victims = Victims(parent, runtime, tmp_path)
    with shmrpc.sync.store(OURS, busy_timeout=PATIENCE) as store:
        victims.begin(store)
        with store.transaction():
            assert victims.die("sets", "LockAwaited", 1)
            store["n"] = 8
        assert store["n"] == 8
        store["n"] = 7
        victims.settle(store)


@pytest.mark.parametrize("waits", ["with s.transaction(): pass", "asyncio.run(in_loop())", "s['n'] += 1"])
def test_waiters_for_a_transaction_whose_member_dies_go_on(runtime: Path, waits: str) -> None:
    seconds = []
    with MemberProcess() as waiting, shmrpc.sync.store(OURS) as store:
        store["n"] = 1
        waiting.do(
            f"import asyncio, time; s = sync.store({OURS!r}, busy_timeout={PATIENCE})\n"
            f"looping = shmrpc.store({OURS!r})\n"
            "async def in_loop():\n"
            "    async with looping.transaction(): pass\n"
        )
        for _ in range(scaled(3, 50)):
            with MemberProcess() as victim:
                victim.do(f"s = sync.store({OURS!r}); t = s.transaction(); t.__enter__(); s['n'] = 2")
                waiting.begin(f"{waits}; result = time.monotonic()")
                assert not waiting.ends(0.05)
                began = time.monotonic()
                victim.kill()
                seconds.append(waiting.end() - began)
        assert store["n"] == (1 + len(seconds) if "+= 1" in waits else 1)
        waiting.do("s.close(); looping.close()")
    figures.note("waiters for a transaction that ends by a death", **{waits: figures.times(seconds)})


def test_kills_at_any_moment_leave_whole_transactions(runtime: Path, tmp_path: Path) -> None:
    seed, killed = random.randrange(1 << 32), 0
    with (
        shmrpc.sync.store(OURS, max_memory="8MiB", busy_timeout=10.0) as store,
        MemberProcess() as forks,
    ):
        store_workers.prepare(store)
        forks.do("from tests.reliability.deaths import store_workers")
        while killed < KILLS:
            forks.do(
                f"store_workers.kill_loop({OURS!r}, {ROUND}, {seed + killed}, {str(tmp_path)!r}, {killed})",
            )
            killed += ROUND
            found = store.copy()
            assert sum(found["accounts"].values()) == store_workers.TOTAL
            for number in range(killed):
                ledger = tmp_path / str(number)
                acknowledged = ledger.stat().st_size if ledger.exists() else 0
                done = found["done"].get(f"worker {number}", 0)
                assert acknowledged <= done <= acknowledged + 1, "an acknowledged transfer is lost or repeated"
            for worker, count in found["notes"]:
                assert 1 <= count <= found["done"][worker]
        transfers = sum(found["done"].values())
        assert transfers > 0
        store.clear()
        assert store.stats().holder is None
    figures.note("killed users of a store", kills=killed, seed=seed, transfers=transfers)


def test_a_store_whose_members_are_all_killed_is_found_by_the_next_one(runtime: Path) -> None:
    with MemberProcess() as member:
        member.do(
            f"s = shmrpc.sync.store({OURS!r}); s['kept'] = {{'a': [1, 2]}}\n"
            "t = s.transaction(); t.__enter__(); s['kept']['a'].append(3)"
        )
        member.kill()
    with shmrpc.sync.store(OURS) as store:
        assert store.copy() == {"kept": {"a": [1, 2]}}, "the contents are not the committed ones"
        store["kept"]["a"].append(4)
        assert store["kept"] == {"a": [1, 2, 4]}
