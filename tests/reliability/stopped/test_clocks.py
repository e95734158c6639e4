"""Deadlines depend only on CLOCK_MONOTONIC: setting the clock makes no wait longer or shorter."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import Script, ServerProcess
from tests.helpers.stopped_processes import stopped
from tests.helpers.time_bound import bounded

TARGET = "tests.reliability.watched_service:service"

ROOT = Path(shmrpc.__file__).parent


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


#: Functions that read or wait on the clock that users can set, in Python and in Rust.
WALL_CLOCK = re.compile(
    r"\btime\.time(_ns)?\(|\bfrom time import .*\btime\b|CLOCK_REALTIME|\bsem_timedwait\b|SystemTime\b|gettimeofday"
    r"|datetime\.(now|today|utcnow)\(|pthread_cond_timedwait|mq_timed"
)


#: Files that read the date without waiting for it.
DATES = {"shmrpc/otel.py", "core/src/objects/members/table.rs"}


def sources() -> list[Path]:
    return [*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi"), *(ROOT.parent / "core" / "src").rglob("*.rs")]


def test_no_source_waits_on_the_wall_clock() -> None:
    found = [
        f"{name}:{number}"
        for path in sources()
        if (name := str(path.relative_to(ROOT.parent))) not in DATES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WALL_CLOCK.search(line)
    ]
    assert found == []
    assert len(sources()) > 100


def test_the_built_core_imports_no_wait_on_the_wall_clock() -> None:
    """The core waits for a semaphore by itself, and by no function of the C library.

    Such a function would also trust contents that the peer can write: they select its system call.
    """
    core = Path(sys.modules["shmrpc._core"].__file__ or "").read_bytes()
    assert re.findall(rb"\bsem_\w+", core) == []


CLIENT = """
    import asyncio, os, shmrpc, threading
    with shmrpc.sync.connect("tested.watched") as blocking:
        late = []
        def wait():
            try:
                blocking.with_options(timeout=0.3).wait_for("never")
            except shmrpc.DeadlineExceeded as error:
                late.append(error)
        async def main():
            async with shmrpc.connect("tested.watched") as client:
                thread = threading.Thread(target=wait)
                thread.start()
                timed = client.with_options(timeout=0.3)
                call = asyncio.ensure_future(timed.wait_for("never"))
                await asyncio.sleep(0)
                print("waiting", flush=True)
                try:
                    await call
                except shmrpc.DeadlineExceeded as error:
                    late.append(error)
                await asyncio.to_thread(thread.join)
                print(len(late), await client.add(1, 2), blocking.add(3, 4), flush=True)
        asyncio.run(main())
"""


def test_a_client_that_sleeps_through_its_deadline_raises_that_and_goes_on(server: ServerProcess) -> None:
    """Like a suspended machine, or a process in a debugger."""
    with Script(CLIENT) as sleeping:
        assert sleeping.line() == "waiting"
        with stopped(sleeping.process.pid), shmrpc.sync.connect("tested.watched") as client:
            with pytest.raises(shmrpc.DeadlineExceeded):
                client.with_options(timeout=0.5).wait_for("never")  # Longer than the deadlines of the stopped client.
        assert sleeping.line() == "2 3 7"


#: A command with a clock far ahead of the host's, as in a container that was moved or restored.
SHIFTED = ("unshare", "--time", "--monotonic", "100000", "--fork", "--kill-child")

#: A service that calls another service for its callers, under their deadlines.
BOTH = """
    import asyncio, shmrpc, sys
    service = shmrpc.Service(sys.argv[1])
    @service.endpoint
    def remaining() -> float | None:
        return shmrpc.current_call().remaining()
    @service.endpoint
    async def passed_on(name: str, blocking: bool = False) -> float | None:
        if blocking:
            with shmrpc.sync.connect(name) as client:
                return client.remaining()
        async with shmrpc.connect(name) as client:
            return await client.remaining()
    @service.endpoint
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()
    async def main():
        async with shmrpc.serve(service):
            print("serving", flush=True)
            await asyncio.Event().wait()
    asyncio.run(main())
"""


def test_a_deadline_means_the_same_in_another_time_namespace() -> None:
    """The shifted process is the caller, the server, or a server in the middle that passes the deadline on."""
    if subprocess.run([*SHIFTED, "true"], capture_output=True).returncode:
        pytest.skip("this host does not allow time namespaces")
    names = ["tested.host", "tested.shifted"]
    with Script(BOTH, names[0]) as host, Script(BOTH, names[1], under=SHIFTED) as shifted:
        assert [host.line(), shifted.line()] == ["serving", "serving"]
        for name, other in (names, reversed(names)):
            with shmrpc.sync.connect(name, call_timeout=600) as client:
                for _ in range(2):  # A thread that has handled a deadline looks for an inherited one from then on.
                    assert 500 < client.remaining() <= 600
                    assert 500 < client.passed_on(other) <= 600
                assert 500 < client.passed_on(other, blocking=True) <= 600
                with pytest.raises(shmrpc.DeadlineExceeded):
                    client.with_options(timeout=0.1).wait_for_ever()


#: A client that sends one-way calls to a server in its own loop, which reads nothing until one of them waits for room.
ONE_WAY = """
    import asyncio, shmrpc
    service = shmrpc.Service("tested.one.way")
    heard = []
    @service.endpoint
    def hear(value: int) -> None:
        heard.append(value)
    @service.endpoint
    def count() -> int:
        return len(heard)
    async def main():
        async with shmrpc.serve(service), shmrpc.connect(service, timeout=60) as client:
            for i in range(5_000):
                await client.with_options(timeout=600).notify(hear, i)
            print(await client.count(), flush=True)
    asyncio.run(main())
"""


def test_a_one_way_call_waits_for_room_until_its_deadline_in_another_time_namespace() -> None:
    if subprocess.run([*SHIFTED, "true"], capture_output=True).returncode:
        pytest.skip("this host does not allow time namespaces")
    with Script(ONE_WAY, under=SHIFTED) as shifted:
        assert shifted.line() == "5000"


def test_a_deadline_means_the_same_over_nats_to_and_from_another_time_namespace(nats: NatsServer) -> None:
    if subprocess.run([*SHIFTED, "true"], capture_output=True).returncode:
        pytest.skip("this host does not allow time namespaces")
    source = BOTH.replace("serve(service)", "serve(service, at=sys.argv[2])")
    source = source.replace("connect(name)", "connect(name, at=sys.argv[2])")
    names = ["tested.far.host", "tested.far.shifted"]
    with Script(source, names[0], nats.url) as host, Script(source, names[1], nats.url, under=SHIFTED) as shifted:
        assert [host.line(), shifted.line()] == ["serving", "serving"]
        for name, other in (names, reversed(names)):
            with shmrpc.sync.connect(name, at=nats.url, call_timeout=600) as client:
                assert 500 < client.remaining() <= 600
                assert 500 < client.passed_on(other) <= 600
                with pytest.raises(shmrpc.DeadlineExceeded):
                    client.with_options(timeout=0.1).wait_for_ever()
