"""A server that is stopped while a client connects: connecting ends at its timeout and names the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc.host.status import collect_reports
from shmrpc.wire import control
from tests.helpers.server_process import Script, ServerProcess, eventually_in_loop
from tests.helpers.stopped_processes import stopped
from tests.helpers.time_bound import bounded
from tests.reliability.watched_service import as_new

LOOP = "either"
TARGET = "tests.reliability.watched_service:service"
NAME = "tested.watched"
SOON = 0.2


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return as_new(shared_server)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Bound each test: none waits for its 30 s, which stand for the time limit of a handshake."""
    with bounded():
        yield


def silent(pid: int, awaited: str = "welcome", timeout: float = SOON) -> str:
    return (
        rf"cannot connect within {timeout:g} s: the server of '{NAME}' \(process {pid}\) does not answer: waited "
        rf"[0-9.e-]+ s for its '{awaited}'; it is stopped; to continue it: kill -CONT {pid}"
    )


async def in_a_loop(timeout: float) -> None:
    await shmrpc.connect(NAME, timeout=timeout)


async def in_threads(timeout: float) -> None:
    await asyncio.to_thread(shmrpc.sync.connect(NAME, timeout=timeout).__enter__)


Connect = Callable[[float], Any]
BOTH = pytest.mark.parametrize("connect", [in_a_loop, in_threads])


@BOTH
@pytest.mark.parametrize("timeout", [SOON, 0])
async def test_connecting_ends_at_its_timeout(
    server: ServerProcess, connect: Connect, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MOMENT", SOON)
    with stopped(server.pid):
        with pytest.raises(shmrpc.ServiceUnavailable, match=silent(server.pid, timeout=timeout)):
            await connect(timeout)
    async with shmrpc.connect(NAME) as client:
        assert await client.add(1, 2) == 3


#: A server that stops itself at the first call of a method of its peers.
STOPS_AT = """
    import os, signal, asyncio, shmrpc
    from shmrpc.transport.shm import peer
    from tests.reliability.watched_service import service

    def stop(self, *arguments):
        os.kill(os.getpid(), signal.SIGSTOP)

    peer.ShmPeer.{} = stop

    async def main():
        async with shmrpc.serve(service):
            print("serving", flush=True)
            await asyncio.sleep(1000)
    asyncio.run(main())
"""


@pytest.mark.slow
@BOTH
async def test_a_server_stopped_within_the_handshake_is_named(runtime: Path, connect: Connect) -> None:
    """The server has accepted the client, and is stopped before it creates a segment."""
    with Script(STOPS_AT.format("begin")) as script:
        assert script.line() == "serving"
        with pytest.raises(shmrpc.ServiceUnavailable, match=silent(script.process.pid, timeout=2)):
            await connect(2)
        script.kill()


async def test_calls_to_a_server_stopped_after_its_welcome_end_at_their_deadline(runtime: Path) -> None:
    """The client is connected. Its calls have deadlines, and it learns of the server's death as usual."""
    with Script(STOPS_AT.format("_on_confirm")) as script:
        assert script.line() == "serving"
        async with shmrpc.connect(NAME, call_timeout=SOON) as client:
            with pytest.raises(shmrpc.DeadlineExceeded, match=f"kill -CONT {script.process.pid}"):
                await client.add(1, 2)
            script.kill()
            with pytest.raises(shmrpc.ConnectionLost):
                await client.add(1, 2)


@BOTH
async def test_connecting_to_a_server_with_a_full_backlog_fails_with_the_reason(
    runtime: Path, connect: Connect
) -> None:
    """The kernel has as many waiting clients for the server as it allows."""
    os.mkdir(runtime, 0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(runtime / f"{NAME}.sock"))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(str(runtime / f"{NAME}.sock"))
            with pytest.raises(shmrpc.ServiceUnavailable, match="its backlog is full: it accepts no connections"):
                await connect(0)


@pytest.mark.slow
async def test_a_client_that_reconnects_ends_at_the_deadline_of_its_call(runtime: Path) -> None:
    """The next server is running, but is stopped."""
    with ServerProcess(TARGET) as first, shmrpc.sync.connect(NAME, reconnect=True, call_timeout=SOON) as near:
        async with shmrpc.connect(NAME, reconnect=True, call_timeout=SOON) as far:
            assert near.with_options(timeout=30).add(1, 2) == await far.with_options(timeout=30).add(1, 2) == 3
            first.kill()
            with contextlib.suppress(shmrpc.ConnectionLost, shmrpc.ServiceUnavailable):
                near.add(1, 2)  # The client notices the death here.
            assert await eventually_in_loop(lambda: far._reconnector.current_session() is None)
            with ServerProcess(TARGET) as second:
                # The loop's client connects in the background, to a server that is stopped.
                with stopped(second.pid):
                    said = rf"process {second.pid}\) does not answer: .*kill -CONT {second.pid}"
                    with pytest.raises(shmrpc.ServiceUnavailable, match=said):
                        near.add(1, 2)
                    there = rf"process {second.pid} has not sent its 'welcome'"
                    with pytest.raises(shmrpc.ServiceUnavailable, match=there):
                        for _ in range(
                            1000
                        ):  # The client looks for a server now and then, and has tried this one once.
                            with contextlib.suppress(shmrpc.ServiceUnavailable):
                                await far.add(1, 2)
                            if far._reconnector._last_failure:
                                await far.add(1, 2)
                    with pytest.raises(shmrpc.ServiceUnavailable, match=said):
                        near.wait_for_ready(SOON)
                assert near.with_options(timeout=30).add(1, 2) == await far.with_options(timeout=30).add(1, 2) == 3


def command(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "shmrpc", *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["call", "--timeout", "0.2", NAME, "add", "1", "2"],
        ["describe", "--timeout", "0.2", NAME],
        ["stub", "--timeout", "0.2", NAME],
    ],
)
def test_commands_end_at_their_timeout(server: ServerProcess, arguments: list[str]) -> None:
    with stopped(server.pid):
        code, text = command(arguments[0], "--timeout", str(SOON), *arguments[1:])
    assert code != 0
    assert re.search(silent(server.pid), text), text


