"""The behaviour of a pool that programs written for other executors expect."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import gc
import os
import pickle
import resource
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shmrpc
from shmrpc.basics import timeouts
from tests.helpers import pool_tasks as tasks
from tests.helpers.server_process import eventually
from tests.pools import pool_values as values

LOOP = "either"
#: Seconds that a task may take.
PATIENCE = 60


@pytest.fixture
async def pool() -> AsyncIterator[shmrpc.Pool]:
    async with shmrpc.pool(1) as made:
        yield made


@pytest.fixture
def executor() -> Iterator[shmrpc.sync.Pool]:
    with shmrpc.sync.pool(1) as made:
        yield made


async def test_asyncio_waits_for_what_was_submitted(pool: shmrpc.Pool, executor: shmrpc.sync.Pool) -> None:
    makers: list[Callable[[], list[Any]]] = [
        lambda: [pool.submit(abs, -1), pool.submit(abs, -2)],
        lambda: [executor.submit(abs, -1), executor.submit(abs, -2)],
    ]
    for submit in makers:
        for _ in range(2):
            done, waiting = await asyncio.wait(futures := submit())
            assert (done, waiting) == (set(futures), set())
            assert await asyncio.wait(futures) == (set(futures), set())
        assert await asyncio.gather(*submit()) == [1, 2]
        assert await asyncio.wait_for(submit()[1], PATIENCE) == 2
        assert await asyncio.shield(submit()[1]) == 2
        assert sorted([await each for each in asyncio.as_completed(submit())]) == [1, 2]
        assert await asyncio.to_thread(concurrent.futures.wait, futures) == (set(futures), set())


async def test_a_wait_that_is_left_leaves_nothing_behind(pool: shmrpc.Pool, tmp_path: Path) -> None:
    slow = pool.submit(tasks.wait_for, str(tmp_path / "go"))
    quick = asyncio.get_running_loop().create_future()
    quick.set_result(None)
    both: list[Any] = [slow, quick]
    done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    assert (done, waiting) == ({quick}, {slow})
    assert not await asyncio.to_thread(lambda: concurrent.futures.wait([slow], 0).done)
    called: list[object] = []
    slow.add_done_callback(called.append)
    slow.add_done_callback(called.append)
    assert slow.remove_done_callback(called.append) == 2
    (tmp_path / "go").touch()
    await slow
    assert not called


async def test_an_await_that_is_cancelled_cancels_what_has_not_begun(pool: shmrpc.Pool, tmp_path: Path) -> None:
    blocking = pool.submit(tasks.wait_for, str(tmp_path / "go"))
    await asyncio.sleep(0)
    future = pool.submit(tasks.add, 1)
    waiting = asyncio.ensure_future(asyncio.wait_for(future, 0.01))
    with pytest.raises(TimeoutError):
        await waiting
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await future
    (tmp_path / "go").touch()
    await blocking


async def test_a_task_that_raises_stop_iteration(pool: shmrpc.Pool, executor: shmrpc.sync.Pool) -> None:
    for function in (values.stop, values.stop_later):
        for submitted in (pool.submit(function), executor.submit(function)):
            error = await asyncio.to_thread(submitted.exception, PATIENCE)
            assert (type(error), str(error)) == (
                (StopIteration, "5") if function is values.stop else (RuntimeError, str(error))
            )
            with pytest.raises(RuntimeError):  # The same as for any coroutine.
                await submitted
    waiting = pool.submit(values.stop)
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(waiting, PATIENCE)
    many = [pool.submit(values.stop) for _ in range(5)]
    assert {type(each) for each in await asyncio.gather(*many, return_exceptions=True)} == {RuntimeError}
    with pytest.raises(
        RuntimeError, match=r"^stop\(\) raised StopIteration\(5\), which cannot be raised in a coroutine"
    ) as told:
        await pool.run(values.stop)
    assert isinstance(told.value.__cause__, StopIteration)


async def test_an_initializer_may_be_async() -> None:
    async with shmrpc.pool(1, initializer=values.set_up, initargs=[3]) as pool:
        assert await pool.run(values.state) == 3
    with pytest.raises(shmrpc.PoolBroken) as told:
        async with shmrpc.pool(1, initializer=values.set_up, initargs=[None]):
            pass
    assert isinstance(told.value.__cause__, TypeError)


class Kept:
    """A result of a task, to which weak references can be made."""


def make_kept(ignored: int) -> Kept:
    return Kept()


async def make_kept_later(ignored: int) -> Kept:
    return Kept()


@pytest.mark.slow
@pytest.mark.parametrize("function", [make_kept, make_kept_later])
@pytest.mark.parametrize("options", [{}, {"ordered": False}, {"on_progress": lambda *told: None}])
async def test_a_map_keeps_no_result_that_was_read(pool: shmrpc.Pool, function: Any, options: Any) -> None:
    results = pool.map(function, range(3), **options)
    for _ in range(3):
        kept = weakref.ref(await anext(results))
        assert kept() is None
    await results.aclose()


def make_kept_after(file: str | None) -> Kept:
    """Wait for a file, if one is named, and return a result."""
    while file is not None and not os.path.exists(file):
        time.sleep(0.001)
    return Kept()


async def test_a_map_drops_results_that_were_read_while_the_next_task_of_the_chunk_runs(
    pool: shmrpc.Pool, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    async for _ in pool.map(make_kept_after, [None] * 100):
        """The pool learns that the tasks are short, and puts several into a chunk."""
    results = pool.map(make_kept_after, [None, None, str(file)])
    for _ in range(2):
        kept = weakref.ref(await anext(results))
        assert kept() is None
    file.touch()
    assert isinstance(await anext(results), Kept)
    await results.aclose()


def test_nor_does_that_of_an_executor(executor: shmrpc.sync.Pool) -> None:
    results = executor.map(make_kept, range(3))
    for _ in range(3):
        kept = weakref.ref(next(results))
        assert kept() is None


def map_long_ago(
    monkeypatch: pytest.MonkeyPatch, executor: shmrpc.sync.Pool, function: Callable[..., Any], item: object
) -> Iterator[Any]:
    """Return the iterator of a map() that was called long before now, and whose timeout has passed."""
    with monkeypatch.context() as patched:
        patched.setattr(timeouts, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - 1000))
        return executor.map(function, [item], timeout=500)


def test_the_timeout_of_map_counts_from_its_call(executor: shmrpc.sync.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    late = map_long_ago(monkeypatch, executor, tasks.slow, 30.0)
    with pytest.raises(TimeoutError):
        next(late)


def test_results_that_arrived_can_be_read_after_the_timeout(
    executor: shmrpc.sync.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = executor.stats().completed
    late = map_long_ago(monkeypatch, executor, tasks.add, 1)
    assert eventually(lambda: executor.stats().completed > completed)
    assert list(late) == [2]


def test_an_executor_has_the_number_of_its_workers(executor: shmrpc.sync.Pool) -> None:
    assert executor._max_workers == 1
    executor.resize(2)
    assert executor._max_workers == 2
    assert executor.submit(values.nested_workers).result(PATIENCE) == 1
    with pytest.raises(ValueError, match="chunksize: expected 1 or more, got 0"):
        executor.map(abs, [1], chunksize=0)


def test_dask_computes_with_it(executor: shmrpc.sync.Pool) -> None:
    dask = pytest.importorskip("dask")
    with dask.config.set(pool=executor):
        total = dask.delayed(sum)([dask.delayed(abs)(-number) for number in range(10)])
        assert dask.compute(total) == (45,)


async def test_a_blocking_pool_within_a_worker_refuses_calls_after_its_end(pool: shmrpc.Pool) -> None:
    assert await pool.run(values.nested_shutdown) == ["cannot schedule new futures after shutdown"] * 4


async def test_a_task_within_a_worker_can_be_cancelled_until_it_begins(pool: shmrpc.Pool) -> None:
    assert await pool.run(values.nested_cancellations) == [[True, False], True, "second", True, ["second"], []]


async def test_a_pool_says_what_it_is(pool: shmrpc.Pool, executor: shmrpc.sync.Pool) -> None:
    assert (repr(pool), repr(executor)) == (
        "<shmrpc.pool of 1 worker, open>",
        "<shmrpc.sync.pool of 1 worker, open>",
    )
    assert repr(shmrpc.pool(2)) == "<shmrpc.pool of 2 workers, not open>"
    assert await pool.run(values.nested_reprs) == [
        "<shmrpc.pool within a worker, which runs its tasks itself, open>",
        "<shmrpc.sync.pool within a worker, which runs its tasks itself, shut down>",
    ]
    other = await shmrpc.pool(1)
    await other.close()
    assert repr(other) == "<shmrpc.pool of 1 worker, closed>"
    broken = shmrpc.sync.pool(1)
    broken.shutdown()
    assert repr(broken) == "<shmrpc.sync.pool of 1 worker, shut down>"


async def test_a_pool_is_not_copied(pool: shmrpc.Pool, executor: shmrpc.sync.Pool) -> None:
    for made in (pool, executor):
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=r"^a pool cannot be copied or pickled: .* in a task, open a pool by shmrpc.pool"
            ):
                make(made)
        with pytest.raises(shmrpc.EncodeError, match="a pool cannot be copied or pickled"):
            await pool.run(tasks.same, [made])


def test_a_pool_says_that_no_descriptor_is_left() -> None:
    with shmrpc.sync.pool(1) as warm:  # All that has to be imported is.
        warm.submit(abs, -1).result(PATIENCE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        for _ in range(8):
            with pytest.raises(
                (shmrpc.SharedMemoryError, shmrpc.PoolBroken), match="no descriptor left for a (pool|worker)"
            ):
                shmrpc.sync.pool(1)
            os.close(filling.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in filling:
            os.close(each)


#: A daemon, which has closed its standard descriptors.
DAEMON = """
import os, sys
os.closerange(0, 3)
import shmrpc
from shmrpc.pools import blocking_pool

