"""Pools for threads: an executor as those of the standard library are."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
from tests.helpers import pool_tasks as tasks
from tests.pools import pool_values as values


@pytest.fixture(scope="module")
def pool() -> Iterator[shmrpc.sync.Pool]:
    with shmrpc.sync.pool(2, grace=0.5) as made:
        yield made


def test_a_blocking_pool_is_an_executor(pool: shmrpc.sync.Pool) -> None:
    assert isinstance(pool, concurrent.futures.Executor)
    future = pool.submit(tasks.add, 1, b=2)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result() == 3
    assert pool.submit(tasks.later, 5).result() == 5
    assert pool.submit(tasks.Counter(3).plus, 4).result() == 7


def test_map_gives_results_in_order(pool: shmrpc.sync.Pool) -> None:
    assert list(pool.map(tasks.add, range(3000))) == list(range(1, 3001))
    assert list(pool.map(tasks.add, range(5), range(5), chunksize=2)) == [0, 2, 4, 6, 8]
    assert list(pool.map(tasks.add, [])) == []
    with pytest.raises(ValueError, match="five"):
        list(pool.map(tasks.fail_at, range(10)))


def test_map_has_a_timeout(pool: shmrpc.sync.Pool) -> None:
    assert pool.submit(tasks.slow, 0.0).result(30) == 0.0  # Workers have imported what that needs.
    results = pool.map(tasks.slow, [0.0, 30.0], timeout=0.5)
    assert next(results) == 0.0
    with pytest.raises(TimeoutError):
        next(results)
    assert pool.submit(tasks.add, 1).result(30) == 2


def test_map_takes_async_functions(pool: shmrpc.sync.Pool) -> None:
    assert list(pool.map(values.halved, range(0, 1000, 2))) == list(range(500))
    assert list(pool.map(values.halved, [])) == []
    told: list[tuple[int, int | None]] = []
    assert list(pool.map(values.halved, [2, 4], on_progress=lambda *each: told.append(each))) == [1, 2]
    assert told[-1] == (2, 2)
    results = pool.map(values.halved, [2, 3, 4])
    assert next(results) == 1
    with pytest.raises(ValueError, match="3 is odd"):
        next(results)
    slow = pool.map(values.sleep_long, [0, 1], timeout=5)
    assert next(slow) == 0
    with pytest.raises(TimeoutError):
        next(pool.map(values.sleep_long, [1], timeout=0.01))
    slow.close()  # type: ignore[attr-defined]
    assert pool.submit(values.halved, 2).result(30) == 1


def test_a_pool_within_a_worker_takes_async_functions(pool: shmrpc.sync.Pool) -> None:
    assert pool.submit(values.nested_async).result(30) == [2, [1, 3], "3 is odd"]


def test_arrays(pool: shmrpc.sync.Pool) -> None:
    array = np.ones(200_000)
    assert list(pool.map(tasks.total, [array, array])) == [200_000.0] * 2


def test_many_threads_submit_at_once(pool: shmrpc.sync.Pool) -> None:
    results: dict[int, list[int]] = {}

    def submit(number: int) -> None:
        futures = [pool.submit(tasks.add, number, b=value) for value in range(300)]
        results[number] = [future.result() for future in futures]

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [number + value for value in range(300)] for number in range(4)}


def test_the_standard_library_waits_for_its_futures(pool: shmrpc.sync.Pool) -> None:
    futures = [pool.submit(tasks.add, value) for value in range(50)]
    assert {future.result() for future in concurrent.futures.as_completed(futures)} == set(range(1, 51))
    done, left = concurrent.futures.wait([pool.submit(tasks.add, 1)])
    assert len(done) == 1
    assert not left


def test_an_event_loop_runs_tasks_in_it(pool: shmrpc.sync.Pool) -> None:
    async def run() -> int:
        return await asyncio.get_running_loop().run_in_executor(pool, tasks.add, 41)

    assert asyncio.run(run()) == 42


@pytest.mark.parametrize("kind", ["own", "value", "unpicklable"])
def test_exceptions_arrive(pool: shmrpc.sync.Pool, kind: str) -> None:
    expected = {"own": tasks.Own, "value": ValueError, "unpicklable": shmrpc.RemoteError}[kind]
    with pytest.raises(expected):
        pool.submit(tasks.fail, kind).result()


def test_a_future_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    with shmrpc.sync.pool(1) as pool:
        pool.submit(tasks.slow, 0.3)
        future = pool.submit(tasks.note, str(tmp_path / "notes"), 1)
        assert future.cancel()
    assert not (tmp_path / "notes").exists()


def test_at_its_end_it_waits_for_all_tasks() -> None:
    with shmrpc.sync.pool(2) as pool:
        futures = [pool.submit(tasks.slow, 0.02) for _ in range(20)]
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(tasks.add, 1)
    pool.shutdown()


def test_a_shutdown_can_cancel_what_waits() -> None:
    pool = shmrpc.sync.pool(1)
    futures = [pool.submit(tasks.slow, 0.1) for _ in range(50)]
    time.sleep(0.05)
    pool.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)
    assert sum(future.cancelled() for future in futures) > 40


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [False, True])
def test_an_exception_ends_what_has_not_begun(by_name: bool) -> None:
    with pytest.raises(KeyboardInterrupt), shmrpc.sync.pool(1) as pool:
        list(pool.map(tasks.slow, [0.0] * 10_000))  # From now on they are taken for quick ones, many to a chunk.
        began = time.monotonic()
        futures = [
            pool.submit(tasks.slow, seconds=0.2) if by_name else pool.submit(tasks.slow, 0.2) for _ in range(500)
        ]
        futures[0].result(60)
        begun = (time.monotonic() - began) / 0.2  # On a busy machine more than one may have been done by then.
        raise KeyboardInterrupt
    assert all(future.done() for future in futures)
    assert sum(future.cancelled() for future in futures) > 490 - begun


CLOSED = """
import math, os, sys
import shmrpc

