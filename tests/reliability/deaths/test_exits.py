"""A program ends with calls under way: it ends at once, with its own exit code, without noise, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

import shmrpc
from tests.helpers.server_process import ServerProcess, eventually
from tests.reliability import figures
from tests.reliability.watched_service import as_new, held_by

TARGET = "tests.reliability.watched_service:service"

#: The common beginning of the programs.
PRELUDE = """
    import asyncio, atexit, os, sys, threading, time
    import shmrpc
    NAME = "tested.watched"
    async def begun(client):
        await client.add(1, 2)  # The server has all earlier requests after this call.
"""

#: Programs, and their exit codes.
PROGRAMS = {
    "asyncio-run-ends-with-pending-tasks": (
        """
        async def main():
            client = await shmrpc.connect(NAME)
            for _ in range(10):
                asyncio.ensure_future(client.wait_for("never"))
            streams = [client.items_after("never") for _ in range(3)]
            for stream in streams:
                await anext(stream)
                asyncio.ensure_future(anext(stream))
            await begun(client)
        asyncio.run(main())
        """,
        0,
    ),
    "sys-exit-in-the-main-task": (
        """
        async def main():
            async with shmrpc.connect(NAME, reconnect=True) as client:
                asyncio.ensure_future(client.wait_for("never"))
                await begun(client)
                sys.exit(5)
        asyncio.run(main())
        """,
        5,
    ),
    "sys-exit-with-the-client-open": (
        """
        async def main():
            client = await shmrpc.connect(NAME, reconnect=True)
            asyncio.ensure_future(client.wait_for("never"))
            await begun(client)
            sys.exit(5)
        asyncio.run(main())
        """,
        5,
    ),
    "a-stream-left-open": (
        """
        async def main():
            global kept
            client = await shmrpc.connect(NAME)
            stream = client.flood(100)
            await anext(stream)
            kept = client, stream
        asyncio.run(main())
        """,
        0,
    ),
    "a-stream-to-the-server-under-way": (
        """
        async def items():
            while True:
                yield bytes(100)
        async def main():
            client = await shmrpc.connect(NAME)
            asyncio.ensure_future(client.total(items()))
            await begun(client)
            await asyncio.sleep(0.05)
        asyncio.run(main())
        """,
        0,
    ),
    "os-exit": (
        """
        async def main():
            client = await shmrpc.connect(NAME)
            asyncio.ensure_future(client.wait_for("never"))
            await begun(client)
            os._exit(5)
        asyncio.run(main())
        """,
        5,
    ),
    "daemon-threads-wait": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        for _ in range(4):
            threading.Thread(target=client.wait_for, args=("never",), daemon=True).start()
        client.add(1, 2)
        """,
        0,
    ),
    "daemon-threads-call": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        def work():
            while True:
                client.echo(bytes(10_000))
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        client.add(1, 2)
        sys.exit(5)
        """,
        5,
    ),
    "threads-that-are-waited-for": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        ended = []
        def work():
            try:
                client.wait_for("never")
            except shmrpc.ConnectionLost:
                ended.append(True)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        client.add(1, 2)
        client.close()
        for thread in threads:
            thread.join()
        sys.exit(len(ended))
        """,
        4,
    ),
    "a-thread-that-ends-the-process": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        def leave():
            client.add(1, 2)
            os._exit(5)
        threading.Thread(target=leave).start()
        client.wait_for("never")
        """,
        5,
    ),
    "a-call-as-the-interpreter-ends": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        atexit.register(lambda: os._exit(client.add(2, 3)))
        """,
        5,
    ),
    "a-plain-stream-left-open": (
        """
        client = shmrpc.sync.connect(NAME).__enter__()
        stream = client.flood(100)
        next(stream)
        sys.exit(5)
        """,
        5,
    ),
    "views-of-shared-memory": (
        """
        import numpy as np
        client = shmrpc.sync.connect(NAME).__enter__()
        built = client.empty(1 << 20, "uint8")
        built[:] = 1
        back, raw = client.echo(built), client.echo(bytes(1 << 20))
        """,
        0,
    ),
    "a-server-in-the-same-loop": (
        """
        from tests.helpers.services import service
        async def main():
            server = shmrpc.serve(service)
            await server.__aenter__()
            client = await shmrpc.connect("tested")
            asyncio.ensure_future(client.sleep(60))
            await client.add(1, 2)
            sys.exit(5)
        asyncio.run(main())
        """,
        5,
    ),
}

_times: list[float] = []


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return as_new(shared_server)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends_as_it_would_without_calls_in_flight(server: ServerProcess, program: str) -> None:
    source, code = PROGRAMS[program]
    with shmrpc.sync.connect("tested.watched") as client:
        assert client.add(1, 2) == 3
        base = held_by(server.pid)
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(source)],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ,
        )
        _times.append(time.monotonic() - start)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
        assert eventually(lambda: held_by(server.pid)["descriptors"] == base["descriptors"], 30)
        assert client.add(1, 2) == 3
    figures.note("programs that end with calls under way", from_start_to_end=figures.times(_times))
