"""Pools in asyncio: results, errors, order, cancellation, workers that die, and options."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
from shmrpc.pools.scheduling import chunk_dispatcher, stealing
from shmrpc.pools.transfer import functions
from tests.helpers import pool_tasks as tasks

LOOP = "either"


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def pool() -> AsyncIterator[shmrpc.Pool]:
    async with shmrpc.pool(2, grace=0.5) as made:
        yield made


async def both(pool: shmrpc.Pool) -> list[int]:
    """Wait for two ready workers, and return their process ids."""
    while len(workers := pool.stats().workers) < 2:
        await asyncio.sleep(0.01)
    return [worker.pid for worker in workers]


async def test_a_function_is_run_in_another_process(pool: shmrpc.Pool) -> None:
    assert await pool.run(tasks.add, 1, b=2) == 3
    assert await pool.run(tasks.pid) != os.getpid()
    assert await pool.run(abs, -3) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [None, (1, (2, [3])), {1: "a", (2, 3): {4}}, 2**100, b"bytes", complex(1, 2), tasks.Counter],
    ids=["none", "tuples", "keys", "large", "bytes", "complex", "class"],
)
async def test_values_come_back_unchanged(pool: shmrpc.Pool, value: Any) -> None:
    assert await pool.run(tasks.same, value) == value
    assert [result async for result in pool.map(tasks.same, [value, value])] == [value, value]
    assert await pool.submit(tasks.same, value) == value


async def test_arrays_travel_through_shared_memory(pool: shmrpc.Pool) -> None:
    array = np.arange(300_000.0)
    assert await pool.run(tasks.total, array) == array.sum()
    assert (await pool.run(tasks.zeros, 500_000)).shape == (500_000,)
    assert [each async for each in pool.map(tasks.total, [array, array * 2])] == [array.sum(), array.sum() * 2]


async def test_functions_without_a_name_are_sent(pool: shmrpc.Pool) -> None:
    offset = 10

    def local(value: int) -> int:
        return value + offset

    assert await pool.run(local, 1) == 11
    assert await pool.run(lambda a, b: a * b, 6, 7) == 42
    assert await pool.run(functools.partial(tasks.add, b=5), 1) == 6
    assert await pool.run(tasks.Called(), 4) == -4
    assert [each async for each in pool.map(lambda x: x * 2, range(5))] == [0, 2, 4, 6, 8]


async def test_a_method_has_its_object_as_it_is_at_the_call(pool: shmrpc.Pool) -> None:
    counter = tasks.Counter(1)
    assert await pool.run(counter.plus, 1) == 2
    counter.start = 100
    assert await pool.run(counter.plus, 1) == 101
    assert [each async for each in pool.map(counter.plus, [1, 2])] == [101, 102]


async def test_more_functions_than_are_kept(pool: shmrpc.Pool) -> None:
    for value in range(600):
        assert await pool.run(eval(f"lambda: {value}")) == value


async def test_the_study_s_do_takes_source(pool: shmrpc.Pool) -> None:
    assert await pool.do("lambda a, b: a + b", range(1, 6), range(5, 0, -1)) == [6] * 5
    with pytest.raises(TypeError, match="expected the text of a function"):
        await pool.do("1 + 1", [1])


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7, 5000])
async def test_map_gives_all_results(pool: shmrpc.Pool, count: int, ordered: bool) -> None:
    results = [each async for each in pool.map(tasks.add, range(count), ordered=ordered)]
    assert (results if ordered else sorted(results)) == list(range(1, count + 1))


async def test_map_takes_from_several_iterables(pool: shmrpc.Pool) -> None:
    assert [each async for each in pool.map(tasks.add, range(100), itertools.count(1))] == list(range(1, 201, 2))
    with pytest.raises(TypeError, match="at least one iterable"):
        pool.map(tasks.add)


async def test_map_takes_no_more_than_there_is_room_for(pool: shmrpc.Pool) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = pool.map(tasks.same, endless())
    for expected in range(1, 20_000):
        assert await anext(results) == expected
    await asyncio.sleep(0.1)
    most = taken
    await asyncio.sleep(0.1)
    assert taken == most
    await results.aclose()


async def test_an_iterable_that_fails_ends_the_map_after_what_came_before(pool: shmrpc.Pool) -> None:
    def failing() -> Iterator[int]:
        yield from range(900)
        raise OSError("the disk is gone")

    results: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        async for each in pool.map(tasks.same, failing()):
            results.append(each)
    assert results == list(range(900))


async def test_an_async_iterable_has_an_error_with_a_remedy(pool: shmrpc.Pool) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="no async iterables such as this async_generator"):
        pool.map(tasks.same, numbers())  # type: ignore[call-overload]  # pyright: ignore


async def test_a_slow_task_keeps_none_behind_it_from_the_other_worker(pool: shmrpc.Pool) -> None:
    await both(pool)
    async for _ in pool.map(tasks.slow, [0.0] * 3000):
        pass
    done: list[float] = []
    # One takes long, the others, which were sent with it, go elsewhere meanwhile.
    async for each in pool.map(tasks.slow, [*[0.0] * 50, 3.0, *[0.0] * 2000], ordered=False):
        if each:
            break
        done.append(each)
    assert len(done) == 2050


async def test_functions_without_references_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_MAX_FUNCTIONS", 8)
    async with shmrpc.pool(1) as pool:
        for number in range(40):

            def made(added: int, number: int = number) -> int:
                return number + added

            assert await pool.run(made, 1) == number + 1
            assert await pool.submit(made, 2) == number + 2
            assert [each async for each in pool.map(made, [3])] == [number + 3]
        del made
        async with asyncio.timeout(30):
            while await pool.run(tasks.made_functions) > 10:
                gc.collect()


async def test_progress_is_reported_while_results_are_read(pool: shmrpc.Pool) -> None:
    told: list[tuple[int, int | None]] = []

    def tell(ended: int, total: int | None) -> None:
        told.append((ended, total))

    assert len([each async for each in pool.map(tasks.add, range(3000), on_progress=tell)]) == 3000
    assert told[0] == (0, 3000) and told[-1] == (3000, 3000)
    assert [ended for ended, _ in told] == sorted({ended for ended, _ in told})
    told.clear()
    endless = pool.map(tasks.add, itertools.count(), on_progress=tell, ordered=False)
    assert await anext(endless) >= 1
    await endless.aclose()
    assert told[0][1] is None and told[-1][0] > 0
    told.clear()
    assert [each async for each in pool.map(tasks.later, iter("ab"), on_progress=tell)] == ["a", "b"]
    assert told == [(0, None), (1, None), (2, None), (2, 2)]


async def test_a_progress_callback_may_raise(pool: shmrpc.Pool) -> None:
    def refuse(ended: int, total: int | None) -> None:
        if ended:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        async for _ in pool.map(tasks.add, range(100), on_progress=refuse):
            pass
    assert await pool.run(tasks.add, 1) == 2


async def test_a_text_shows_a_bar(pool: shmrpc.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    async for _ in pool.map(tasks.add, range(100), on_progress="adding"):
        pass
    shown = capsys.readouterr().out
    assert "adding" in shown and "100/100" in shown


async def test_a_bar_without_rich_says_what_to_install(pool: shmrpc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match="pip install rich"):
        await anext(pool.map(tasks.add, [1], on_progress="adding"))


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
async def test_a_result_comes_while_a_slow_task_behind_it_runs(ordered: bool, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    async with shmrpc.pool(1) as pool:
        async for _ in pool.map(tasks.wait_for, [""] * 3000):  # From now on these are short, and go together.
            pass
        results = pool.map(tasks.wait_for, [*[""] * 20, str(go_on)], ordered=ordered)
        async with asyncio.timeout(60):
            assert [await anext(results) for _ in range(20)] == [""] * 20
        go_on.touch()
        assert [each async for each in results] == [str(go_on)]


async def test_results_for_which_there_is_no_credit_need_no_look(
    pool: shmrpc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stealing, "_REBALANCE_INTERVAL", 1e6)
    async for _ in pool.map(len, [b""] * 3000):
        pass
    async with asyncio.timeout(60):  # Each result is small enough for the ring, and all of a chunk are not.
        assert sum([len(each) async for each in pool.map(tasks.same, [b"x" * 2000] * 3000)]) == 6_000_000


async def test_tasks_that_are_taken_back_run_once(pool: shmrpc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    await both(pool)
    dispatch = chunk_dispatcher.ChunkDispatcher.dispatch

    def dispatch_and_steal(self: chunk_dispatcher.ChunkDispatcher) -> None:
        dispatch(self)
        self._stealer.steal_tasks()  # Before any chunk is on its way.

    monkeypatch.setattr(chunk_dispatcher.ChunkDispatcher, "dispatch", dispatch_and_steal)
    for count in range(1, 400, 7):
        assert [each async for each in pool.map(tasks.add, range(count))] == list(range(1, count + 1))
        assert await asyncio.gather(*(pool.submit(tasks.add, each) for each in range(count))) == list(
            range(1, count + 1)
        )


@pytest.mark.parametrize("kind", ["run", "submit", "map"])
async def test_an_exception_arrives_as_itself_with_its_traceback(pool: shmrpc.Pool, kind: str) -> None:
    with pytest.raises(tasks.Own) as raised:
        if kind == "run":
            await pool.run(tasks.fail, "own")
        elif kind == "submit":
            await pool.submit(tasks.fail, "own")
        else:
            async for _ in pool.map(tasks.fail, ["own"]):
                pass
    assert raised.value.code == 7
    assert isinstance(raised.value.__cause__, shmrpc.RemoteError)
    assert "pool_tasks.py" in raised.value.__cause__.remote_traceback
    assert await pool.run(tasks.add, 1) == 2


async def test_an_exception_that_cannot_be_pickled_is_an_error_of_its_task(pool: shmrpc.Pool) -> None:
    with pytest.raises(shmrpc.RemoteError, match="no pickle"):
        await pool.run(tasks.fail, "unpicklable")
    assert await pool.run(tasks.add, 1) == 2


@pytest.mark.parametrize("kind", ["run", "submit", "map"])
async def test_values_that_cannot_be_sent_fail_their_task(pool: shmrpc.Pool, kind: str) -> None:
    frame = tasks.lock()
    with pytest.raises(shmrpc.EncodeError, match=r"^same\(\): an argument cannot be sent"):
        if kind == "run":
            await pool.run(tasks.same, frame)
        elif kind == "submit":
            await pool.submit(tasks.same, frame)
        else:
            async for _ in pool.map(tasks.same, [1, frame, 2]):
                pass
    with pytest.raises(shmrpc.EncodeError, match=r"^lock\(\) returned frame, which cannot be sent"):
        await pool.run(tasks.lock)
    with pytest.raises(shmrpc.EncodeError, match=r"<lambda>\(\) returned frame, which cannot be sent"):
        async for _ in pool.map(lambda ignored: tasks.lock(), [1]):
            pass
    with pytest.raises(shmrpc.EncodeError, match=r"returned generator, which cannot be sent: return a list$"):
        await pool.run(lambda: (each for each in [1]))
    assert await pool.run(tasks.add, 1) == 2


async def test_slow_tasks_take_and_give_anything(pool: shmrpc.Pool) -> None:
    """They are sent one by one, which is another way than that of many quick ones."""
    array = np.arange(5.0)
    shared = await pool.broadcast(np.ones(1000))
    values: list[Any] = [1, (1, (2, [3])), {4}, array, shared, b"x" * 100_000, [array], None]
    for results in (
        [result async for result in pool.map(tasks.slow_call, values * 3)],
        [result async for result in pool.map(tasks.slow_call, values * 3, [None] * 24)],
        [await each for each in [pool.submit(tasks.slow_call, value) for value in values * 3]],
        [await each for each in [pool.submit(tasks.slow_call, value, None) for value in values * 3]],
    ):
        for value, result in zip(values * 3, results, strict=True):
            assert type(result) is type(value)
            np.testing.assert_equal(result, value)
    functions: list[Any] = [tasks.same] * 8 + [tasks.fail, tasks.same, tasks.lock_of, tasks.same, tasks.die]
    futures = [pool.submit(tasks.slow_call, "value", each) for each in [*functions, tasks.same, tasks.same]]
    told = await asyncio.gather(*[asyncio.wrap_future(each) for each in futures], return_exceptions=True)
    errors = [each for each in told if isinstance(each, BaseException)]
    assert list(map(type, errors)) == [ValueError, shmrpc.EncodeError, shmrpc.WorkerDied]
    assert re.match(r"slow_call\(\) returned frame, which cannot be sent", str(errors[1]))
    assert [each for each in told if each not in errors] == ["value"] * 12


async def test_a_result_that_cannot_be_read_is_an_error_of_its_task_and_of_no_other(
    pool: shmrpc.Pool, tmp_path: Path
) -> None:
    path, store = tmp_path / "counted", f"countedbypool{os.getpid()}"
    futures = [asyncio.wrap_future(pool.submit(tasks.counted, str(path), store, number)) for number in range(100)]
    told = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(told[50], shmrpc.DecodeError)
    assert re.match(r"counted\(\): the result cannot be decoded", str(told[50]))
    del told[50]
    assert told == [number for number in range(100) if number != 50]
    assert sorted(map(int, path.read_text().split())) == [*range(100)], "a task was run again"


async def test_a_function_that_cannot_be_had_is_an_error_of_its_task(pool: shmrpc.Pool) -> None:
    def strange() -> None: ...

    strange.__module__, strange.__qualname__ = "tests.helpers.pool_tasks", "nowhere"
    await pool.run(strange)  # The worker cannot import the function, so it was sent.
    with pytest.raises(TypeError, match="expected a function"):
        await pool.run("add", 1)  # type: ignore[call-overload]


async def test_a_map_that_fails_at_one_gives_those_before(pool: shmrpc.Pool) -> None:
    results: list[int] = []
    with pytest.raises(ValueError, match="five"):
        async for each in pool.map(tasks.fail_at, range(100)):
            results.append(each)
    assert results == [0, 1, 2, 3, 4]
    assert await pool.run(tasks.add, 1) == 2


async def test_many_futures_end_each_with_its_own_result(pool: shmrpc.Pool) -> None:
    futures = [pool.submit(tasks.add, value) for value in range(3000)]
    assert [await future for future in futures] == list(range(1, 3001))
    assert await asyncio.gather(*(pool.submit(tasks.add, value, b=2) for value in range(10))) == list(range(2, 12))


async def test_every_future_ends_when_the_pool_is_closed_before_its_task_begins() -> None:
    pool = await shmrpc.pool(1)
    futures = [pool.submit(tasks.add, 1), pool.submit(tasks.add, 1, b=2), pool.submit(tasks.later, 1)]
    await pool.close()
    for future in futures:
        with pytest.raises(shmrpc.LocalProtocolError, match="the pool is closed"):
            await asyncio.wait_for(future, 30)
    # One that is begun alone, in the next turn of the loop.
    pool = await shmrpc.pool(1)
    future = pool.submit(tasks.add, 1)
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(shmrpc.LocalProtocolError, match="the pool is closed"):
        await asyncio.wait_for(future, 30)


async def test_async_functions_run_in_the_worker_s_loop_many_at_once(pool: shmrpc.Pool) -> None:
    began = time.monotonic()
    assert await asyncio.gather(*(pool.run(tasks.later, value) for value in range(500))) == list(range(500))
    assert time.monotonic() - began < 500 * 0.01, "they have run one after the other"
    assert [each async for each in pool.map(tasks.later, range(300))] == list(range(300))
    assert sorted([each async for each in pool.map(tasks.later, range(30), ordered=False)]) == list(range(30))
    assert await pool.submit(tasks.later, 5) == 5
    with pytest.raises(tasks.Own):
        await pool.run(tasks.fail_later)


async def test_a_cancelled_task_of_an_async_function_is_cancelled(pool: shmrpc.Pool, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    task = asyncio.create_task(pool.run(tasks.wait_for_ever, str(path)))
    await wait_until(path.exists)
    before = await both(pool)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: path.read_text() == "begun\nended\n")
    assert await both(pool) == before


async def test_the_deadline_of_a_handler_is_not_that_of_a_task_that_it_begins(pool: shmrpc.Pool) -> None:
    begun: list[asyncio.Task[float]] = []

    async def begin() -> None:
        begun.append(asyncio.create_task(pool.run(tasks.slow, 0.5)))
        await asyncio.sleep(1000)

    service = shmrpc.Service("tested.pool.deadlines")
    service.endpoint(begin)
    async with shmrpc.serve(service), shmrpc.connect(service) as client:
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.with_options(timeout=0.1).begin()
        assert await begun[0] == 0.5


async def test_a_cancelled_task_that_computes_is_interrupted(pool: shmrpc.Pool, tmp_path: Path) -> None:
    before = await both(pool)
    path = tmp_path / "pid"
    task = asyncio.create_task(pool.run(tasks.spin, str(path)))
    await wait_until(lambda: path.exists() and bool(path.read_text()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not any(worker.busy for worker in pool.stats().workers))
    assert await both(pool) == before, "the worker was killed, and not interrupted"
    assert await pool.run(tasks.add, 1) == 2


async def test_a_task_that_cannot_be_interrupted_is_killed_with_its_worker(pool: shmrpc.Pool, tmp_path: Path) -> None:
    await both(pool)
    path = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await pool.run(tasks.stubborn, str(path))
    killed = int(path.read_text())
    await wait_until(lambda: killed not in [worker.pid for worker in pool.stats().workers])
    assert killed not in await both(pool)
    assert await pool.run(tasks.add, 1) == 2


async def test_a_cancelled_task_that_waits_is_never_begun(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    async with shmrpc.pool(1) as pool:
        first = asyncio.create_task(pool.run(tasks.slow, 0.3))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(pool.run(tasks.note, str(path), 1))
        third = pool.submit(tasks.note, str(path), 2)
        await asyncio.sleep(0)
        second.cancel()
        assert third.cancel()
        await first
        assert await pool.run(tasks.add, 1) == 2
    assert not path.exists()


async def test_a_map_that_is_left_ends_what_it_has_begun(pool: shmrpc.Pool, tmp_path: Path) -> None:
    await both(pool)
    results = pool.map(tasks.slow, [0.0, *[0.2] * 50], ordered=False)
    await anext(results)
    await results.aclose()
    await wait_until(lambda: not any(worker.busy for worker in pool.stats().workers))
    assert pool.stats().completed < 20


@pytest.mark.parametrize("how", [tasks.die, functools.partial(tasks.leave, 3)], ids=["killed", "exits"])
async def test_a_worker_that_dies_costs_its_task_and_no_other(pool: shmrpc.Pool, how: Any) -> None:
    await both(pool)
    others = [asyncio.create_task(pool.run(tasks.slow, 0.01)) for _ in range(20)]
    with pytest.raises(shmrpc.WorkerDied) as raised:
        await pool.run(how)
    assert raised.value.maybe_executed
    assert "SIGKILL" in str(raised.value) or "exited with status 3" in str(raised.value)
    assert await asyncio.gather(*others) == [0.01] * 20
    assert len(await both(pool)) == 2
    assert pool.stats().replaced == 1


async def test_a_chunk_s_worker_dies_and_one_task_is_in_doubt(pool: shmrpc.Pool, tmp_path: Path) -> None:
    await both(pool)
    path = str(tmp_path / "notes")
    futures = [pool.submit(tasks.noted, path, value) for value in range(200)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [value for value, outcome in enumerate(outcomes) if outcome != value] == [13]
    assert isinstance(outcomes[13], shmrpc.WorkerDied)
    lines = (tmp_path / "notes").read_text().splitlines()
    assert sorted(lines) == sorted(
        [f"{word} {value}" for value in range(200) for word in ("begun", "ended") if (word, value) != ("ended", 13)]
    ), "a task was lost, or was run twice"


async def test_with_retries_the_task_in_doubt_is_run_again(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    async with shmrpc.pool(2, retries=1) as pool:
        assert [each async for each in pool.map(tasks.noted, [path] * 50, range(50))] == list(range(50))
        with pytest.raises(shmrpc.WorkerDied):
            await pool.run(tasks.die)
        assert await pool.run(tasks.add, 1) == 2


async def test_a_task_that_exits_the_interpreter_fails_and_no_worker_goes(pool: shmrpc.Pool) -> None:
    before = await both(pool)
    with pytest.raises(SystemExit):
        await pool.run(tasks.exit_, 3)
    assert await both(pool) == before


async def test_a_worker_that_has_nothing_to_do_is_replaced_when_it_dies(pool: shmrpc.Pool) -> None:
    first, second = await both(pool)
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: first not in [worker.pid for worker in pool.stats().workers])
    assert second in await both(pool)


async def test_an_initializer_prepares_each_worker(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    async with shmrpc.pool(2, initializer=tasks.load, initargs=(5, str(path))) as pool:
        assert await pool.run(tasks.count) == 5
        workers = await both(pool)
        assert sorted(map(int, path.read_text().split())) == sorted(workers)
        assert await pool.run(tasks.number) in (0, 1)


async def test_an_initializer_that_fails_breaks_the_pool() -> None:
    with pytest.raises(shmrpc.PoolBroken, match="the model is not there") as raised:
        async with shmrpc.pool(2, initializer=tasks.broken):
            pass
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert isinstance(raised.value.__cause__.__cause__, shmrpc.RemoteError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initializer", "how"),
    [(tasks.die, "was killed by SIGKILL"), (functools.partial(tasks.leave, 3), "exited with status 3")],
)
async def test_workers_that_die_as_they_begin_end_the_pool(initializer: Any, how: str) -> None:
    with pytest.raises(shmrpc.PoolBroken, match=f"died before they were ready; the last: {how}"):
        async with shmrpc.pool(2, initializer=initializer):
            pass


async def test_an_initializer_that_exits_ends_the_pool_and_not_the_program() -> None:
    with pytest.raises(shmrpc.PoolBroken, match=r"the initializer raised SystemExit\(3\)"):
        async with shmrpc.pool(2, initializer=tasks.exit_, initargs=[3]):
            pass


async def test_a_worker_is_replaced_after_its_tasks() -> None:
    async with shmrpc.pool(1, max_tasks_per_child=3) as pool:
        pids = [await pool.run(tasks.pid) for _ in range(9)]
    assert [len(list(group)) for _, group in itertools.groupby(pids)] == [3, 3, 3]


async def test_a_pool_grows_and_shrinks() -> None:
    async with shmrpc.pool(1) as pool:
        pool.resize(3)
        await wait_until(lambda: len(pool.stats().workers) == 3)
        pool.resize(1)
        await wait_until(lambda: len(pool.stats().workers) == 1)
        assert await pool.run(tasks.number) == 0
        pool.resize(2)
        await wait_until(lambda: len(pool.stats().workers) == 2)


async def test_options_of_workers() -> None:
    async with shmrpc.pool(2, affinity="spread", environment={"OWN": "yes"}, memory="1GiB") as pool:
        await both(pool)
        cpus = {number: await pool.run(tasks.affinity) for number in range(2)}
        assert all(len(each) == 1 for each in cpus.values())
        assert await pool.run(tasks.environment, "OWN") == "yes"
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert await pool.run(tasks.environment, "OMP_NUM_THREADS") == threads
        with pytest.raises(MemoryError):
            await pool.run(tasks.fill, 2 << 30)
        assert await pool.run(tasks.fill, 1 << 20) == 1 << 20


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "workers: expected 1 to 4096"),
        ({"workers": "two"}, "workers: expected a number of processes"),
        ({"retries": -1}, "retries: expected 0 or more"),
        ({"grace": -1}, "grace"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child: expected 1 or more"),
        ({"memory": 1}, "memory: expected"),
        ({"affinity": "pack"}, "affinity: expected 'spread'"),
        ({"initializer": 3}, "initializer: expected a function"),
        ({"environment": ["A"]}, "environment: expected a dict of str to str"),
        ({"environment": {"A": 1}}, "environment: expected names and values of type str"),
        ({"environment": {"A=B": "1"}}, "environment: expected a name without"),
        ({"environment": {"A": "\ud800"}}, "environment: expected text that can be encoded"),
        ({"initargs": "ab"}, "initargs: expected a tuple or list of arguments, got 'ab'"),
        ({"initargs": 5}, "initargs: expected a tuple or list of arguments, got 5"),
        ({"worker": 3}, "pool\\(\\) has no option worker"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_refused(options: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        shmrpc.pool(**options)


async def test_nested_pools_run_where_they_are(pool: shmrpc.Pool) -> None:
    assert await pool.run(tasks.nested, [1, 2, 3]) == [2, 3, 4]
    assert await pool.run(tasks.nested_blocking, [1, 2, 3]) == [2, 3, 4]


async def test_so_do_the_processes_of_a_server_within_a_worker(pool: shmrpc.Pool) -> None:
    pid, result = await pool.run(tasks.handled_here, 1)
    assert pid in await both(pool) and result == 3


async def test_worker_is_for_workers() -> None:
    with pytest.raises(shmrpc.LocalProtocolError, match="run in a worker"):
        shmrpc.worker()


async def test_tasks_under_way_fail_when_the_pool_is_closed() -> None:
    pool = await shmrpc.pool(1, grace=0.2)
    running = asyncio.create_task(pool.run(tasks.slow, 100))
    waiting = asyncio.create_task(pool.run(tasks.slow, 100))
    submitted = pool.submit(tasks.slow, 100)
    await asyncio.sleep(0.1)
    await pool.close()
    for each in (running, waiting, submitted):
        with pytest.raises((shmrpc.LocalProtocolError, shmrpc.ConnectionLost, shmrpc.WorkerDied)):
            await each
    with pytest.raises(shmrpc.LocalProtocolError, match="the pool is closed"):
        await pool.run(tasks.add, 1)
    await pool.close()


async def test_a_pool_that_is_not_open_refuses_calls() -> None:
    pool = shmrpc.pool(1)
    with pytest.raises(shmrpc.LocalProtocolError, match="this pool is not open: use `async with"):
        await pool.run(tasks.add, 1)
    with pytest.raises(shmrpc.LocalProtocolError, match="this pool is not open: use `async with"):
        pool.submit(tasks.add, 1)
    await pool.close()


async def test_a_pool_is_opened_once() -> None:
    pool = shmrpc.pool(1)
    async with pool:
        with pytest.raises(shmrpc.LocalProtocolError, match="opened before"):
            await pool.__aenter__()


async def test_output_of_workers_arrives(capfd: pytest.CaptureFixture[str]) -> None:
    async with shmrpc.pool(1) as pool:
        await pool.run(tasks.speak, "hello")
    assert "hello" in capfd.readouterr().out


async def test_nothing_is_left_of_a_pool() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with shmrpc.pool(2) as pool:
        pids = await both(pool)
        await pool.run(tasks.total, np.ones(200_000))
        assert await pool.run(tasks.pid) in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.parametrize("question", ["result", "exception"])
async def test_a_result_that_would_block_its_own_loop_is_refused(pool: shmrpc.Pool, question: str) -> None:
    future = pool.submit(tasks.same, 1)
    ask = getattr(future, question)
    for timeout in (None, 60):
        with pytest.raises(
            shmrpc.LocalProtocolError, match="would block the event loop of its pool: use `await future`"
        ):
            ask(timeout)
    with pytest.raises(TimeoutError):
        ask(0)
    there = asyncio.to_thread(ask)  # Another thread may wait.
    expected = 1 if question == "result" else None
    assert await asyncio.wait_for(there, 60) == expected
    assert ask() == expected
