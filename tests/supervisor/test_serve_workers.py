"""``shmrpc serve --workers``: how clients are spread over workers, workers that die before they serve, and CPUs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host.status import collect_reports
from shmrpc.pools.processes.cpus import usable_cpus
from tests.helpers.loops import one_loop
from tests.helpers.server_process import STOPPING, ServerProcess, eventually

SERVICE = """
    import ctypes, os, pathlib, signal, shmrpc

    here = pathlib.Path(__file__).parent
    (here / f"begun-{os.getpid()}").touch()
    while (here / "hold").exists():
        pass
    service = shmrpc.Service("spread")

    @service.endpoint
    def pid() -> int:
        return os.getpid()

    @service.endpoint
    def variable(name: str) -> str | None:
        return os.environ.get(name)

    @service.endpoint
    def fork_in_c() -> int:
        child = ctypes.PyDLL(None).fork()  # Python's fork() would close the sockets of the worker.
        if not child:
            while True:
                signal.pause()
        return child
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Create a directory with a service."""
    (tmp_path / "spread_service.py").write_text(textwrap.dedent(SERVICE))
    return tmp_path


@contextlib.contextmanager
def beginning(app: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    """Start a server whose workers do not serve before the file "hold" is removed."""
    (app / "hold").touch()
    options = ("--app-dir", str(app), "--workers", str(workers))
    command = [sys.executable, "-m", "shmrpc", "serve", "spread_service:service", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


def begun(app: Path) -> set[int]:
    """Return the workers that have begun to import the service."""
    return {int(path.name.removeprefix("begun-")) for path in app.glob("begun-*")}


def have_begun(app: Path, count: int) -> bool:
    return len(begun(app)) == count


def spread() -> list[int]:
    """Return the number of connections of each worker, from the server's report."""
    return sorted(count for report in collect_reports() for count in report.workers.values())


@one_loop
async def test_clients_are_spread_again_after_a_worker_was_replaced(app: Path) -> None:
    with ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2"):
        clients = [await shmrpc.connect("spread", reconnect=True, timeout=60) for _ in range(5)]
        lasting = await shmrpc.connect("spread", timeout=60)

        async def pids() -> Counter[int]:
            found = Counter[int]()
            for client in clients:
                with contextlib.suppress(shmrpc.ConnectionLost):  # The call may have been executed.
                    found[await client.pid()] += 1
            return found

        first = await pids()
        assert sorted(first.values())[0] >= 2
        there = await lasting.pid()
        victim = next(pid for pid in first if pid != there)
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(60):
            # Clients that reconnect move; the one that does not is served as before.
            while len(found := await pids()) < 2 or min(found.values()) < 2:
                await asyncio.sleep(0.05)
        assert victim not in found
        assert await lasting.pid() == there
        async with asyncio.timeout(60):
            while spread() != [3, 3]:
                await asyncio.sleep(0.05)
        for client in (*clients, lasting):
            await client.close()


def test_clients_in_threads_are_spread_again_with_their_next_calls(app: Path) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2"))
        connected = [shmrpc.sync.connect("spread", reconnect=True, timeout=60) for _ in range(4)]
        clients = [stack.enter_context(client) for client in connected]
        os.kill(clients[0].pid(), signal.SIGKILL)

        def is_even() -> bool:
            found = Counter[int]()
            for client in clients:
                with contextlib.suppress(shmrpc.ConnectionLost):  # The call may have been executed.
                    found[client.pid()] += 1
            return sorted(found.values()) == [2, 2]

        assert eventually(is_even)


def test_ls_says_how_many_connections_each_worker_has(app: Path) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2"))
        connected = [shmrpc.sync.connect("spread", timeout=60) for _ in range(2)]
        pids = [stack.enter_context(client).pid() for client in connected]
        assert len(set(pids)) == 2
        assert eventually(lambda: spread() == [1, 1])
        listed = subprocess.run(
            [sys.executable, "-m", "shmrpc", "ls"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r" 2 \((\d+): 1, (\d+): 1\) ", listed)
        assert found is not None, listed
        assert {int(found[1]), int(found[2])} == set(pids)


def test_a_worker_that_is_killed_before_it_serves_is_replaced(app: Path) -> None:
    with beginning(app, 3) as server:
        assert eventually(lambda: len(begun(app)) == 1)
        (first,) = begun(app)
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: len(begun(app)) == 2)
        (app / "hold").unlink()
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        greeting = next(line for line in lines if line.startswith("Serving"))
        found = re.search(r"workers ([\d, ]+)\)", greeting)
        assert found is not None
        workers = found[1].split(", ")
        assert len(workers) == 3 and str(first) not in workers
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOPPING) == 0


