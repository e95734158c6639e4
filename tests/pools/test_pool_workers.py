"""The start and end of the workers of a pool: the number of CPUs, and a pool whose process dies."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import shmrpc
from shmrpc.pools import handler_processes
from shmrpc.pools.processes import spawned_process
from shmrpc.pools.processes.cpus import usable_cpus
from shmrpc.pools.processes.spawner import Spawner
from shmrpc.pools.scheduling import remote_worker
from shmrpc.pools.transfer import log_forwarding
from tests.helpers import pool_tasks as tasks
from tests.helpers.processes import gone, parent_of
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import is_stopped

MASTER = """
import asyncio, sys
import shmrpc
from tests.helpers import pool_tasks

async def main():
    async with shmrpc.pool(2) as pool:
        await asyncio.gather(pool.run(pool_tasks.{task}, sys.argv[1]), pool.run(pool_tasks.{task}, sys.argv[2]))

asyncio.run(main())
"""


@pytest.mark.parametrize("task", ["spin", "stubborn", "hold"])
def test_workers_go_with_their_master_whatever_they_do(tmp_path: Path, task: str) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with subprocess.Popen([sys.executable, "-c", MASTER.format(task=task), *map(str, paths)]) as master:
        try:
            end = time.monotonic() + 60
            while not all(path.exists() and path.read_text() for path in paths):
                assert time.monotonic() < end
                assert master.poll() is None
                time.sleep(0.01)
            workers = [int(path.read_text()) for path in paths]
            fork_server = parent_of(workers[0])
        finally:
            master.send_signal(signal.SIGKILL)
    assert fork_server != master.pid
    end = time.monotonic() + 30
    while not all(map(gone, [*workers, fork_server])):
        assert time.monotonic() < end, "a worker or the fork server has outlived the master"
        time.sleep(0.01)


def begin_with_thread(folder: Path) -> None:
    """Has Python begin with a thread where this folder is in its path: workers are not forked from such a process."""
    (folder / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n"
    )


BECOMING = """
import sys, os
import shmrpc
from tests.helpers import pool_tasks

if __name__ == "__main__":
    pool = shmrpc.sync.pool(1)
    pool.submit(pool_tasks.spin, sys.argv[1])
    sys.stdin.read(1)
    os.execv("/bin/sleep", ["sleep", "100"])
"""


@pytest.mark.parametrize("forked", [True, False])
def test_a_worker_goes_when_its_master_becomes_another_program(tmp_path: Path, forked: bool) -> None:
    if not forked:
        begin_with_thread(tmp_path)
    program, path = tmp_path / "program.py", tmp_path / "one"
    program.write_text(BECOMING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, str(program), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as master:
        try:
            assert eventually(lambda: path.exists() and bool(path.read_text()), 60)
            worker = int(path.read_text())
            assert master.stdin is not None
            master.stdin.close()
            assert eventually(lambda: gone(worker), 60), "a worker has outlived the program that had its pool"
            assert master.poll() is None
        finally:
            master.kill()


IGNORING = """
import os, signal, subprocess
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
import shmrpc

def handler():
    return signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with shmrpc.sync.pool(1) as pool:
        print(pool.submit(handler).result(60))
        print(pool.submit(die).exception(60))
        print(pool.submit(abs, -1).result(60))
