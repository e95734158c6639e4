"""The start of workers: by a fork server without threads and open files, or by exec; the death of a fork server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc.pools.processes import fork_server_client
from shmrpc.pools.processes.python_process import start_python
from shmrpc.pools.processes.spawner import Spawner, SpawnSettings
from shmrpc.wire import control
from tests.helpers import pool_tasks as tasks
from tests.helpers.processes import gone, parent_of

#: Seconds for what takes a moment.
PATIENCE = 60

PROGRAM = """
import asyncio, os, sys, threading, time
import shmrpc
from tests.helpers import pool_tasks as tasks

LOOP = "either"

{at_import}

def parent():
    return os.getppid(), at_work()

def at_work():
    return "at work"

async def main():
    async with shmrpc.pool(2) as pool:
        print(os.getpid(), *await pool.run(parent), flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def both(pool: shmrpc.Pool) -> list[int]:
    """Wait for two ready workers, and return their process ids."""
    async with asyncio.timeout(PATIENCE):
        while len(workers := pool.stats().workers) < 2:
            await asyncio.sleep(0.01)
    return [worker.pid for worker in workers]


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def files_of(pid: int) -> set[str]:
    """Return the open files of a process."""
    return {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}


def run_program(tmp_path: Path, at_import: str, **environment: str) -> tuple[int, int]:
    """Run a program with a pool; return its process id, and that of the parent of a worker."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(at_import=at_import))
    ran = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    master, of_worker, *rest = ran.stdout.split()
    assert rest == ["at", "work"]
    return int(master), int(of_worker)


async def test_workers_are_forked_from_one_that_has_nothing_open() -> None:
    async with shmrpc.pool(2) as pool:
        one, two = await both(pool)
        assert parent_of(one) == parent_of(two) != os.getpid()
        own = files_of(parent_of(one))
        assert sum(each.startswith(("pipe:", "socket:")) for each in own) >= 2
        for found in await asyncio.gather(*[pool.run(tasks.open_files) for _ in range(2)]):
            assert sum("pidfd" in each for each in found) == 2, found  # The master's, and the fork server's.
            shared = {each for each in found[3:] if each.startswith(("pipe:", "socket:"))} & own
            assert [each.partition(":")[0] for each in shared] == ["pipe"], found  # Which tells of the master's end.
        # Each is the first of its group, in a session without a terminal, whose signals are the master's.
        assert (os.getpgid(one), os.getpgid(two)) == (one, two)
        assert os.getsid(one) == os.getsid(two) == parent_of(one)


@pytest.mark.slow
async def test_a_pool_that_is_closed_while_a_worker_connects_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(8):
        async with shmrpc.pool(2) as pool:
            one, _ = await both(pool)
            os.kill(one, signal.SIGKILL)
            await wait_until(lambda: one not in (worker.pid for worker in pool.stats().workers))  # noqa: B023
            await asyncio.sleep(0.01)
    assert "refused" not in capfd.readouterr().err


async def test_a_worker_may_take_longer_to_answer_than_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have to import many modules first. Here a server's time limit is over at once."""
    monkeypatch.setattr(control, "STEP_TIMEOUT", 0.0)
    async with shmrpc.pool(1) as pool:
        assert await pool.run(os.getpid) != os.getpid()


async def test_workers_draw_numbers_of_their_own() -> None:
    async with shmrpc.pool(2) as pool:
        await both(pool)
        drawn = await asyncio.gather(*[pool.run(tasks.drawn, 0.2) for _ in range(2)])
        assert len({number for each in drawn for number in each}) == 4, drawn


@pytest.mark.parametrize(
    ("end", "told"),
    [(("die",), "was killed by SIGKILL"), (("leave", 7), "exited with status 7")],
    ids=["by a signal", "by its own"],
)
async def test_the_error_names_the_exit_of_a_worker(end: tuple[str, int], told: str) -> None:
    name, *args = end
    async with shmrpc.pool(2) as pool:
        with pytest.raises(shmrpc.WorkerDied, match=told):
            await pool.run(getattr(tasks, name), *args)
        await wait_until(lambda: pool.stats().replaced == 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_fork_server_that_is_gone_is_replaced_when_it_is_needed(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server_client, "_FORK_TIMEOUT", 0.5)
    async with shmrpc.pool(2) as pool:
        one, two = await both(pool)
        first = parent_of(one)
        os.kill(first, how)
        assert await pool.run(tasks.add, 1) == 2  # Workers do without.
        os.kill(one, signal.SIGKILL)
        await wait_until(lambda: one not in (worker.pid for worker in pool.stats().workers))
        other = ({*await both(pool)} - {two}).pop()
        assert parent_of(other) not in (first, os.getpid())
        await wait_until(lambda: gone(first))
        assert await asyncio.gather(*[pool.submit(tasks.add, each) for each in range(20)]) == [*range(1, 21)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_import",
    [
        "threading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
        "kept = open(os.devnull)",
        "if __name__ != '__main__' and not shmrpc.pools.worker.current_worker._current: raise ValueError('forked')",
    ],
    ids=["a thread", "a file", "an error"],
)
def test_a_program_that_cannot_be_imported_beforehand_is_imported_by_each_worker(
    tmp_path: Path, at_import: str
) -> None:
    master, of_worker = run_program(tmp_path, at_import)
    assert of_worker != master


@pytest.mark.slow
def test_a_program_that_exits_at_its_import_breaks_the_pool(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(at_import="if __name__ != '__main__': os._exit(3)"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert ran.returncode == 1 and "PoolBroken: the pool is broken: 5 workers" in ran.stderr


async def test_looks_for_the_ends_of_workers_take_no_answer_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server_client, "_FORK_TIMEOUT", 1.0)
    async with shmrpc.pool(2) as pool:
        one, _ = await both(pool)
        fork_server = parent_of(one)
        stop = asyncio.Event()

        def look() -> None:
            process = pool._engine.workers.workers[0].process if pool._engine.workers.workers else None
            while process is not None and not stop.is_set():
                process.read_status()

        looking = asyncio.create_task(asyncio.to_thread(look))
        try:
            for _ in range(10):
                victim = pool.stats().workers[-1].pid
                os.kill(victim, signal.SIGKILL)
                await wait_until(lambda victim=victim: victim not in (each.pid for each in pool.stats().workers))  # type: ignore[misc]
                await both(pool)
        finally:
            stop.set()
            await looking
        assert {parent_of(worker.pid) for worker in pool.stats().workers} == {fork_server}


def test_a_fork_server_that_begins_with_threads_is_none(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    master, of_worker = run_program(tmp_path, "", PYTHONPATH=path)
    assert of_worker == master


def test_a_fork_server_that_still_imports_goes_with_its_pool(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    program = tmp_path / "program.py"
    at_import = f"""
if __name__ != "__main__":
    open({str(imports)!r}, "w").write(str(os.getpid()))
    while True:  # The GIL is held, and no signal's handler of Python's would run.
        sum(range(10**9))
"""
    program.write_text(PROGRAM.format(at_import=at_import))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, program], env=environment) as master:
        try:
            end = time.monotonic() + PATIENCE
            while not (imports.exists() and imports.read_text()):
                assert master.poll() is None and time.monotonic() < end
                time.sleep(0.01)
        finally:
            master.kill()
    end = time.monotonic() + PATIENCE
    while not gone(int(imports.read_text())):
        assert time.monotonic() < end, "the fork server has outlived its master"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_pool_that_is_left_while_its_fork_server_imports_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import asyncio, time
import shmrpc

if __name__ != "__main__":
    time.sleep(1000)

async def main():
    try:
        async with asyncio.timeout(1), shmrpc.pool(2):
            pass
    except TimeoutError:
        print("left")

if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=True
    )
    assert ran.stdout == "left\n" and not ran.stderr


def run_anywhere(arguments: list[str], folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
    )


#: A program whose worker tells what it was given.
TOLD = """
import asyncio, os, sys
import shmrpc
{at_import}

def told():
    return {value}

async def main():
    async with shmrpc.pool(1) as pool:
        print(*await pool.run(told))

if __name__ == "__main__":
    {before}
    asyncio.run(main())
"""


@pytest.mark.parametrize("at_import", ["", "kept = open(os.devnull)"], ids=["forked", "by itself"])
def test_workers_have_the_program_s_arguments(tmp_path: Path, at_import: str) -> None:
    many = ["x" * 100] * 10_000  # More than a packet holds.
    text = TOLD.format(
        at_import=f"MODE = sys.argv[1]; {at_import}", value="(MODE, len(sys.argv), sys.argv[0])", before="pass"
    )
    (tmp_path / "program.py").write_text(text)
    ran = run_anywhere(["program.py", "mode", *many], tmp_path)
    assert ran.stdout == "mode 10002 program.py\n", ran.stderr


@pytest.mark.parametrize("before", ["", "os.remove(__file__)"], ids=["read from a pipe", "removed"])
def test_a_program_that_is_no_file_has_its_functions_in_workers(tmp_path: Path, before: str) -> None:
    text = TOLD.format(at_import="", value="('at', 'work')", before=before or "pass")
    (tmp_path / "program.py").write_text(text)
    ran = run_anywhere(["program.py"], tmp_path) if before else run_anywhere([], tmp_path, text)
    assert ran.stdout == "at work\n", ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at_import", "before", "told"),
    [
        ("import pooled", "", r"module 'pooled' makes a pool as it is imported, and workers import it too: make the"),
        ("made = shmrpc.pool(1)", "", r"module '__main__' makes a pool as it is imported, and workers import it too"),
        (
            "sys.path.insert(0, 'lib'); import beside",
            "os.chdir('/')",
            r"No module named 'beside'\): check sys.path: a worker imports from there, with relative entries "
            r"below the working directory, /$",
        ),
        (
            "open(sys.argv[0] + '.txt').close()",
            "os.remove('program.py.txt')",
            r"No such file or directory: '.*program.py.txt'\): make sure that the file is where it was .*$",
        ),
        (
            "assert __name__ == '__main__'",
            "",
            r"\(AssertionError: \): put what is to run in the program alone behind `if",
        ),
        (
            "",
            "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
            r"the working directory of this process has been",
        ),
    ],
    ids=["module", "program", "relative path", "file", "else", "working directory"],
)
def test_the_error_names_the_reason_why_workers_cannot_import_the_program(
    tmp_path: Path, at_import: str, before: str, told: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside.py").touch()
    (tmp_path / "pooled.py").write_text("import shmrpc\nmade = shmrpc.pool(1)\n")
    (tmp_path / "program.py.txt").touch()
    (tmp_path / "program.py").write_text(TOLD.format(at_import=at_import, value="()", before=before or "pass"))
    ran = run_anywhere(["program.py"], tmp_path)
    assert ran.returncode == 1
    assert re.search(told, ran.stderr, re.MULTILINE), ran.stderr


def test_a_pool_that_is_closed_while_its_fork_server_is_started_starts_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawner = Spawner(SpawnSettings({}))

    def start_and_stop(*arguments: Any) -> Any:
        process = start_python(*arguments)
        spawner.stop()
        return process

    monkeypatch.setattr("shmrpc.pools.processes.fork_server_client.start_python", start_and_stop)
    try:
        with pytest.raises(OSError, match="the pool is closed"):
            spawner.spawn(0)
    finally:
        spawner.close()
