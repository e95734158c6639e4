"""How the workers of a pool begin and end: the CPUs that there are, and a master that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shmrpc.pools.cpus import usable
from tests.helpers.processes import gone, parent_of
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import stands_still

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
            template = parent_of(workers[0])
        finally:
            master.send_signal(signal.SIGKILL)
    assert template != master.pid
    end = time.monotonic() + 30
    while not all(map(gone, [*workers, template])):
        assert time.monotonic() < end, "a worker or the template has outlived the master"
        time.sleep(0.01)


@pytest.mark.parametrize("also", ["worker", "template"])
def test_a_stopped_worker_or_template_goes_with_its_master_too(tmp_path: Path, also: str) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with subprocess.Popen([sys.executable, "-c", MASTER.format(task="spin"), *map(str, paths)]) as master:
        try:
            end = time.monotonic() + 60
            while not all(path.exists() and path.read_text() for path in paths):
                assert time.monotonic() < end
                time.sleep(0.01)
            workers = [int(path.read_text()) for path in paths]
            template = parent_of(workers[0])
            for pid in [workers[0], *([template] if also == "template" else [])]:
                os.kill(pid, signal.SIGSTOP)
                assert eventually(lambda: stands_still(pid), 60)  # noqa: B023
        finally:
            master.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while not all(map(gone, [*workers, template])):
        assert time.monotonic() < end, "a stopped process has outlived the master"
        time.sleep(0.01)


def group(root: Path, name: str, files: dict[str, str]) -> None:
    """A control group, as a directory."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (path / file).write_text(text)


def test_a_cgroup_may_allow_fewer_cpus(tmp_path: Path) -> None:
    affine = len(os.sched_getaffinity(0))
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert usable(tmp_path / "none", own) == affine
    assert usable(tmp_path, tmp_path / "none") == affine
    group(tmp_path, "outer/inner", {"cpu.max": "max 100000"})
    group(tmp_path, "outer", {"cpu.max": "50000 100000"})
    assert usable(tmp_path, own) == 1
    group(tmp_path, "outer", {"cpu.max": "9000000 100000"})
    assert usable(tmp_path, own) == affine
    group(tmp_path, "outer", {"cpu.max": "nonsense"})
    assert usable(tmp_path, own) == affine


def test_so_may_a_cgroup_of_version_1(tmp_path: Path) -> None:
    affine = len(os.sched_getaffinity(0))
    own = tmp_path / "own"
    own.write_text("5:memory:/elsewhere\n4:cpu,cpuacct:/group\n")
    group(tmp_path, "cpu/group", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert usable(tmp_path, own) == affine
    group(tmp_path, "cpu/group", {"cpu.cfs_quota_us": "40000", "cpu.cfs_period_us": "100000"})
    assert usable(tmp_path, own) == 1