"""


@pytest.mark.parametrize(
    ("forked", "told"),
    [(True, "was killed by SIGKILL"), (False, "has ended with an unknown status: this process ignores SIGCHLD")],
)
def test_a_program_may_ignore_the_ends_of_its_children(tmp_path: Path, forked: bool, told: str) -> None:
    if not forked:
        begin_with_thread(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(IGNORING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    first, died, last = ran.stdout.splitlines()
    assert (first, last) == ("True", "1")
    assert told in died
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("ends", ["shut down", "retired", "replaced"])
def test_a_worker_ends_once_the_threads_of_its_tasks_have(tmp_path: Path, ends: str) -> None:
    go = tmp_path / "go"
    with shmrpc.sync.pool(1, max_tasks_per_child=1 if ends == "replaced" else None, grace=0.1) as pool:
        pool.submit(tasks.leave_thread, str(go)).result(60)
        if ends == "retired":
            pool.resize(2)
            pool.resize(1)
        threading.Timer(0.5, go.touch).start()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finalizer", "go", "thread"]


def test_a_worker_whose_threads_go_on_is_replaced_meanwhile(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with shmrpc.sync.pool(1, max_tasks_per_child=1, grace=0.1) as pool:
        pool.submit(tasks.leave_thread, str(go)).result(60)
        assert [pool.submit(abs, -1).result(60) for _ in range(3)] == [1, 1, 1]
        assert not (tmp_path / "thread").exists()
        go.touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finalizer", "go", "thread"]


async def test_a_pool_that_is_closed_gives_threads_no_more_than_its_grace(tmp_path: Path) -> None:
    async with shmrpc.pool(1, grace=0.1) as pool:
        await pool.run(tasks.leave_thread, str(tmp_path / "go"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("grace", [math.inf, 1e10])
async def test_a_pool_whose_grace_has_no_end_closes_its_descriptors(grace: float) -> None:
    async with shmrpc.pool(1, grace=grace) as pool:
        (worker,) = pool._engine.workers.workers
    assert (worker.process.pidfd, worker.process.control.fileno()) == (-1, -1)


class _SilentPoll:
    """A poll object whose descriptor becomes readable in the third wait."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []

    def register(self, *_: object) -> None:
        pass

    def poll(self, milliseconds: float | None) -> list[object]:
        self.waits.append(milliseconds)
        return [object()] if len(self.waits) == 3 else []


@pytest.mark.parametrize("timeout", [math.inf, 1e10])
def test_a_wait_that_is_longer_than_the_system_can_count_goes_on(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = _SilentPoll()
    monkeypatch.setattr(spawned_process, "new_poll", lambda: poll)
    assert spawned_process.wait_readable(0, timeout)
    assert poll.waits == [2**31 - 1] * 3


@pytest.mark.parametrize("failing", ["share_progress", "log_receiver"])
async def test_a_process_for_which_the_pool_has_no_room_ends(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned = list[spawned_process.SpawnedProcess]()
    sockets = list[socket.socket]()
    spawn, socket_pair = Spawner.spawn, log_forwarding.socket_pair

    def remember_spawned(self: Spawner, number: int) -> spawned_process.SpawnedProcess:
        spawned.append(spawn(self, number))
        return spawned[-1]

    def remember_sockets() -> tuple[socket.socket, socket.socket]:
        sockets.extend(pair := socket_pair())
        return pair

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "no room")

    monkeypatch.setattr(Spawner, "spawn", remember_spawned)
    monkeypatch.setattr(log_forwarding, "socket_pair", remember_sockets)
    if failing == "share_progress":
        monkeypatch.setattr(remote_worker, "_share_progress", fail)
    else:
        monkeypatch.setattr(log_forwarding, "LogReceiver", fail)
    with pytest.raises(shmrpc.PoolBroken, match="cannot start a worker"):
        async with shmrpc.pool(1):
            pass
    (process,) = spawned
    assert gone(process.pid)
    assert (process.pidfd, process.control.fileno()) == (-1, -1)
    assert {each.fileno() for each in sockets} == {-1}


async def test_the_tasks_of_workers_that_have_ended_count_as_completed() -> None:
    async with shmrpc.pool(2) as pool:
        assert [each async for each in pool.map(tasks.add, range(10))] == list(range(1, 11))
        with pytest.raises(ValueError, match="five"):
            await pool.run(tasks.fail_at, 5)
        for worker in pool.stats().workers:
            os.kill(worker.pid, signal.SIGKILL)
        while pool.stats().replaced < 2:
            await asyncio.sleep(0.001)
        assert pool.stats().completed == 11
        with pytest.raises(shmrpc.WorkerDied):
            await pool.run(tasks.die)
        assert pool.stats().completed == 11


async def test_a_broken_pool_of_handlers_is_closed_after_its_last_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_processes, "pool", lambda: shmrpc.pool(2))
    processes, go = handler_processes.HandlerProcesses(), tmp_path / "go"
    calls = [asyncio.create_task(processes.run(tasks.wait_for, [str(go)], {})) for _ in range(2)]
    await asyncio.sleep(0)
    broken = await processes._open()
    while not all(worker.busy for worker in broken.stats().workers):
        await asyncio.sleep(0.001)
    pids = [worker.pid for worker in broken.stats().workers]
    pids.append(parent_of(pids[0]))
    broken._engine.lifecycle.fail(shmrpc.PoolBroken("the pool is broken"))
    with pytest.raises(RuntimeError, match="the pool is broken"):
        await processes.run(tasks.pid, [], {})
    assert await processes.run(tasks.pid, [], {}) not in pids
    opened = await processes._open()
    os.kill(pids[0], signal.SIGKILL)
    (failed,), (running,) = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert "the pool is broken" in str(failed.exception())
    assert await processes._open() is opened
    go.touch()
    assert await running == str(go)
    await processes.close()
    assert all(map(gone, pids))


