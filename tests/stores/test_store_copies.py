"""Snapshots: ``copy()`` returns the state of one moment, though others change it meanwhile, die or are stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually
from tests.stores.shared_classes import Player

LONG = 60.0
MEMORY = "128MiB"
#: A name that no other run of these tests has.
OURS = f"snapshots{os.getpid()}"
#: The program of another process that opens the store.
OPEN = f"s = sync.store({OURS!r}, max_memory={MEMORY!r}, busy_timeout={LONG})"
#: So much that it takes many milliseconds to copy it, in which thousands of changes are made.
MUCH = 150_000
TOTAL = 1_000
#: Moves points between a dict, a list, a struct of a class and an inner dict, until the test ends it.
MOVING = f"""
import random
{OPEN}
dice, world, moves = random.Random(SEED), s["world"], 0
hands = [(world["teams"]["red"], dice.choice("abcdef")), (world["rows"][1], 2), (world, "bank")]
while s["goes on"]:
    one, other = dice.sample(range(4), 2)
    amount = dice.randrange(5)
    with s.transaction():
        for number, by in ((one, -amount), (other, amount)):
            if number == 3:
                world["ada"].health += by
            else:
                container, key = hands[number]
                container[key] += by
        world["rows"].append([amount, amount])
        if len(world["rows"]) > 20:
            del world["rows"][5:]
        for each in world["twins"]:
            each["count"] += 1
    moves += 1
    s["moved SEED"] = moves
