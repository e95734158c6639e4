"""Values that the workers of a pool share: one read-only copy for all."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import shmrpc
from tests.helpers import pool_tasks as tasks

LOOP = "either"
ROWS = 4


@pytest.fixture
async def pool() -> AsyncIterator[shmrpc.Pool]:
    gc.collect()  # Frees the values of earlier tests.
    async with shmrpc.pool(2) as made:
        while len(made.stats().workers) < 2:
            await asyncio.sleep(0.01)
        yield made


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def files_of_workers(pool: shmrpc.Pool) -> list[set[int]]:
    """Return the files that each worker has mapped."""
    found: dict[int, set[int]] = {}
    while len(found) < 2:
        tasks_of_both = [pool.submit(tasks.pid_and, tasks.shared_files) for _ in range(4)]
        found |= dict(await asyncio.gather(*tasks_of_both))
    return list(found.values())


async def test_an_array_has_one_read_only_copy(pool: shmrpc.Pool) -> None:
    array = np.arange(300_000.0)
    big = await pool.broadcast(array)
    assert np.array_equal(big, array) and not big.flags.writeable
    results = [
        await pool.run(tasks.seen, big),
        await pool.run(tasks.seen, value=big),
        await pool.run(tasks.seen_later, big),
        await pool.submit(tasks.seen, big, 1),
        *[each async for each in pool.map(tasks.seen, [big] * 20)],
        *[each async for each in pool.map(tasks.seen, [big] * 20, range(20))],
    ]
    assert not any(writable for _, _, writable in results)
    objects = {(pid, identity) for pid, identity, _ in results}
    assert len(objects) == len({pid for pid, *_ in results})  # All tasks of a worker get the same object.
    assert await pool.run(tasks.total, big) == array.sum()
    (ours,) = tasks.shared_files()
    assert all(files <= {ours} for files in await files_of_workers(pool))


async def test_memory_is_freed_with_the_last_reference(pool: shmrpc.Pool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    big = await pool.broadcast(np.zeros(100_000))
    await asyncio.gather(*[pool.submit(tasks.seen, big) for _ in range(50)])
    assert tasks.shared_files()
    del big
    gc.collect()
    await wait_until(lambda: not tasks.shared_files() and len(os.listdir("/proc/self/fd")) <= before)
    async with asyncio.timeout(30):
        while any(await files_of_workers(pool)):
            pass


async def test_a_task_that_waits_keeps_what_it_is_given(pool: shmrpc.Pool) -> None:
    held = [pool.submit(tasks.slow, 0.2) for _ in range(2)]
    futures = [pool.submit(tasks.total, await pool.broadcast(np.ones(100_000))) for _ in range(4)]
    gc.collect()
    assert await asyncio.gather(*futures) == [100_000.0] * 4
    await asyncio.gather(*held)


async def test_a_value_that_is_no_array_is_made_once_in_each_worker(pool: shmrpc.Pool) -> None:
    words = await pool.broadcast([f"word {number}" for number in range(1000)])
    assert type(words) is list and words[-1] == "word 999"
    lengths = [each async for each in pool.map(tasks.add_to, [words] * 20)]
    assert len(words) == 1000 and max(lengths) > 1001  # Their own copies, which last from task to task.
    table: dict[str, Any] = await pool.broadcast({"rows": np.ones((100, 100)), "name": "x" * 2000})
    assert not table["rows"].flags.writeable
    assert (await pool.run(tasks.same, table))["name"] == "x" * 2000


async def test_scattered_rows_are_arguments_of_their_own(pool: shmrpc.Pool) -> None:
    matrix = np.arange(ROWS * 50_000.0).reshape(ROWS, -1)
    rows = await pool.scatter(matrix)
    assert len(rows) == ROWS and len(tasks.shared_files()) == 1
    assert [each async for each in pool.map(tasks.total, rows)] == matrix.sum(1).tolist()
    kept = rows[2]
    del rows
    gc.collect()
    assert await pool.run(tasks.total, kept) == matrix[2].sum()


async def test_a_worker_that_takes_another_s_place_finds_it(pool: shmrpc.Pool) -> None:
    big = await pool.broadcast(np.ones(100_000))
    for worker in pool.stats().workers:
        os.kill(worker.pid, signal.SIGKILL)
    await wait_until(lambda: pool.stats().replaced == 2 and len(pool.stats().workers) == 2)
    assert await asyncio.gather(*[pool.submit(tasks.total, big) for _ in range(8)]) == [100_000.0] * 8


async def test_small_values_are_not_shared(pool: shmrpc.Pool) -> None:
    value = (1, "two", None)
    assert await pool.broadcast(value) is value
    assert await pool.scatter(range(3)) == [0, 1, 2]
    assert not tasks.shared_files()


async def test_a_shared_value_that_cannot_be_pickled_has_an_error(pool: shmrpc.Pool) -> None:
    with pytest.raises(TypeError, match="pickle"):
        await pool.broadcast(tasks.lock())
    not_in_one_piece = await pool.broadcast(np.ones((200, 200))[:, ::2])
    assert await pool.run(tasks.total, not_in_one_piece) == 20_000.0


async def test_sharing_without_memory_has_an_error(pool: shmrpc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(shmrpc.SharedMemoryError, match=r"no memory to share 8\d\d,\d\d\d bytes with workers"):
        await pool.broadcast(np.ones(100_000))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_shared_values_end_with_the_pool() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with shmrpc.pool(1) as pool:
        words = await pool.broadcast(["word"] * 1000)
        array = await pool.broadcast(np.ones(1000))
    del pool
    gc.collect()
    assert words[0] == "word" and array.sum() == 1000
    del words, array
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before and not tasks.shared_files()


def test_threads_and_nested_pools_have_it_too() -> None:
    with shmrpc.sync.pool(1) as pool:
        big = pool.broadcast(np.ones(100_000))
        assert list(pool.map(tasks.total, [big] * 3)) == [100_000.0] * 3
        assert pool.submit(tasks.total, big).result() == 100_000.0
        assert [pool.submit(tasks.total, row).result() for row in pool.scatter(np.ones((2, 1000)))] == [1000.0] * 2
        assert pool.submit(tasks.nested_broadcast).result() == 1000.0
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.broadcast(big)
