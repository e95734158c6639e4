"""A member is stopped at a native point: others end at their deadlines, and all go on after SIGCONT."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import shmrpc
from shmrpc.discovery.members import inspect_all_objects
from tests.helpers import crash_points
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import is_stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures

pytestmark = pytest.mark.crashpoints


@pytest.fixture(autouse=True)
def core() -> None:
    crash_points.require_core()


def test_a_member_stopped_at_a_point_is_named_by_those_who_wait_for_it(runtime: Path) -> None:
    # These roles have no sleepers, so no slot is woken.
    points = sorted(crash_points.POINTS_OF_NAMES - {"SlotWoken"})
    # No process holds the memory of the dead members: another test's clean-up would remove it.
    with bounded(), host_to_oneself(), MemberProcess(points=True) as parent:
        parent.do("from tests.reliability.stopped import stopped_members")
        passed, errors = parent.do(f"result = stopped_members.stop_at_each({points!r}, {str(runtime.parent)!r})")
    assert passed == points
    for point, before, pid, text in errors:
        assert f"process {pid}" in text, f"stopped at {point}, before: {before}: {text}"
    held = [text for *_, text in errors if "and is stopped; to continue it: kill -CONT" in text]
    at_entry = [text for *_, text in errors if "which has not finished within 5 s; is it stopped?" in text]
    assert held
    assert at_entry
    figures.note("members stopped at points", points=len(passed), held=len(held), at_entry=len(at_entry))


@pytest.mark.parametrize("wait", ["gate.acquire(1)", "import asyncio; asyncio.run(in_loop.acquire(1))"])
def test_a_waiter_that_was_not_woken_finds_a_free_permit_by_its_deadline(wait: str) -> None:
    """The member that released the permit is stopped before it wakes a waiter."""
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
def test_a_member_stopped_before_it_subscribes_is_no_subscriber(point: str) -> None:
    """Messages published meanwhile are not for this member, so a wait for subscribers goes on."""
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
