"""Members of a queue die at every step: no item is lost or doubled, and the others go on."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers import crash_points
from tests.helpers.host_names import assert_none_left
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.time_bound import bounded
from tests.reliability import figures
from tests.reliability.deaths.queue_ledger import Account, Ledger, item, number_of
from tests.reliability.deaths.queue_workers import PATIENCE

pytestmark = pytest.mark.crashpoints

KILLS = scaled(150, 10_000)
#: Kills between two checks of the ledger.
ROUND = 150
#: Bytes that an empty queue may keep: the chunk that is filled next, and memory that the allocator returns later.
KEPT = 256 << 10
#: A name that only this test run uses.
OURS = f"dying{os.getpid()}"


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
        member.do("from tests.reliability.deaths import queue_ledger, queue_workers; names = globals()")
        yield member


@pytest.fixture
def q() -> Iterator[shmrpc.sync.Queue]:
    """Open the queue as the living member."""
    with shmrpc.sync.queue(OURS, max_memory="16MiB") as opened:
        yield opened


#: Statements that a victim executes; `n` and `B` are the numbers of its items.
ROLES: dict[str, str] = {
    "puts a small item": "say('putting', n); q.put(n); say('put', n)",
    "puts a batch": "say('putting', *B); q.put_many(map(queue_ledger.item, B)); say('put', *B)",
    "puts a batch of small items": "say('putting', *B); q.put_many(B); say('put', *B)",
    "puts a large array": "say('putting', n); q.put(queue_ledger.array(n)); say('put', n)",
    "fills a reservation": """
say('putting', n)
with q.reserve(queue_ledger.WORDS, 'i8') as filled:
    filled[:] = n
say('put', n)""",
    "gets": "say('getting', 1); got = q.get(); say('got', queue_ledger.number_of(got)); q.task_done()",
    "gets many": "say('getting', 50); got = q.get_many(50); say('got', *map(queue_ledger.number_of, got))",
    "claims": """
c = q.claim(); m = queue_ledger.number_of(c.value); say('claimed', m, int(c.redelivered))
d = q.claim(); o = queue_ledger.number_of(d.value); say('claimed', o, int(d.redelivered))
say('acknowledging', m); c.ack(); say('acknowledged', m)
say('acknowledging', o); d.ack(); say('acknowledged', o)""",
    "nacks": """
c = q.claim(); m = queue_ledger.number_of(c.value); say('claimed', m, int(c.redelivered)); c.nack()""",
}
#: Statements by which a victim holds claims while it dies in another operation.
HOLDS = (
    "held = [q.claim(), q.claim()]; [say('claimed', queue_ledger.number_of(c.value), int(c.redelivered)) for c in held]"
)

FILLS = "filling = [q.reserve(queue_ledger.WORDS).__enter__() for _ in range(2)]"

#: Points of shared memory that a queue passes; and the point at which a member dies first, so that another one
#: passes them.
SHARED: dict[str, str] = {
    "LockAcquired": "",
    "LockTakenOver": "WordChanged",
    "LockReleased": "",
    "SequenceOdd": "",
    "EntryWritten": "",
    "EntryCounted": "",
    "WordChanged": "",
    "Committed": "",
    "SequenceEven": "",
    "RollbackBegun": "WordChanged",
    "WordRestored": "WordChanged",
    "RollbackDone": "WordChanged",
    "GrowthBegun": "",
    "GrowthDone": "",
    "BlockReserved": "",
    "ShrinkingBegun": "",
    "ShrinkingDone": "",
}
POINTS = {**dict.fromkeys(sorted(crash_points.POINTS_OF_QUEUES - {"ClaimRecovered"}), ""), **SHARED}


def notice_deaths(queue: shmrpc.sync.Queue) -> None:
    """Let the member notice deaths, which it does when it takes an item, or tries to."""
    with pytest.raises(shmrpc.QueueEmpty):
        queue.dead_letters.get_nowait()


def settle(queue: shmrpc.sync.Queue, ledger: Path) -> dict[str, int]:
    """Take out the remaining items after the death of all others; check them against the ledger, and their order."""
    drained, account = [], Account(ledger)
    assert eventually(lambda: queue.stats().held == [], PATIENCE), queue.stats()
    end = time.monotonic() + PATIENCE
    while queue.stats().unfinished:
        assert time.monotonic() < end, queue.stats()
        try:
            claim = queue.claim(0.001)
        except shmrpc.QueueEmpty:
            continue
        with claim:
            account.drained(number_of(claim.value), claim.redelivered)
            drained.append((claim.number, claim.redelivered))
        del claim
    found = account.close()
    assert drained == sorted(drained), "not in order"
    flags = [redelivered for _, redelivered in drained]
    assert flags == sorted(flags, reverse=True), "redelivered items do not come first"
    stats = queue.stats()
    assert (stats.depth, stats.held, stats.dead) == (0, [], 0)
    assert eventually(lambda: queue.stats().used <= KEPT), queue.stats()
    ledger.unlink()
    return found


class Victims:
    """Members that die, one after the other, and the checks of the living member."""

    def __init__(self, parent: MemberProcess, runtime: Path, ledger: Path, queue: shmrpc.sync.Queue) -> None:
        self._parent = parent
        parent.do(f"import os; os.environ['XDG_RUNTIME_DIR'] = {str(runtime.parent)!r}")
        self._queue = queue
        self._ledger = ledger
        self._serial = 0
        self.deaths = 0

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def put_first(self, count: int) -> None:
        """Put items as the living member."""
        serial = self._next()
        numbers = range(serial << 32, (serial << 32) + count)
        with contextlib.closing(Ledger(self._ledger, serial)) as ledger:
            ledger.write("putting", *numbers)
            for number in numbers:
                self._queue.put(item(number), PATIENCE)
            ledger.write("put", *numbers)

    def die(self, role: str, point: str, times: int, before: str = "", *, opening: bool = False) -> bool:
        """Let a member play a role and die at a point. Return False if it has not passed the point.

        The passages count from the end of ``before`` on or, with ``opening``, from the beginning.
        """
        serial = self._next()
        arm = f"crash_points.die_at_point({point!r}, {times}, -1)"
        code = f"""