if __name__ == "__main__":
    with shmrpc.sync.pool(2) as pool:
        assert pool.submit(math.factorial, 5).result() == 120
        assert list(pool.map(math.isqrt, range(100)))[99] == 9
    os.write(int(sys.argv[1]), b"done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_program_may_have_closed_its_standard_descriptors(closed: list[int], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CLOSED)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    shut = " ".join(f"{number}{'<' if not number else '>'}&-" for number in closed)
    command = f"exec {sys.executable} {program} {writer} {shut}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(["sh", "-c", command], pass_fds=[writer], env=environment, timeout=60)
    os.close(writer)
    with open(reader, "rb") as told:
        assert (ran.returncode, told.read()) == (0, b"done")


INTERRUPTED = """
import os, signal, sys, threading, time
import shmrpc

def begin():
    os.kill(int(os.environ["MASTER"]), signal.SIGINT)
    time.sleep(1000)

if __name__ == "__main__":
    os.environ["MASTER"] = str(os.getpid())
    try:
        shmrpc.sync.pool(1, initializer=begin, grace=0.1)
    except KeyboardInterrupt:
        print([thread.name for thread in threading.enumerate()])
"""


def test_a_pool_whose_start_is_interrupted_has_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, program], env=environment, timeout=60, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "['MainThread']\n", "")


def test_a_worker_that_dies_fails_its_task_alone() -> None:
    with shmrpc.sync.pool(2) as pool:
        dying = pool.submit(tasks.die)
        futures = [pool.submit(tasks.add, value) for value in range(100)]
        with pytest.raises(shmrpc.WorkerDied):
            dying.result(60)
        assert [future.result(60) for future in futures] == list(range(1, 101))


def test_a_pool_that_cannot_begin_says_why() -> None:
    with pytest.raises(concurrent.futures.BrokenExecutor, match="the model is not there"):
        shmrpc.sync.pool(1, initializer=tasks.broken)


def test_a_forked_child_gets_an_error(pool: shmrpc.sync.Pool) -> None:
    pid = os.fork()
    if not pid:
        try:
            pool.submit(tasks.add, 1)
        except shmrpc.LocalProtocolError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.submit(tasks.add, 1).result(30) == 2


PROGRAM = """
import shmrpc

class Own:
    def __init__(self, value):
        self.value = value

def double(own):
    return Own(own.value * 2)

if __name__ == "__main__":
    pool = shmrpc.sync.pool(2)
    print([each.value for each in pool.map(double, [Own(1), Own(2)])])
    future = pool.submit(lambda: "done at the end")
    future.add_done_callback(lambda future: print(future.result()))
"""


def test_a_program_s_own_functions_and_classes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[2, 4]\ndone at the end\n", done.stdout + done.stderr
    assert done.returncode == 0


