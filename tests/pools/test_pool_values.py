"""Values on their way to workers and back: in one pickle where needed, which is read as part of the task."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import shmrpc
from shmrpc.pools.handler_processes import HandlerProcesses
from tests.helpers import pool_tasks as tasks
from tests.pools import pool_values as values

LOOP = "either"


@pytest.fixture
async def pool() -> AsyncIterator[shmrpc.Pool]:
    async with shmrpc.pool(1, grace=0.5) as made:
        yield made


def linked() -> list[values.Node]:
    """Two nodes, of which the first one refers to the second."""
    second = values.Node()
    return [values.Node(second), second]


async def everywhere(pool: shmrpc.Pool, function: Any, *args: Any) -> list[Any]:
    """Run a task by each method of a pool, and return the results."""
    return [
        await pool.run(function, *args),
        await pool.submit(function, *args),
        *await asyncio.gather(*(pool.submit(function, *args) for _ in range(2))),
        *[result async for result in pool.map(function, *([each] * 3 for each in args))],
    ]


async def test_objects_shared_within_an_argument_stay_shared(pool: shmrpc.Pool) -> None:
    assert set(await everywhere(pool, values.is_linked, linked())) == {True}
    assert await everywhere(pool, values.set_first, [[0] * 3] * 3) == [[[5, 0, 0]] * 3] * 7
    row, array = {"a": 1}, np.zeros(3)
    for value in ({"one": row, "two": row}, (row, row), [array, array], [np.zeros(5000)] * 2, [bytearray(1)] * 2):
        assert set(await everywhere(pool, values.is_one, value)) == {True}


async def test_objects_shared_by_arguments_stay_shared(pool: shmrpc.Pool) -> None:
    first, second = linked()
    assert set(await everywhere(pool, values.is_next, first, second)) == {True}
    assert set(await everywhere(pool, values.is_same, row := [1], row)) == {True}
    assert await pool.run(values.is_same, row, other=row)
    assert await pool.run(values.is_same_later, row, other=row)
    assert await pool.run(values.is_same_later, first, first)


async def test_tasks_share_nothing_with_each_other(pool: shmrpc.Pool) -> None:
    row = [0]
    assert [each async for each in pool.map(values.appended, [row] * 100)] == [[0, 1]] * 100
    assert [each async for each in pool.map(values.appended, [row] * 100, [row] * 100)] == [[0, 1, 1]] * 100


async def test_objects_shared_within_a_result_stay_shared(pool: shmrpc.Pool) -> None:
    for result in await everywhere(pool, values.twice, 1):
        assert result[0] is result[1]
    for first, second in await everywhere(pool, values.make_linked, 1):
        assert first.next is second


async def test_recursive_values_and_texts_that_are_no_utf_8(pool: shmrpc.Pool) -> None:
    loop: list[Any] = []
    loop.append(loop)
    for result in await everywhere(pool, tasks.same, loop):
        assert result[0] is result
    for text in ("f\udcff", ["f\udcff", (1, 2)], {"f\udcff": np.arange(3)}):
        for result in await everywhere(pool, tasks.same, text):
            assert repr(result) == repr(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", values.pickled_arrays())
async def test_an_array_that_is_pickled_arrives_as_itself_wherever_it_stands(pool: shmrpc.Pool, name: str) -> None:
    array = values.pickled_arrays()[name]
    for value in (array, [array], (array, 1), {"in it": array}, values.Node(array), values.nested(name)):
        alone = values.looks_of(value)
        assert await everywhere(pool, values.looks_of, value) == [alone] * 7
        assert await pool.run(values.looks_of_later, value) == alone
        for function in (values.looks_of, values.looks_of_later):
            assert await pool.run(function, 1, other=value) == values.looks_of(1, other=value)
        assert await pool.run(values.looks_of, await pool.broadcast(value)) == alone
        assert [each async for each in pool.map(values.looks_of, [value] * 50)] == [alone] * 50
        assert [each async for each in pool.map(values.looks_of, [value] * 50, range(50))] == [
            values.looks_of(value, number) for number in range(50)
        ]
    for result in await everywhere(pool, values.nested, name):
        assert values.looks(result) == values.looks(values.nested(name))
    async with shmrpc.pool(1, initializer=tasks.same, initargs=([array],)) as other:
        assert await other.run(values.looks_of_state) == values.looks([array])


@pytest.mark.slow
async def test_an_array_that_is_pickled_reaches_handlers_in_processes() -> None:
    for name, array in values.pickled_arrays().items():
        processes = HandlerProcesses()
        assert await processes.run(values.looks_of, [array], {"by_name": [array]}) == values.looks_of(
            array, by_name=[array]
        )
        assert values.looks(await processes.run(values.nested, [name], {})) == values.looks(values.nested(name))
        await processes.close()


async def test_objects_with_buffers_arrive_as_themselves(pool: shmrpc.Pool) -> None:
    for value in (values.Header(1, 2.5), [values.Header(1, 2.5)]):
        assert await everywhere(pool, values.looks_of, value) == [values.looks_of(value)] * 7
        for result in await everywhere(pool, tasks.same, value):
            assert values.looks(result) == values.looks(value)
    with pytest.raises(shmrpc.EncodeError, match="it cannot be pickled.*pointers"):
        await pool.run(tasks.same, ctypes.c_char_p(b"x"))


async def test_large_arrays_within_a_pickle_lie_in_shared_memory(pool: shmrpc.Pool) -> None:
    array = np.arange(100_000.0)
    assert set(await everywhere(pool, values.is_shared, values.Node(array))) == {True}
    assert await pool.run(tasks.total, array) == array.sum()


async def test_a_task_may_write_into_an_array_within_a_pickle_and_its_caller_into_that_of_a_result(
    pool: shmrpc.Pool,
) -> None:
    array = np.arange(100_000.0)
    for result in await everywhere(pool, values.written, values.Node(array)):
        assert (result.next[0], result.next[-1], array[0]) == (-1, 99_999, 0)
        result.next[0] = 5
        assert result.next[0] == 5


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 2])
async def test_an_argument_that_kills_its_worker_fails_its_own_task(retries: int, tmp_path: Any) -> None:
    for way in ("run", "submit", "map"):
        log = tmp_path / way
        async with shmrpc.pool(1, retries=retries) as pool:
            with pytest.raises(shmrpc.WorkerDied, match=r"exited with status 3 while it ran same\(\)"):
                await _one(pool, way, values.Killer(str(log)))
            assert await pool.run(abs, -1) == 1
        assert len(log.read_text()) == retries + 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["run", "submit", "map"])
async def test_an_argument_that_kills_all_who_read_it_before_they_begin_fails_its_own_task(
    way: str, tmp_path: Any
) -> None:
    """A value that is not pickled is read before the task begins."""
    killer = values.KillerByCodec(str(tmp_path / "log"))
    told = (
        r"exited with status 3 before it began given\(\), as 4 others did: "
        r"check whether its arguments kill the process that reads them$"
    )
    async with shmrpc.pool(2) as pool:
        given = [_one(pool, way, value, values.given) for value in (1, killer, 2)]
        one, died, two = await asyncio.gather(*given, return_exceptions=True)
        assert (one, two) == (1, 2)
        with pytest.raises(shmrpc.WorkerDied, match=told):
            raise died
    assert 5 <= len((tmp_path / "log").read_text()) < 10, "a death beside a task that had begun says nothing"


async def test_of_many_the_one_is_found_whose_argument_kills_all_who_read_it(tmp_path: Any) -> None:
    killer = values.KillerByCodec(str(tmp_path / "log"))
    async with shmrpc.pool(2) as pool:
        assert len([each async for each in pool.map(values.given, range(2000))]) == 2000  # Chunks are large now.
        futures = [pool.submit(values.given, killer if each == 100 else each) for each in range(200)]
        found = await asyncio.gather(*futures, return_exceptions=True)
    assert [each for each in found if isinstance(each, Exception)] == [found[100]]
    assert isinstance(found[100], shmrpc.WorkerDied)


async def _one(pool: shmrpc.Pool, way: str, value: Any, function: Callable[[Any], Any] = tasks.same) -> Any:
    if way == "map":
        (result,) = [each async for each in pool.map(function, [value])]
        return result
    return await getattr(pool, way)(function, value)


async def test_an_argument_that_cannot_be_read_fails_its_own_task(pool: shmrpc.Pool) -> None:
    futures = [pool.submit(tasks.same, value) for value in (1, values.Unreadable(), 2)]
    assert await futures[0] == 1
    with pytest.raises(shmrpc.DecodeError, match=r"^same\(\): an argument cannot be read: ValueError: not me$"):
        await futures[1]
    assert await futures[2] == 2
    for run in (pool.run(tasks.same, values.Unreadable()), pool.run(values.is_same_later, 1, values.Unreadable())):
        with pytest.raises(shmrpc.DecodeError, match="an argument cannot be read: ValueError: not me"):
            await run


async def test_an_error_is_of_the_task_s_function_and_in_its_terms(pool: shmrpc.Pool) -> None:
    with pytest.raises(shmrpc.EncodeError, match=r"^same\(\): an argument cannot be sent: it cannot be pickled: Type"):
        await pool.run(tasks.same, threading.Lock())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["list", "pickle", "map"])
async def test_arguments_for_which_a_worker_has_no_memory(way: str) -> None:
    many: list[Any] = list(range(300, 4_000_300))
    if way == "pickle":
        many.append(many)
    async with shmrpc.pool(1, memory="128MiB") as pool:
        pid = pool.stats().workers[0].pid
        for _ in range(2):
            with pytest.raises(MemoryError):
                await (_one(pool, "map", many) if way == "map" else pool.run(len, many))
        assert await pool.run(abs, -1) == 1
        assert pool.stats().workers[0].pid == pid


async def test_a_plain_task_may_have_a_loop_of_its_own(pool: shmrpc.Pool) -> None:
    assert await everywhere(pool, values.in_own_loop, 1) == [2] * 7
    assert await pool.run(values.in_own_loop, value=1) == 2


async def test_an_initializer_may_have_a_loop_of_its_own() -> None:
    async with shmrpc.pool(1, initializer=values.in_own_loop, initargs=(4,)) as pool:
        assert await pool.run(values.state) == 5


async def test_initargs_that_cannot_be_sent_end_the_pool_at_once() -> None:
    with pytest.raises(shmrpc.EncodeError, match=r"^initargs: .*inheritance.*multiprocessing.Manager\(\)"):
        async with shmrpc.pool(1, initializer=tasks.same, initargs=(multiprocessing.Lock(),)):
            pass


async def test_an_exception_that_pickle_cannot_make_again_keeps_its_class(pool: shmrpc.Pool) -> None:
    with pytest.raises(values.Choosy, match="^1$") as caught:
        await pool.run(values.fail_choosily)
    assert caught.value.b == 2


async def test_the_error_of_an_unreadable_result_names_the_task(pool: shmrpc.Pool) -> None:
    told = r"^make_unreadable\(\): the result cannot be read: .*not me"
    for way in (pool.run(values.make_unreadable, 1), anext(pool.map(values.make_unreadable, [1]))):
        with pytest.raises(shmrpc.DecodeError, match=told):
            await way


async def test_a_task_whose_result_cannot_be_sent_or_read_is_run_once(pool: shmrpc.Pool, tmp_path: Any) -> None:
    log = tmp_path / "log"
    for kind in ("unsendable", "unreadable"):
        log.unlink(missing_ok=True)
        await asyncio.gather(*(pool.submit(values.noted, str(log), "") for _ in range(50)))
        futures = [pool.submit(values.noted, str(log), kind if each == 20 else "") for each in range(50)]
        failed = [each for each in await asyncio.gather(*futures, return_exceptions=True) if each is not None]
        assert [type(each) for each in failed] in ([shmrpc.EncodeError], [shmrpc.DecodeError]), failed
        assert len(log.read_text()) == 100


async def test_texts_beyond_the_limit_of_calls(pool: shmrpc.Pool) -> None:
    text = "x" * (65 << 20)
    assert await pool.run(len, text) == len(text)
    assert len(await pool.run(tasks.same, [text])) == 1
    assert [len(each) async for each in pool.map(tasks.same, [text])] == [len(text)]


def test_the_first_thing_that_people_type() -> None:
    with pytest.raises(TypeError, match="no option max_workers; did you mean workers, its first argument"):
        shmrpc.pool(max_workers=3)  # type: ignore[call-arg]


async def test_managers_of_multiprocessing_know_workers() -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        shared = manager.dict()
        async with shmrpc.pool(1) as pool:
            await pool.run(values.put, shared, "a", 1)
        assert dict(shared) == {"a": 1}
