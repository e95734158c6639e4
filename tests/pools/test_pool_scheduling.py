"""Which worker gets what, and what is taken back from one that is stopped, busy, or about to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shmrpc
from tests.helpers import pool_tasks as tasks
from tests.helpers.processes import gone
from tests.helpers.server_process import eventually_in_loop
from tests.helpers.stopped_processes import is_stopped

LOOP = "either"
PATIENCE = 60


@pytest.fixture
async def pool() -> AsyncIterator[shmrpc.Pool]:
    async with shmrpc.pool(2, grace=0.5) as made:
        while len(made.stats().workers) < 2:
            await asyncio.sleep(0.01)
        yield made


async def noted(path: Path) -> int:
    """Wait for the pid that a task has written to a file, and return it."""
    while not (text := text_of(path)):
        await asyncio.sleep(0.01)
    return int(text)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_coroutines_avoid_a_worker_that_is_about_to_be_killed(pool: shmrpc.Pool, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    begun = asyncio.create_task(pool.run(tasks.wait_for_ever, str(tmp_path / "first")))
    deaf = asyncio.create_task(pool.run(tasks.stubborn, str(path)))
    doomed = await noted(path)
    async with asyncio.timeout(PATIENCE):
        for _ in range(10):
            deaf.cancel()
            assert await asyncio.gather(*[pool.run(tasks.later, each) for each in range(50)]) == list(range(50))
            await asyncio.sleep(0.1)
        while not gone(doomed):
            await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await deaf
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("end", [tasks.stubborn, tasks.stop])
async def test_coroutines_that_had_not_begun_go_to_others(
    end: Callable[[str], None], pool: shmrpc.Pool, tmp_path: Path
) -> None:
    """All are given to a pool whose workers are busy; then one of these is killed, and the other one still busy."""
    paths = [tmp_path / "one", tmp_path / "two"]
    ending = asyncio.create_task(pool.run(end, str(paths[0])))
    busy = asyncio.create_task(pool.run(tasks.spin, str(paths[1])))
    other = await noted(paths[1])
    (doomed,) = {worker.pid for worker in pool.stats().workers} - {other}
    assert await eventually_in_loop(lambda: bool(text_of(paths[0])) or is_stopped(doomed)), "it has begun"
    coroutines = asyncio.gather(*[pool.run(tasks.later, each) for each in range(50)])
    await asyncio.sleep(0.05)
    ending.cancel()
    async with asyncio.timeout(PATIENCE):
        while not pool.stats().replaced:
            await asyncio.sleep(0.01)
        assert await coroutines == list(range(50))
    assert not busy.done()
    busy.cancel()


async def test_the_error_of_a_coroutine_names_the_reason_why_its_worker_was_killed(tmp_path: Path) -> None:
    async with shmrpc.pool(1, grace=0.2) as pool:
        begun = asyncio.create_task(pool.run(tasks.wait_for_ever, str(tmp_path / "notes")))
        while not (tmp_path / "notes").exists():
            await asyncio.sleep(0.01)
        deaf = asyncio.create_task(pool.run(tasks.stubborn, str(tmp_path / "pid")))
        await noted(tmp_path / "pid")
        deaf.cancel()
        with pytest.raises(shmrpc.WorkerDied, match="killed by its pool, because a cancelled task had not ended"):
            await begun


async def test_coroutines_go_to_the_worker_that_has_nothing_to_do(pool: shmrpc.Pool, tmp_path: Path) -> None:
    busy = asyncio.create_task(pool.run(tasks.spin, str(tmp_path / "pid")))
    await noted(tmp_path / "pid")
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*[pool.run(tasks.later, each) for each in range(20)]) == list(range(20))
    assert not busy.done()
    busy.cancel()


async def test_a_coroutine_that_waits_at_a_busy_worker_is_taken_back(pool: shmrpc.Pool, tmp_path: Path) -> None:
    busy = [asyncio.create_task(pool.run(tasks.spin, str(tmp_path / name))) for name in ("one", "two")]
    await noted(tmp_path / "one")
    await noted(tmp_path / "two")
    coroutines = asyncio.gather(*[pool.run(tasks.later, each) for each in range(20)])
    await asyncio.sleep(0.05)
    busy[0].cancel()
    async with asyncio.timeout(PATIENCE):
        assert await coroutines == list(range(20))
    assert not busy[1].done()
    busy[1].cancel()


async def test_one_that_waits_and_is_cancelled_is_never_begun(pool: shmrpc.Pool, tmp_path: Path) -> None:
    busy = [asyncio.create_task(pool.run(tasks.spin, str(tmp_path / name))) for name in ("one", "two")]
    await noted(tmp_path / "one")
    await noted(tmp_path / "two")
    waits = asyncio.create_task(pool.run(tasks.wait_for_ever, str(tmp_path / "notes")))
    await asyncio.sleep(0.05)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    for task in busy:
        task.cancel()
    assert await asyncio.gather(*[pool.run(tasks.later, each) for each in range(20)]) == list(range(20))
    assert not (tmp_path / "notes").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "submit", "map", "later"])
async def test_a_task_that_a_stopped_worker_has_not_begun_goes_to_another(pool: shmrpc.Pool, how: str) -> None:
    for worker in pool.stats().workers:
        with stopped(worker.pid):
            async with asyncio.timeout(PATIENCE):
                for value in range(3):  # With one of two workers stopped.
                    if how == "run":
                        assert await pool.run(tasks.same, value) == value
                    elif how == "submit":
                        assert await pool.submit(tasks.same, value) == value
                    elif how == "later":
                        assert await pool.run(tasks.later, value) == value
                    else:
                        assert [each async for each in pool.map(tasks.same, range(value))] == list(range(value))
        async with asyncio.timeout(PATIENCE):
            while len({pid async for pid in pool.map(tasks.pid_after, [0.05, 0.05])}) < 2:
                await asyncio.sleep(0.01)
    assert pool.stats().replaced == 0


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
async def test_a_child_that_a_task_has_forked_ends_with_it(pool: shmrpc.Pool, how: str, tmp_path: Path) -> None:
    path = tmp_path / "child"
    status = {"return": 0, "raise": 1, "exit": 3}[how]
    async with asyncio.timeout(PATIENCE):
        assert await pool.run(tasks.fork, str(path), how) == status
        assert [each async for each in pool.map(tasks.fork, [str(path)] * 3, [how] * 3)] == [status] * 3
    assert all(gone(int(line)) for line in path.read_text().split())
    assert await pool.run(tasks.add, 1) == 2


@pytest.mark.parametrize("how", ["return", "wait"])
async def test_so_does_one_of_a_coroutine(pool: shmrpc.Pool, how: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await pool.run(tasks.fork_in_loop, str(tmp_path / "child"), how) == 0
    assert await pool.run(tasks.later, 1) == 1