result = moves
s.close()
"""
#: Adds without end.
ADDING = f"{OPEN}\nn = 0\nwhile s['goes on']: n = shmrpc.atomic.add(s, 'added', 1)\ns.close()\nresult = n"


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS, max_memory=MEMORY, busy_timeout=LONG) as opened:
        opened.update({"goes on": True, "added": 0})
        yield opened
    with host_to_oneself():
        cleanup.clean()


def _points(world: dict[str, Any]) -> int:
    return int(sum(world["teams"]["red"].values()) + sum(world["rows"][1][:3]) + world["bank"] + world["ada"].health)


def test_a_copy_of_any_part_is_of_one_moment_while_others_change_it(s: shmrpc.sync.Store) -> None:
    s["world"] = {
        "teams": {"red": dict.fromkeys("abcdef", 100)},
        "rows": [["x"], [100, 100, 100]],
        "bank": 0,
        "ada": Player("Ada", 100),
        "twins": [{"count": 0}, {"count": 0}],
    }
    with MemberProcess() as one, MemberProcess() as two:
        for seed, each in enumerate((one, two)):
            each.begin(MOVING.replace("SEED", str(seed)))
        counts: set[int] = set()
        while len(counts) < 200 or not all(s.get(f"moved {seed}") for seed in range(2)):
            assert not one.ends(0) and not two.ends(0)
            assert _points(s.copy()["world"]) == TOTAL
            assert _points(s["world"].copy()) == TOTAL
            twins = s["world"]["twins"].copy()
            assert twins[0] == twins[1]
            assert all(len(row) != 2 or row[0] == row[1] for row in s["world"]["rows"].copy())
            counts.add(twins[0]["count"])
        s["goes on"] = False
        moves = [each.end() for each in (one, two)]
    assert all(moves) and s["world"]["twins"][0]["count"] == sum(moves)
    assert _points(s["world"].copy()) == TOTAL


@pytest.mark.slow
def test_a_copy_of_much_ends_beside_others_that_go_on_without_a_pause(s: shmrpc.sync.Store) -> None:
    """Writers wait meanwhile, and do not time out."""
    s["much"] = dict.fromkeys(range(6 * MUCH), 1)
    move = (
        f"{OPEN.replace(str(LONG), '10.0')}\nmuch, n = s['much'], 0\nwhile s['goes on']:\n"
        f" with s.transaction(): much[n % {MUCH}] -= 1; much[{5 * MUCH}] += 1\n n += 1\nresult = n"
    )
    with MemberProcess() as adding, MemberProcess() as moving:
        adding.begin(ADDING)
        moving.begin(move)
        assert eventually(lambda: s["added"] > 1_000 and s["much"][5 * MUCH] > 100)
        copies = [s["much"].copy() for _ in range(4)]
        s["goes on"] = False
        added, moved = adding.end(), moving.end()
    assert [sum(copy.values()) for copy in copies] == [6 * MUCH] * 4
    assert s["added"] == added and s["much"][5 * MUCH] == 1 + moved
    assert s.stats().holder is None


def test_a_copy_of_much_within_a_transaction_has_what_that_has_changed(s: shmrpc.sync.Store) -> None:
    s["much"] = list(range(MUCH))
    with s.transaction():
        s["much"][0] = "mine"
        s["much"].append("more")
        assert s["much"].copy() == ["mine", *range(1, MUCH), "more"]
        assert InThread(lambda: s["much"].copy()).join() == list(range(MUCH))
    assert s["much"].copy() == ["mine", *range(1, MUCH), "more"]


async def test_a_task_copies_much_within_its_own_transaction() -> None:
    async with shmrpc.store(OURS, max_memory=MEMORY) as s:
        s["much"] = [0] * MUCH
        async with s.transaction():
            s["much"][-1] = "mine"
            assert s["much"].copy()[-1] == "mine"
        assert s["much"].copy() == [0] * (MUCH - 1) + ["mine"]


def test_other_threads_of_the_process_go_on_while_much_is_copied(s: shmrpc.sync.Store) -> None:
    s["much"] = [0.5] * MUCH
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LONG)  # A thread gives way to another one when it lets go by itself, and else never.
    try:
        assert eventually(lambda: _goes_on_beside(s))
    finally:
        sys.setswitchinterval(interval)


def _goes_on_beside(s: shmrpc.sync.Store) -> bool:
    """Return True if a thread that was released just before a copy went on before the end of that."""
    let_go, gone_on = threading.Lock(), []
    let_go.acquire()

    def wait() -> None:
        with let_go:
            gone_on.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.01)  # The thread waits by now, as a rule.
    let_go.release()
    s["much"].copy()
    was_beside = bool(gone_on)
    thread.join()
    return was_beside


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_copies_delays_no_other(s: shmrpc.sync.Store) -> None:
    s["much"] = [0] * MUCH
    with MemberProcess() as adding:
        adding.begin(ADDING)
        for _ in range(6):
            with MemberProcess() as copying:
                copying.begin(f"{OPEN}\nwhile True: s['much'].copy()")
                assert eventually(lambda pid=copying.pid: s.stats().holder == pid)  # type: ignore[misc]
                copying.kill()
            with s.transaction(LONG):
                s["much"][0] += 1
        s["goes on"] = False
        assert adding.end() == s["added"]
    assert s["much"].copy() == [6] + [0] * (MUCH - 1)
    assert s.stats().holder is None


def test_a_process_that_is_stopped_while_it_copies_is_named_and_goes_on(s: shmrpc.sync.Store) -> None:
    s["much"] = [0] * MUCH
    with MemberProcess() as adding, MemberProcess() as copying:
        adding.begin(ADDING)
        copying.begin(f"{OPEN}\nwhile s['goes on']: result = len(s['much'].copy())\ns.close()")
        assert eventually(lambda: _stopped_within(s, copying))
        with pytest.raises(shmrpc.WaitTimeout, match=rf"process {copying.pid}.*stopped"), s.transaction(0.01):
            pytest.fail("two are within")
        assert s["goes on"] and len(s["much"]) == MUCH  # Readers go on.
        assert s["much"].copy() == [0] * MUCH
        copying.signal(signal.SIGCONT)
        with s.transaction(LONG):
            s["goes on"] = False
        assert adding.end() == s["added"] and copying.end() == MUCH


def _stopped_within(s: shmrpc.sync.Store, copying: MemberProcess) -> bool:
    """Stop a process; let it go on if it holds no lease then."""
    copying.signal(signal.SIGSTOP)
    if eventually(lambda: _is_stopped(copying.pid)) and s.stats().holder == copying.pid:
        return True
    copying.signal(signal.SIGCONT)
    return False


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
