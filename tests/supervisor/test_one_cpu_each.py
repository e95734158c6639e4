"""A server and a client that may use one CPU each, from their start: to keep a process on a core is usual."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Makes calls until most of 500 were answered without a sleep; how many sleeps these took.
PROGRAM = """
import os, resource, signal, sys

cpus = sorted(os.sched_getaffinity(0))
server = os.fork()
os.sched_setaffinity(0, {cpus[0 if server else -1]})

import asyncio
import shmrpc
import shmrpc.sync

service = shmrpc.Service("one.cpu")


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


async def serve() -> None:
    async with shmrpc.serve(service):
        await asyncio.Event().wait()


def sleeps() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


if not server:
    signal.alarm(120)
    asyncio.run(serve())
try:
    with shmrpc.sync.connect("one.cpu", timeout=60) as client:
        for _ in range(300):
            before = sleeps()
            assert [client.add(i, 1) for i in range(500)] == list(range(1, 501))
            slept = sleeps() - before
            if slept < 100:
                break
        print(slept)
finally:
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both sides always share the only CPU")
def test_answers_from_another_cpu_are_looked_for_by_who_may_use_one() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100
