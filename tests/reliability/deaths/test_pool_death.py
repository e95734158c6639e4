"""Workers and masters of pools are killed at any moment: every task has one end, and nothing is left.

Each task records its begin and its end in a file of its worker; the test compares the master's results with these
ledgers. SHMRPC_TORTURE=1 kills a thousand times.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shmrpc
from tests.helpers.pool_tasks import entered
from tests.helpers.processes import gone
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually

pytestmark = pytest.mark.slow

LOOP = "either"
WORKERS = 3


def ledger(directory: Path) -> tuple[collections.Counter[int], collections.Counter[int]]:
    """Return how often each task has begun, and how often it has ended."""
    begun: collections.Counter[int] = collections.Counter()
    ended: collections.Counter[int] = collections.Counter()
    for path in directory.iterdir():
        for line in path.read_text().split():
            (begun if line[0] == "b" else ended)[int(line[1:])] += 1
    return begun, ended


async def kill_at_times(pool: shmrpc.Pool, kills: int, generator: random.Random) -> None:
    """Kill that many workers, one after the other."""
    done = 0
    while done < kills:
        await asyncio.sleep(generator.uniform(0, 0.03))
        if workers := pool.stats().workers:
            try:
                os.kill(generator.choice(workers).pid, signal.SIGKILL)
            except ProcessLookupError:  # A worker that was killed before, which the pool has not noticed.
                continue
            done += 1
            # No task runs as long as all workers die before they are ready.
            while pool.stats().replaced < done - 1:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["map", "submit", "run"])
async def test_each_task_has_one_end_when_workers_are_killed(tmp_path: Path, kind: str) -> None:
    kills, generator = scaled(8, 334), random.Random(kind)
    count = 0
    outcomes: dict[int, object] = {}
    async with shmrpc.pool(WORKERS, grace=0.2) as pool:
        killing = asyncio.create_task(kill_at_times(pool, kills, generator))

        async def run(number: int) -> None:
            try:
                outcomes[number] = await pool.run(entered, str(tmp_path), number)
            except shmrpc.WorkerDied as died:
                outcomes[number] = died

        while not killing.done():
            numbers = range(count, count := count + 500)
            if kind == "map":
                # An exception ends a map: the tasks without a result may have been executed or not.
                try:
                    async for number in pool.map(entered, [str(tmp_path)] * len(numbers), numbers, ordered=False):
                        assert number not in outcomes, "a task has two results"
                        outcomes[number] = number
                except shmrpc.WorkerDied:
                    pass
            elif kind == "submit":
                futures = {number: pool.submit(entered, str(tmp_path), number) for number in numbers}
                results = await asyncio.gather(*futures.values(), return_exceptions=True)
                outcomes.update(zip(futures, results, strict=True))
            else:
                for first in numbers[::50]:
                    await asyncio.gather(*(run(number) for number in range(first, first + 50)))
        await killing
        assert await pool.run(entered, str(tmp_path), count) == count
    begun, ended = ledger(tmp_path)
    assert max(begun.values()) == 1, "a task was run twice"
    completed = {number for number, outcome in outcomes.items() if outcome == number}
    assert completed <= ended.keys(), "a result came of a task that has not ended"
    died = outcomes.keys() - completed
    assert all(isinstance(outcomes[number], shmrpc.WorkerDied) for number in died)
    assert len(died) <= kills, "a death has cost more than one task"
    if kind != "map":
        assert outcomes.keys() == set(range(count))
        assert completed | died == set(range(count))


MASTER = """
import asyncio, itertools, sys
import numpy as np
import shmrpc
from tests.helpers.pool_tasks import entered

directory, kind = sys.argv[1:]

async def work(pool):
    for first in itertools.count(0, 200):
        numbers = range(first, first + 200)
        if kind == "map":
            async for number in pool.map(entered, [directory] * len(numbers), numbers, ordered=False):
                yield number
        elif kind == "submit":
            for future in [pool.submit(entered, directory, number) for number in numbers]:
                yield await future
        elif kind == "run":
            for number in await asyncio.gather(*[pool.run(entered, directory, number) for number in numbers]):
                yield number
        else:
            pairs = await pool.scatter([np.full(500, number) for number in numbers])
            async for number in pool.map(entered_by, [directory] * len(pairs), pairs):
                yield number

def entered_by(directory, numbers):
    return entered(directory, int(numbers[0]))

async def main():
    async with shmrpc.pool(WORKERS) as pool:
        while len(pool.stats().workers) < WORKERS:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        with open(f"{directory}/results", "w", buffering=1) as results:
            async for number in work(pool):
                results.write(f"{number:015}\\n")

asyncio.run(main())
""".replace("WORKERS", str(WORKERS))


def left_of_pools() -> list[str]:
    """Return names that connections of pools have left in shared memory."""
    return [name for name in os.listdir("/dev/shm") if name.startswith("shmrpc.pool.")]


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and their children."""
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The process may end meanwhile.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [*children, *(each for child in children for each in descendants(child))]


def has_results(directory: Path) -> bool:
    """Return True if a master has received a result."""
    results = directory / "results"
    return results.exists() and results.stat().st_size > 0


@pytest.mark.parametrize("kind", ["map", "submit", "run", "scatter"])
def test_a_killed_master_leaves_no_process_and_runs_no_task_twice(tmp_path: Path, kind: str) -> None:
    generator, count_of_results = random.Random(kind), 0
    for attempt in range(scaled(2, 250)):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        command = [sys.executable, "-c", MASTER, str(directory), kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
            assert master.stdout is not None
            assert master.stdout.readline() == "ready\n"
            assert eventually(functools.partial(has_results, directory))
            time.sleep(generator.uniform(0, 0.2))
            processes = descendants(master.pid)
            master.kill()
        assert len(processes) == WORKERS + 1, "there are other processes than the workers and their fork server"
        end = time.monotonic() + 30
        while not all(map(gone, processes)):
            assert time.monotonic() < end, "a worker or the fork server has outlived its master"
            time.sleep(0.005)
        path = directory / "results"
        results = [int(line) for line in path.read_text().split()] if path.exists() else []
        path.unlink(missing_ok=True)
        begun, ended = ledger(directory)
        assert max(begun.values(), default=1) == 1, "a task was run twice"
        assert len(set(results)) == len(results) and set(results) <= ended.keys(), (
            "a result came of a task that has not ended"
        )
        assert len(begun.keys() - ended.keys()) <= WORKERS
        count_of_results += len(results)
    assert count_of_results
    # Other tests have such names for a moment.
    assert eventually(lambda: not left_of_pools()), "a connection has left its name"
