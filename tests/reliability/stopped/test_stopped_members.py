"""A member of a name stands still at a native point: others end at their deadlines, and all goes on after SIGCONT."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import shmrpc
from shmrpc.discovery.members import inspect_all_objects
from tests.helpers import crash_points
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import is_stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures

pytestmark = pytest.mark.crashpoints


@pytest.fixture(autouse=True)
def core() -> None:
    crash_points.require_core()


def test_a_member_that_is_stopped_at_a_point_is_named_by_those_who_wait_for_it(runtime: Path) -> None:
    # Nobody sleeps in these roles, so nobody is woken.
    points = sorted(crash_points.POINTS_OF_NAMES - {"SlotWoken"})
    with bounded(), MemberProcess(points=True) as parent:
        parent.do("from tests.reliability.stopped import stopped_members")
        passed, told = parent.do(f"result = stopped_members.stop_at_each({points!r}, {str(runtime.parent)!r})")
    assert passed == points
    for point, before, pid, text in told:
        assert f"process {pid}" in text, f"stopped at {point}, before: {before}: {text}"
    held = [text for *_, text in told if "and is stopped; to continue it: kill -CONT" in text]
    at_the_door = [text for *_, text in told if "which has not finished within 5 s; is it stopped?" in text]
    assert held
    assert at_the_door
    figures.note("members stopped at points", points=len(passed), held=len(held), at_the_door=len(at_the_door))


@pytest.mark.parametrize("wait", ["gate.acquire(1)", "import asyncio; asyncio.run(in_loop.acquire(1))"])
def test_who_was_not_told_of_a_permit_finds_it_by_its_deadline(wait: str) -> None:
    """Whoever has given it back is stopped before it wakes anybody."""
    with MemberProcess(points=True) as victim, MemberProcess() as waiting:
        victim.do('gate = sync.Semaphore("gpu"); gate.acquire()')
        waiting.do('gate, in_loop = sync.Semaphore("gpu"), shmrpc.Semaphore("gpu")')
        victim.do('crash_points.stop_at_point("PermitFreed", 1)')
        waiting.begin(wait)
        assert eventually(lambda: any(each.name == "gpu" and each.waiters == 1 for each in inspect_all_objects(print)))
        victim.begin("gate.release()")
        assert eventually(lambda: is_stopped(victim.pid))
        waiting.end()
        assert {each.pid: each.holds for each in shmrpc.members("gpu")} == {victim.pid: 0, waiting.pid: 1}
        victim.signal(signal.SIGCONT)
        victim.end()
        waiting.do("gate.close(); in_loop.close()")
        victim.do("gate.close()")


@pytest.mark.parametrize("point", ["SeatTaken", "SeatJoining"])
def test_one_that_is_about_to_subscribe_is_no_subscriber_yet(point: str) -> None:
    """What is published while it stands still is not for it, so who waits for subscribers waits on."""
    with bounded(), MemberProcess(points=True) as joining, shmrpc.sync.topic("ticks") as topic:
        joining.do(f"crash_points.stop_at_point({point!r}, 1)")
        joining.begin('s = sync.subscribe("ticks"); s.__enter__(); result = s.get(timeout=20).value; s.close()')
        assert eventually(lambda: is_stopped(joining.pid))
        assert topic.subscribers() == []
        topic.publish(1)
        joining.signal(signal.SIGCONT)
        assert eventually(lambda: len(topic.subscribers()) == 1)
        topic.publish(2)
        assert joining.end() == 2