READ = """
import shmrpc

class Own:
    def __init__(self, value):
        self.value = value

def double(own):
    assert isinstance(own, Own)
    return Own(own.value * 2)

class Wrong(Exception):
    pass

def fail():
    raise Wrong("own")

with shmrpc.sync.pool(1) as pool:
    results = list(pool.map(double, [Own(1), Own(2)]))
    print([each.value for each in results], all(isinstance(each, Own) for each in results))
    print(pool.submit(lambda: 3).result(), pool.submit(double, pool.broadcast(Own("x" * 5000))).result().value[:1])
    try:
        pool.submit(fail).result()
    except Wrong as wrong:
        print("caught", wrong)
"""


@pytest.mark.parametrize("how", ["stdin", "-c"])
def test_a_program_without_a_file_has_its_functions_and_classes_too(tmp_path: Path, how: str) -> None:
    command, told = ([sys.executable, "-c", READ], "") if how == "-c" else ([sys.executable], READ)
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("[2, 4] True\n3 x\ncaught own\n", 0), done.stderr


def test_a_pool_that_is_shut_down_refuses_calls() -> None:
    pool = shmrpc.sync.pool(1)
    pool.shutdown()
    tasks_: list[Callable[[], object]] = [
        lambda: pool.map(tasks.add, [1]),
        lambda: pool.submit(tasks.add, 1),
        lambda: pool.broadcast(b""),
    ]
    for ask in tasks_:
        with pytest.raises(RuntimeError, match="after shutdown"):
            ask()
    others: list[Callable[[], object]] = [pool.stats, lambda: pool.resize(2)]
    for ask in others:
        with pytest.raises(RuntimeError, match="the pool is shut down"):
            ask()


def test_a_function_that_cannot_be_sent_fails_its_future(pool: shmrpc.sync.Pool) -> None:
    held = threading.Lock()
    with pytest.raises(
        shmrpc.EncodeError, match=r"<lambda>\(\) cannot be sent to a worker: .* cannot pickle '_thread.lock'"
    ):
        pool.submit(lambda: held).result(30)


def test_options_are_those_of_pool() -> None:
    wrong: dict[str, Any] = {"retries": -1}
    with pytest.raises(ValueError, match="retries: expected 0 or more"):
        shmrpc.sync.pool(1, **wrong)


def test_progress_is_reported(pool: shmrpc.sync.Pool) -> None:
    told: list[tuple[int, int | None]] = []
    results = pool.map(tasks.add, range(500), on_progress=lambda ended, total: told.append((ended, total)))
    assert list(results) == list(range(1, 501))
    assert told[0] == (0, 500) and told[-1] == (500, 500)


def test_the_results_of_an_async_function_are_freed_without_the_garbage_collector() -> None:
    with shmrpc.sync.pool(1) as pool:
        gc.collect()
        gc.disable()
        try:
            assert list(pool.map(tasks.later, range(3), on_progress=lambda ended, total: None)) == [0, 1, 2]
            assert not [each for each in gc.get_objects() if type(each).__name__ == "AsyncMapResults"]
        finally:
            gc.enable()


def test_an_error_at_the_end_of_a_pool_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    pool = shmrpc.sync.pool(1)
    engine, error = pool._pool._engine, RuntimeError("of the end")
    close = engine.close

    async def fail(*, is_patient: bool) -> None:
        await close(is_patient=is_patient)
        raise error

    monkeypatch.setattr(engine, "close", fail)
    pool.shutdown()
    assert shown == [error]


class _Interrupted:
    """A loop whose caller is interrupted by a signal handler."""

    def call_soon_threadsafe(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_a_submit_that_is_interrupted_leaves_the_pool_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with shmrpc.sync.pool(1) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(pool, "_loop", _Interrupted())
            with pytest.raises(KeyboardInterrupt):
                pool.submit(abs, -1)
        assert pool.submit(abs, -2).result(60) == 2


async def _wait_forever() -> None:
    await asyncio.Event().wait()


def test_a_call_that_the_loop_of_a_pool_has_left_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = shmrpc.sync.pool(1)
    with monkeypatch.context() as patched:  # A loop that ends before it begins the call.
        patched.setattr(asyncio, "run_coroutine_threadsafe", lambda coroutine, loop: concurrent.futures.Future())
        left = pool._loop_thread.call(_wait_forever())
    pool.shutdown()
    with pytest.raises(RuntimeError, match="the pool is shut down"):
        left.result(0)
