"""A member of a shared object dies, at each native point and at any moment: no permit is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_all_objects
from shmrpc.host import cleanup
from tests.helpers import crash_points
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import LONG, scaled
from tests.helpers.server_process import eventually
from tests.reliability import figures
from tests.reliability.deaths.object_roles import ROLES
from tests.reliability.deaths.object_workers import PATIENCE

pytestmark = pytest.mark.crashpoints

KILLS = 10_000 if LONG else 150

#: Statements that a victim executes.
OPEN = (
    'gate = sync.Semaphore("gpu", 2); go = sync.Event("go"); lock = sync.Lock("config"); world = sync.store("world"); '
    'ready = sync.Signal("ready")'
)
USE = (
    "gate.acquire(); gate.acquire(); gate.release(); ready.signal(2); ready.wait(); go.set(); go.clear(); "
    "lock.acquire(); world['sum'] = [1, 2, 3]; change = world.transaction(); change.__enter__(); world['sum'].append(5)"
)
CLOSE = "gate.close(); ready.close(); go.close(); lock.close(); world.close()"
DIE = "import os; os.kill(os.getpid(), 9)"


@pytest.fixture(autouse=True)
def core() -> None:
    crash_points.require_core()


@pytest.fixture(autouse=True)
def swept(runtime: Path) -> Iterator[None]:
    """Remove the remains of members that were killed, and check that no name is left."""
    yield
    with host_to_oneself():
        cleanup.clean()
    assert not runtime.exists() or [name for name in os.listdir(runtime) if "@" in name] == []


def survive() -> None:
    """Open the objects of the dead, and use them all: no permit is lost, none is doubled."""
    gate, lock, go = shmrpc.sync.Semaphore("gpu", 2), shmrpc.sync.Lock("config"), shmrpc.sync.Event("go")
    ready, world = shmrpc.sync.Signal("ready"), shmrpc.sync.store("world", busy_timeout=PATIENCE)
    assert world.get("sum", [1, 2, 3]) == [1, 2, 3]
    world["sum"] = [1, 2, 3]
    for name in (gate, gate, lock):
        name.acquire(PATIENCE)
    with pytest.raises(shmrpc.WaitTimeout):
        gate.acquire(0)
    assert {each.pid: each.holds for each in shmrpc.members("gpu")} == {os.getpid(): 2}
    ready.signal()
    ready.wait(PATIENCE)
    go.set()
    go.wait(PATIENCE)
    for name in (gate, gate, lock):
        name.release()
    for each in (gate, lock, go, ready, world):
        each.close()


@pytest.fixture(scope="module")
def parent() -> Iterator[MemberProcess]:
    """Start the process that forks the victims: it has no objects open."""
    with MemberProcess(points=True) as member:
        member.do("names = globals()")
        yield member


def die_at(point: str, times: int) -> str:
    return f"crash_points.die_at_point({point!r}, {times}, -1)"


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("before", ["no member", "a dead member", "a living member"])
@pytest.mark.parametrize("point", sorted(crash_points.POINTS_OF_NAMES))
def test_a_death_at_a_point_loses_no_permit(
    parent: MemberProcess, runtime: Path, point: str, before: str, times: int
) -> None:
    parent.do(f"import os; os.environ['XDG_RUNTIME_DIR'] = {str(runtime.parent)!r}")
    living: list[Any] = []
    if before != "no member":
        living = [shmrpc.sync.Semaphore("gpu", 2), shmrpc.sync.Event("go"), shmrpc.sync.Lock("config")]
        living += [shmrpc.sync.store("world"), shmrpc.sync.Signal("ready")]
        assert parent.do(f"result = forked({f'{OPEN}; {USE}; {DIE}'!r}, names)") == -9
    if before == "a dead member":
        for name in living:
            name.close()
    ended = parent.do(f"result = forked({f'{OPEN}; {die_at(point, times)}; {USE}; {CLOSE}'!r}, names)")
    opening = parent.do(f"result = forked({f'{die_at(point, times)}; {OPEN}; {USE}; {CLOSE}'!r}, names)")
    assert {ended, opening} <= {0, -9}
    survive()
    for name in living:
        name.close()
    assert shmrpc.members("gpu") == []


@pytest.mark.parametrize(
    "point", ["PermitTaken", "PermitFreed", "Signalled", "EventSet", "SlotWoken", "LeaveBegun", "MemberLeft"]
)
def test_waiters_for_a_member_that_dies_go_on(point: str) -> None:
    with MemberProcess(points=True) as victim, MemberProcess() as waiting, MemberProcess() as looping:
        victim.do('gate = sync.Semaphore("gpu", 1); gate.acquire()')
        victim.do('go = sync.Event("go"); ready = sync.Signal("ready")')
        waiting.do('gate = sync.Semaphore("gpu", 1)')
        waiting.begin("gate.acquire(); gate.release()")
        looping.do('import asyncio; gate = shmrpc.Semaphore("gpu", 1)')
        looping.begin("asyncio.run(gate.acquire()); gate.release()")
        _until_waiting(2)
        victim.begin(f"{die_at(point, 1)}; gate.release(); gate.acquire(); ready.signal(); go.set(); gate.close()")
        assert victim.wait() == -9
        for each in (waiting, looping):
            assert each.ends(PATIENCE)
            each.end()
        assert {each.holds for each in shmrpc.members("gpu")} == {0}
        waiting.do("gate.close()")
        looping.do("gate.close()")


def _until_waiting(count: int) -> None:
    assert eventually(lambda: any(each.name == "gpu" and each.waiters == count for each in inspect_all_objects(print)))


def test_each_point_of_an_object_is_passed() -> None:
    with MemberProcess(points=True) as member:
        member.do("names = globals()")
        member.do(OPEN)
        assert member.do(f"result = forked({f'{OPEN}; gate.acquire(); {DIE}'!r}, dict(sync=sync))") == -9
        member.do("import threading; waiting = threading.Thread(target=ready.wait, args=(60,)); waiting.start()")
        assert eventually(lambda: any(each.name == "ready" and each.waiters for each in inspect_all_objects(print)))
        member.do(f"ready.signal(); waiting.join(); {USE}; {CLOSE}")
        passed = dict(member.do("result = crash_points.passed()"))
    assert [name for name in sorted(crash_points.POINTS_OF_NAMES) if not passed[name]] == []


@pytest.mark.parametrize("role", ROLES)
def test_a_death_at_a_line_of_python_loses_no_permit(
    parent: MemberProcess, runtime: Path, tmp_path: Path, role: str
) -> None:
    """The member dies beside a living member, and as the only one."""
    parent.do(f"import json, os; os.environ['XDG_RUNTIME_DIR'] = {str(runtime.parent)!r}")
    parent.do("from tests.reliability.deaths import object_roles; names = globals()")
    begin, play = "lines = crash_points.Lines(crash_points.FILES_OF_NAMES)", f"object_roles.ROLES[{role!r}]()"
    reached = f"open({str(tmp_path / 'reached')!r}, 'w').write(json.dumps(list(lines.reached)))"
    assert parent.do(f"result = forked({f'{begin}; lines.record(); {play}; {reached}'!r}, names)") == 0
    lines = [tuple(line) for line in json.loads((tmp_path / "reached").read_text())]
    assert {file for file, _ in lines} >= {"objects/handle.py", "objects/lock_files.py", "discovery/attach.py"}
    most = scaled(10, len(lines))
    chosen = [lines[number * len(lines) // most] for number in range(most)]
    seconds, killed = [], 0
    for number, line in enumerate(chosen):
        living = [shmrpc.sync.Semaphore("gpu", 2), shmrpc.sync.Event("go")] if number % 2 else []
        ended = parent.do(f"result = forked({f'{begin}; lines.die_at({line!r}, -1); {play}'!r}, names)")
        assert ended in (0, -9), f"at {line}"  # A line that depends on a timer may not be reached again.
        killed += ended == -9
        began = time.monotonic()
        survive()
        seconds.append(time.monotonic() - began)
        for name in living:
            name.close()
        assert shmrpc.members("gpu") == []
    assert killed >= most // 2
    figures.note(f"a member that dies at a line, {role}", lines=most, killed=killed, others=figures.times(seconds))


def test_kills_at_any_moment_neither_lose_nor_double_a_permit() -> None:
    seed = random.randrange(1 << 32)
    with MemberProcess() as parent:
        parent.do("from tests.reliability.deaths import object_workers")
        assert parent.do(f"result = object_workers.kill_loop({KILLS}, {seed})")["killed"] == KILLS
    survive()
    frame = shmrpc.sync.memory("frame", 64)
    frame.lock.acquire(PATIENCE)
    frame.close()