def test_ls_names_the_server_that_does_not_answer(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STEP_TIMEOUT", SOON)
    words: list[str] = []
    with stopped(server.pid):
        assert collect_reports(on_silent=words.append) == []
    said = rf"{NAME}: process {server.pid} has not answered within 0\.2 s: it is stopped; to continue it: kill -CONT"
    assert len(words) == 1 and re.match(said, words[0])
    monkeypatch.setattr(control, "STEP_TIMEOUT", 30.0)
    assert [report.pid for report in collect_reports()] == [server.pid]


#: Operations without a timeout of their own end at once.
async def test_closing_does_not_wait(server: ServerProcess) -> None:
    near, far = shmrpc.sync.connect(NAME), shmrpc.connect(NAME)
    near.__enter__()
    await far
    with stopped(server.pid):
        waiting = asyncio.ensure_future(far.add(1, 2))
        await asyncio.sleep(0)
        near.close()
        await far.close()
        with pytest.raises(shmrpc.ConnectionLost):
            await waiting


async def calls_of(client: Any) -> list[Callable[[], Any]]:
    """Return the functions that make each kind of request."""

    async def batch() -> None:
        async with client.batch() as batch:
            batch.add(1, 2)

    async def stream() -> None:
        async for _ in client.flood(1):
            pass

    async def mapped() -> None:
        async for _ in client.map("add", [1], [2]):
            pass

    async def upload() -> None:
        await client.total([b"x"])

    return [lambda: client.add(1, 2), lambda: client.call("add", 1, 2), batch, stream, mapped, upload, client.describe]


async def test_each_way_to_call_ends_at_its_deadline(server: ServerProcess) -> None:
    async with shmrpc.connect(NAME, call_timeout=SOON) as client:
        said = rf"process {server.pid}\) has read nothing for .*kill -CONT {server.pid}"
        with stopped(server.pid):
            for call in await calls_of(client):
                with pytest.raises(shmrpc.DeadlineExceeded, match=said):
                    await call()
            await client.wait_for_ready(SOON)  # The client is connected.


def test_each_way_to_call_of_threads_ends_at_its_deadline(server: ServerProcess) -> None:
    def batch() -> None:
        with client.batch() as batch:
            batch.add(1, 2)

    with shmrpc.sync.connect(NAME, call_timeout=SOON) as client:
        said = rf"process {server.pid}\) has read nothing for .*kill -CONT {server.pid}"
        with stopped(server.pid):
            calls: list[Callable[[], Any]] = [
                lambda: client.add(1, 2),
                lambda: client.call("add", 1, 2),
                batch,
                lambda: list(client.flood(1)),
                lambda: list(client.map("add", [1], [2])),
                lambda: client.total([b"x"]),
                client.describe,
            ]
            for call in calls:
                with pytest.raises(shmrpc.DeadlineExceeded, match=said):
                    call()


@pytest.mark.slow
def test_a_stopped_worker_of_three_is_skipped(runtime: Path) -> None:
    """The worker delays no client by a handshake's time limit, and gets clients again once it goes on."""
    with ServerProcess(TARGET, "--workers", "3") as server:
        workers = [int(pid) for pid in re.findall(r"\d+", server.greeting.partition("workers ")[2].partition(")")[0])]
        assert len(workers) == 3
        with contextlib.ExitStack() as stack:
            with stopped(workers[0]):
                clients = [stack.enter_context(shmrpc.sync.connect(NAME)) for _ in range(30)]
                assert {client._reconnector.session.pid for client in clients if client._reconnector.session} == set(
                    workers[1:]
                )
                assert [client.add(1, 2) for client in clients] == [3] * 30
            served: set[int] = set()
            while workers[0] not in served:  # The supervisor asks the worker with the fewest clients first.
                client = stack.enter_context(shmrpc.sync.connect(NAME))
                assert client._reconnector.session is not None
                served.add(client._reconnector.session.pid)


@pytest.mark.slow
@BOTH
async def test_workers_that_are_all_stopped_are_named(runtime: Path, connect: Connect) -> None:
    with ServerProcess(TARGET, "--workers", "1") as server:
        (worker,) = map(int, re.findall(r"worker (\d+)", server.greeting))
        said = rf"none of its workers answers. worker {worker}: it is stopped; to continue it: kill -CONT {worker} \(pr"
        with stopped(worker):
            with pytest.raises(shmrpc.ServiceUnavailable, match=said):
                await connect(1.0)
        async with shmrpc.connect(NAME, timeout=30) as client:
            assert await client.add(1, 2) == 3


@pytest.mark.slow
@BOTH
async def test_a_stopped_supervisor_is_named(runtime: Path, connect: Connect) -> None:
    with ServerProcess(TARGET, "--workers", "1") as server:
        with stopped(server.pid):
            with pytest.raises(shmrpc.ServiceUnavailable, match=silent(server.pid)):
                await connect(SOON)