say = queue_ledger.Ledger(queue_ledger.Path({str(self._ledger)!r}), {serial}).write
{arm if opening else ""}
q = sync.attach({OURS!r}, {PATIENCE})
{before}
{arm}
n = {serial} << 32
B = range(n, n + 40)
{ROLES[role]}
q.close()
"""
        ended = self._parent.do(f"result = forked({code!r}, names)")
        assert ended in (0, -9)
        self.deaths += ended == -9
        return bool(ended)

    def settle(self) -> None:
        """Check that all items of the dead return, and that the ledger balances."""
        settle(self._queue, self._ledger)


@pytest.fixture
def victims(parent: MemberProcess, runtime: Path, tmp_path: Path, q: shmrpc.sync.Queue) -> Victims:
    notice_deaths(q)
    return Victims(parent, runtime, tmp_path / "ledger", q)


def _times(role: str, point: str) -> Iterator[int]:
    """Yield the passages at which a member dies: all of them, or in the short form the first and some others."""
    chance = random.Random(f"{role} {point}")
    times = 0
    while True:
        times += 1 if times < scaled(3, 1_000) else chance.randrange(1, 30)
        yield times


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_a_point_neither_loses_nor_doubles_an_item(victims: Victims, point: str) -> None:
    wreck = POINTS[point]
    for role in ROLES:
        for times in _times(role, point):
            victims.put_first(4)
            if wreck:
                assert victims.die("puts a batch", wreck, 1 + times)
            before = "" if role in ("claims", "nacks") or wreck else HOLDS
            has_died = victims.die(role, point, times, before)
            victims.settle()
            if not has_died:
                break
    assert victims.deaths > 0
    figures.note("deaths at points of a queue", **{point: victims.deaths})


@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("RecoveryBegun", 1),
        ("ClaimRecovered", 1),
        ("ClaimRecovered", 2),
        ("DeadAllocationFound", 1),
        ("DeadAllocationFound", 2),
        ("Recovered", 1),
    ],
)
def test_a_death_during_the_recovery_of_a_dead_member_loses_no_item(
    parent: MemberProcess, runtime: Path, tmp_path: Path, q: shmrpc.sync.Queue, point: str, times: int
) -> None:
    """A member that holds claims and fills memory dies; so does the next one, while it returns them."""
    victims = Victims(parent, runtime, tmp_path / "ledger", q)
    victims.put_first(8)
    assert victims.die("puts a small item", "ItemsPut", 1, f"{HOLDS}; {FILLS}")
    assert victims.die("gets", point, times, opening=True)
    notice_deaths(q)
    victims.settle()


def test_kills_at_any_moment_neither_lose_nor_double_an_item(
    runtime: Path, tmp_path: Path, q: shmrpc.sync.Queue
) -> None:
    q.close()
    seed, first, killed, figure = random.randrange(1 << 32), 1, 0, {"items": 0, "redelivered": 0, "in_hands": 0}
    with (
        shmrpc.sync.queue(OURS, maxsize=500, max_memory="8MiB") as q,
        MemberProcess() as forks,
    ):
        forks.do("from tests.reliability.deaths import queue_workers")
        notice_deaths(q)
        while killed < KILLS:
            ledger, gets = tmp_path / "ledger", killed // ROUND % 2 == 1
            kill = f"queue_workers.kill_loop({OURS!r}, {ROUND}, {seed + killed}, {str(ledger)!r}, {gets}, {first})"
            first = forks.do(f"result = {kill}")
            killed += ROUND
            found = settle(q, ledger)
            assert gets or found["in_hands"] == 0
            for name, count in found.items():
                figure[name] += count
    figures.note("killed users of a queue", kills=killed, seed=seed, **figure)