def opened():
    return [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]

def child():
    import subprocess
    return subprocess.run(["true"]).returncode

if __name__ == "__main__":
    with shmrpc.sync.pool(2) as pool:
        found = [pool.submit(opened).result(), pool.submit(child).result()]
    with open(sys.argv[1], "w") as file:
        print(*found, opened(), file=file)
"""


@pytest.mark.parametrize("at_import", ["", "kept = open(os.devnull)"], ids=["forked", "by itself"])
def test_workers_of_a_daemon_have_standard_descriptors(tmp_path: Path, at_import: str) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON.replace("import shmrpc", f"import shmrpc\n{at_import}"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "daemon.py", "told"], cwd=tmp_path, timeout=PATIENCE, env=environment)
    null = ["/dev/null"] * 3
    assert (ran.returncode, (tmp_path / "told").read_text()) == (0, f"{null} 0 {null}\n")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["await", "run", "named", "async", "thread"])
async def test_an_error_of_a_task_is_freed_without_the_garbage_collector(
    pool: shmrpc.Pool, executor: shmrpc.sync.Pool, how: str
) -> None:
    async def failed() -> weakref.ref[tasks.OwnError]:
        try:
            match how:
                case "await":
                    await pool.submit(tasks.fail_own)
                case "run":
                    await pool.run(tasks.fail_own)
                case "named":
                    await pool.submit(tasks.fail_own, base=10)
                case "async":
                    await pool.submit(tasks.fail_own_later)
                case _:
                    executor.submit(tasks.fail_own).result(PATIENCE)
        except tasks.OwnError as error:
            return weakref.ref(error)
        raise AssertionError

    gc.collect()
    gc.disable()
    try:
        error = await failed()
        async with asyncio.timeout(PATIENCE):
            while error() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
