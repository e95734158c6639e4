"""Programs that gevent or eventlet has patched: what works there, and what says that it cannot."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmrpc.basics.green_threads import run_in_greenlet

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all({})",
    "eventlet": "import eventlet; eventlet.monkey_patch({})",
}
#: A program that works although it was patched.
WORKS = """
import asyncio, os
import shmrpc
name = f"green-{os.getpid()}"

async def main():
    service = shmrpc.Service(name)

    @service.endpoint
    def add(a: int, b: int) -> int:
        return a + b

    @service.endpoint(run_in="thread")
    def sleep(a: int) -> int:
        return a

    @service.endpoint
    async def blocks(size: int) -> bytes:
        return bytes(size)

    async with shmrpc.serve(service), shmrpc.connect(name) as client:
        assert await client.add(1, 2) == 3
        assert await client.sleep(1) == 1
        assert len(await client.blocks(1 << 20)) == 1 << 20
    async with shmrpc.pool(1) as pool:
        assert await pool.run(abs, -1) == 1
        assert await pool.submit(len, bytes(1 << 20)) == 1 << 20
    async with shmrpc.queue(name) as queue:
        await queue.put(1)
        assert await queue.get() == 1

if __name__ == "__main__":
    asyncio.run(main())
    with shmrpc.sync.queue(name) as queue, shmrpc.sync.Lock(name + "-lock"):
        queue.put(2)
        assert queue.get() == 2
    print("works")
"""
#: Blocking pools in such a program.
POOLS = """
import os, shmrpc

def fail():
    raise ValueError("own")

if __name__ == "__main__":
    try:
        with shmrpc.sync.pool(1) as pool, shmrpc.sync.pool(1) as other:
            assert pool.submit(os.getpid).result() != other.submit(os.getpid).result()
            assert list(pool.map(abs, range(-100, 0))) == list(range(100, 0, -1))
            assert pool.submit(len, bytes(1 << 20)).result() == 1 << 20
            assert repr(pool.submit(fail).exception()) == "ValueError('own')"
            assert pool.broadcast(b"x" * 5000) == b"x" * 5000
        left = shmrpc.sync.pool(1)
        left.submit(abs, -1).add_done_callback(lambda future: print("works", future.result()))
    except shmrpc.LocalProtocolError as error:
        print(error)
"""


def run(folder: Path, by: str, text: str, options: str = "") -> str:
    """Run a program that the package patches first; return its output."""
    if importlib.util.find_spec(by) is None:  # An import here would change the other tests of this process.
        pytest.skip(f"{by} is not installed")
    program = folder / "program.py"
    program.write_text(f"{PATCHES[by].format(options)}\n{text}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, env=environment, cwd=folder
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("by", PATCHES)
def test_loops_and_what_needs_no_thread_work(tmp_path: Path, by: str) -> None:
    assert run(tmp_path, by, WORKS) == "works\n"


def test_blocking_pools_work_under_gevent(tmp_path: Path) -> None:
    assert run(tmp_path, "gevent", POOLS) == "works 1\n"


#: Gevent's greenlets go on while one of them waits for a task.
GOES_ON = """
import time, gevent, shmrpc

if __name__ == "__main__":
    with shmrpc.sync.pool(1) as pool:
        turns = []
        other = gevent.spawn(lambda: [turns.append(gevent.sleep(0)) for _ in range(100)])
        pool.submit(time.sleep, 0.5).result()
        print(len(turns))
"""


def test_other_greenlets_go_on_while_one_waits_for_a_task(tmp_path: Path) -> None:
    assert run(tmp_path, "gevent", GOES_ON) == "100\n"


@pytest.mark.parametrize(("by", "options"), [("eventlet", ""), ("gevent", "thread=False")])
def test_a_blocking_pool_that_can_have_no_thread_says_how_to_patch(tmp_path: Path, by: str, options: str) -> None:
    told = run(tmp_path, by, POOLS, options)
    assert told.startswith(f"shmrpc.sync.pool() needs a thread, and {by} has replaced")
    assert f"with {by}'s" in told
    if by == "eventlet":
        assert run(tmp_path, by, POOLS, "thread=False") == "works 1\n"


async def test_the_loop_that_ran_before_a_loop_of_a_greenlet_runs_after_it() -> None:
    ran = []

    async def main() -> None:
        await asyncio.sleep(0)
        ran.append(asyncio.get_running_loop())

    outer = asyncio.get_running_loop()
    run_in_greenlet(main())
    assert len(ran) == 1 and ran[0] is not outer
    assert asyncio.get_running_loop() is outer