async def test_a_handler_that_raises_pool_broken_leaves_its_pool_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_processes, "pool", lambda: shmrpc.pool(1))
    processes = handler_processes.HandlerProcesses()

    def fail() -> None:
        raise shmrpc.PoolBroken("of another pool")

    try:
        opened = await processes._open()
        with pytest.raises(RuntimeError, match="of another pool"):
            await processes.run(fail, [], {})
        assert await processes.run(tasks.add, [1], {}) == 2
        assert await processes._open() is opened
    finally:
        await processes.close()


@pytest.mark.parametrize("also", ["worker", "fork server"])
def test_a_stopped_worker_or_fork_server_goes_with_its_master_too(tmp_path: Path, also: str) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with subprocess.Popen([sys.executable, "-c", MASTER.format(task="spin"), *map(str, paths)]) as master:
        try:
            end = time.monotonic() + 60
            while not all(path.exists() and path.read_text() for path in paths):
                assert time.monotonic() < end
                time.sleep(0.01)
            workers = [int(path.read_text()) for path in paths]
            fork_server = parent_of(workers[0])
            for pid in [workers[0], *([fork_server] if also == "fork server" else [])]:
                os.kill(pid, signal.SIGSTOP)
                assert eventually(lambda: is_stopped(pid), 60)  # noqa: B023
        finally:
            master.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while not all(map(gone, [*workers, fork_server])):
        assert time.monotonic() < end, "a stopped process has outlived the master"
        time.sleep(0.01)


def group(root: Path, name: str, files: dict[str, str]) -> None:
    """Create a cgroup, and yield its directory."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (path / file).write_text(text)


def test_a_cgroup_may_allow_fewer_cpus(tmp_path: Path) -> None:
    affine = len(os.sched_getaffinity(0))
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert usable_cpus(tmp_path / "none", own) == affine
    assert usable_cpus(tmp_path, tmp_path / "none") == affine
    group(tmp_path, "outer/inner", {"cpu.max": "max 100000"})
    group(tmp_path, "outer", {"cpu.max": "50000 100000"})
    assert usable_cpus(tmp_path, own) == 1
    group(tmp_path, "outer", {"cpu.max": "9000000 100000"})
    assert usable_cpus(tmp_path, own) == affine
    group(tmp_path, "outer", {"cpu.max": "nonsense"})
    assert usable_cpus(tmp_path, own) == affine


def test_so_may_a_cgroup_of_version_1(tmp_path: Path) -> None:
    affine = len(os.sched_getaffinity(0))
    own = tmp_path / "own"
    own.write_text("5:memory:/elsewhere\n4:cpu,cpuacct:/group\n")
    group(tmp_path, "cpu/group", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert usable_cpus(tmp_path, own) == affine
    group(tmp_path, "cpu/group", {"cpu.cfs_quota_us": "40000", "cpu.cfs_period_us": "100000"})
    assert usable_cpus(tmp_path, own) == 1
