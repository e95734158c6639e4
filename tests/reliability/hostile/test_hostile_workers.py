"""A worker that overwrites the words that it shares with its pool: its master neither crashes, hangs nor grows."""

from __future__ import annotations

import asyncio
import itertools
import os
import random

import pytest

import shmrpc
from tests.helpers import pool_tasks as tasks
from tests.helpers.scale import scaled

pytestmark = pytest.mark.slow

LOOP = "either"
TIMEOUT = 120
#: Corrupt values: the largest count of begun tasks, more tasks than exist, an end beyond them, no tasks.
WORDS = (0, 1, (1 << 64) - 1, 1 << 63, (1 << 32) - 1, (1 << 32) - 1 << 32, (5 << 32) | 3, (1 << 32) | 4096)


def memory() -> int:
    """Return the bytes of this process's resident memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def end_all(pool: shmrpc.Pool, words: list[int], count: int) -> None:
    """Run tasks of all kinds beside tasks that overwrite the words; check that each ends, with a result or an error."""
    async with asyncio.timeout(TIMEOUT):
        futures = [pool.submit(tasks.add, number) for number in range(count)]
        overwriting = [pool.submit(tasks.write_over, words) for _ in range(2)]
        more = [pool.submit(tasks.add, number) for number in range(count)]
        single = asyncio.create_task(pool.run(tasks.write_over, words))
        cancelled = asyncio.create_task(pool.run(tasks.slow, 0.05))
        await asyncio.sleep(random.random() * 0.01)
        cancelled.cancel()
        await asyncio.gather(*futures, *overwriting, *more, single, cancelled, return_exceptions=True)
        try:
            async for _ in pool.map(tasks.write_over, [words] * 3, ordered=False):
                pass
        except shmrpc.WorkerDied:
            pass


@pytest.mark.parametrize("words", [pytest.param([first, 1], id=hex(first)) for first in WORDS])
async def test_corrupt_progress_of_a_worker_ends_only_its_own_tasks(words: list[int]) -> None:
    async with shmrpc.pool(2, grace=0.2) as pool:
        await end_all(pool, words, 200)
        async with asyncio.timeout(TIMEOUT):
            assert [each async for each in pool.map(tasks.add, range(3000))] == list(range(1, 3001))
            assert await asyncio.gather(*[pool.submit(tasks.add, each) for each in range(50)]) == [*range(1, 51)]


@pytest.mark.parametrize("words", [[0, 0], [1, 0], [1 << 32, 0]])
async def test_a_slow_task_gets_its_own_result_or_none_despite_corrupt_progress(words: list[int]) -> None:
    async with shmrpc.pool(2, grace=0.2) as pool:
        assert [each async for each in pool.map(tasks.slow_call, range(10))] == [*range(10)]
        async with asyncio.timeout(TIMEOUT):
            futures = [asyncio.wrap_future(pool.submit(tasks.overwrite_and_work, words)) for _ in range(4)]
            for outcome in await asyncio.gather(*futures, return_exceptions=True):
                assert outcome == "truth" or isinstance(outcome, shmrpc.WorkerDied)
            assert await pool.run(tasks.add, 1) == 2


async def test_random_progress_words_do_not_make_the_master_grow() -> None:
    generator = random.Random(1)
    async with shmrpc.pool(2, grace=0.2) as pool:
        await end_all(pool, [0, 0], 100)
        before = memory()
        for _ in itertools.repeat(None, scaled(10, 300)):
            await end_all(pool, [generator.getrandbits(64), generator.getrandbits(generator.choice([2, 64]))], 100)
        async with asyncio.timeout(TIMEOUT):
            assert await asyncio.gather(*[pool.submit(tasks.add, each) for each in range(50)]) == [*range(1, 51)]
        assert memory() - before < 64 << 20