def workers_of(server: ServerProcess) -> set[int]:
    """Return the workers that serve, from the server's report; none if the server does not answer."""
    return {pid for report in collect_reports() if report.pid == server.pid for pid in report.workers}


def test_a_worker_that_is_killed_by_a_signal_without_a_name_is_replaced(app: Path) -> None:
    with ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2") as server:
        before = workers_of(server)
        victim = min(before)
        os.kill(victim, 40)
        assert eventually(lambda: len(workers_of(server) - before) == 1 and victim not in workers_of(server))
        errors = server.stop()
    assert f"worker {victim} was killed by signal 40" in errors
    assert "Traceback" not in errors


def test_a_killed_worker_whose_socket_another_process_holds_is_replaced(app: Path) -> None:
    with ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2") as server:
        before = workers_of(server)
        with shmrpc.sync.connect("spread", timeout=60) as client:
            victim, child = client.pid(), client.fork_in_c()
        try:
            os.kill(victim, signal.SIGKILL)
            assert eventually(lambda: len(workers_of(server) - before) == 1 and victim not in workers_of(server))
        finally:
            os.kill(child, signal.SIGKILL)


def test_after_a_restart_that_stops_half_way_clients_are_spread_over_all_workers(app: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2"))
        before = workers_of(server)
        (app / "hold").touch()
        os.kill(server.pid, signal.SIGHUP)
        assert eventually(lambda: have_begun(app, 3))
        # The supervisor can open no socket to a second new worker.
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        (app / "hold").unlink()
        assert server.process.stderr is not None
        lines = iter(server.process.stderr.readline, "")
        assert any("the present workers continue" in line for line in lines)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert eventually(lambda: len(workers_of(server)) == 2 and len(workers_of(server) & before) == 1)
        connected = [shmrpc.sync.connect("spread", timeout=60) for _ in range(4)]
        pids = [stack.enter_context(client).pid() for client in connected]
        assert sorted(Counter(pids).values()) == [2, 2]


def test_five_workers_that_are_killed_before_they_serve_end_the_server(app: Path) -> None:
    with beginning(app, 2) as server:
        for count in range(1, 6):
            assert eventually(functools.partial(have_begun, app, count))
            (latest,) = {pid for pid in begun(app) if os.path.exists(f"/proc/{pid}/exe")}
            os.kill(latest, signal.SIGKILL)
        _, errors = server.communicate(timeout=STOPPING)
    assert server.returncode == 1
    assert "5 workers in a row died" in errors and "the last one was killed by SIGKILL: giving up" in errors


def test_numerical_libraries_in_workers_share_the_cpus(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with ServerProcess("spread_service:service", "--app-dir", str(app), "--workers", "2"):
        with shmrpc.sync.connect("spread", timeout=60) as client:
            names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
            share = str(max(1, usable_cpus() // 2))
            assert [client.variable(name) for name in names] == [share, share, "7"], "what the user says stays"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_a_server_without_standard_descriptors_ends_as_any_other(
    app: Path, closed: str, workers: tuple[str, ...]
) -> None:
    serve = ["-m", "shmrpc", "serve", "spread_service:service", "--app-dir", str(app), *workers]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *serve]
    with subprocess.Popen(command) as server:
        try:
            with shmrpc.sync.connect("spread", timeout=60) as client:
                pid = client.pid()
            standard = [os.path.exists(f"/proc/{pid}/fd/{number}") for number in range(3)]
            server.send_signal(signal.SIGTERM)
            assert server.wait(STOPPING) == 0
        finally:
            server.kill()
    assert standard == [True] * 3
