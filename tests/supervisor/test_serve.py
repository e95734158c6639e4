"""``shmrpc serve``: signals, workers that come and go, restarts, and its options."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import shmrpc
from shmrpc.host import rendezvous
from shmrpc.host.status import collect_reports
from shmrpc.transport.shm.connection_router import ConnectionRouter
from shmrpc.wire import control
from tests.helpers.loops import one_loop
from tests.helpers.server_process import STOPPING, InThread, ServerProcess, eventually, is_alive

SERVICE = """
    import asyncio, contextlib, os, pathlib, shmrpc, threading, time

    @contextlib.asynccontextmanager
    async def lifespan(service):
        here = pathlib.Path(__file__).parent
        while (here / "hold").exists():
            await asyncio.sleep(0.01)
        if (here / "die").exists():
            threading.Timer(0.05, os._exit, (3,)).start()
        yield

    service = shmrpc.Service("made", lifespan=lifespan)
    begun = 0
    busy = pathlib.Path(__file__).parent / "busy"

    @service.endpoint
    def pid() -> int:
        return os.getpid()

    @service.endpoint
    def version() -> int:
        return 1

    @service.endpoint
    def loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    @service.endpoint
    async def sleep(seconds: float) -> int:
        global begun
        begun += 1
        await asyncio.sleep(seconds)
        return os.getpid()

    @service.endpoint
    async def wait() -> int:
        global begun
        begun += 1
        while busy.exists():
            await asyncio.sleep(0.005)
        return os.getpid()

    @service.endpoint
    def waits() -> bool:
        return begun > 0

    @service.endpoint(run_in="thread")
    def burn() -> None:
        end = time.monotonic() + 100
        while busy.exists() and time.monotonic() < end:
            pass
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Create a directory with a service that tests may change."""
    path = tmp_path / "app"
    path.mkdir()
    (path / "made_service.py").write_text(textwrap.dedent(SERVICE))
    return path


def serving(app: Path, *options: str) -> ServerProcess:
    return ServerProcess("made_service:service", "--app-dir", str(app), *options)


def failing(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """Run ``shmrpc serve`` with an error, and return its output."""
    command = [sys.executable, "-m", "shmrpc", "serve", *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd, env=env)
    assert done.returncode in (1, 2)
    return done.stderr


def workers_of(server: ServerProcess) -> list[int]:
    found = re.search(r"workers? ([\d, ]+)\)", server.greeting)
    assert found
    return [int(pid) for pid in found[1].split(", ")]


def connected() -> int:
    """Clients of the only server; -1 if none answers in time."""
    return next((report.connections for report in collect_reports()), -1)


def health() -> list[str]:
    return [report.health for report in collect_reports()]


def is_refused(client: shmrpc.sync.Client) -> bool:
    """Return True if the server accepts no new calls."""
    try:
        client.pid()
    except (shmrpc.ServiceUnavailable, shmrpc.ConnectionLost):
        return True
    return False


@contextlib.contextmanager
def clients(count: int) -> Iterator[list[shmrpc.sync.Client]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(shmrpc.sync.connect("made", timeout=60)) for _ in range(count)]


def test_several_services_share_a_server() -> None:
    with ServerProcess("tests.helpers.services:service", "examples.calculator:calculator") as server:
        assert "'tested', 'calculator'" in server.greeting
        with shmrpc.sync.connect("tested") as tested, shmrpc.sync.connect("calculator") as calculator:
            assert calculator.add(1, 2) == 3
            assert tested.pid() == server.pid


def test_services_of_one_name_are_not_mixed_up(app: Path) -> None:
    (app / "other.py").write_text("import shmrpc\nservice = shmrpc.Service('made')\n")
    words = failing("made_service:service", "other:service", "--app-dir", str(app))
    assert "2 of the services have the name 'made'" in words


@pytest.mark.parametrize(
    ("options", "number"),
    [((), signal.SIGTERM), ((), signal.SIGINT), (("--workers", "2"), signal.SIGTERM), (("--workers", "1"), 2)],
)
def test_a_signal_cuts_off_no_call(app: Path, options: tuple[str, ...], number: int) -> None:
    (app / "busy").touch()
    with serving(app, *options) as server, clients(2) as (busy, idle):
        call = InThread(busy.wait)
        assert eventually(busy.waits)
        os.kill(server.pid, number)
        assert eventually(lambda: is_refused(idle))
        assert call.outcome is None
        (app / "busy").unlink()
        _, errors = server.process.communicate(timeout=STOPPING)
        assert isinstance(call.join(), int)
    assert server.process.returncode == 0
    assert "waiting up to 30 s for 1 call: made.wait (1)" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("options", [(), ("--workers", "1")])
def test_calls_that_outlast_the_grace_fail(app: Path, options: tuple[str, ...]) -> None:
    with serving(app, "--grace", "0.1", *options) as server, clients(1) as (client,):
        call = InThread(lambda: client.sleep(60))
        assert eventually(client.waits)
        errors = server.stop()
        assert isinstance(call.join(), shmrpc.ConnectionLost)
    assert server.process.returncode == 0
    assert "after 0.1 s there are still 1 call: made.sleep (1)" in errors


@pytest.mark.parametrize("options", [(), ("--workers", "1")])
def test_a_second_signal_does_not_wait_for_the_grace(app: Path, options: tuple[str, ...]) -> None:
    with serving(app, *options) as server, clients(1) as (client,):
        call = InThread(lambda: client.sleep(60))
        assert eventually(client.waits)
        os.kill(server.pid, signal.SIGINT)
        assert eventually(lambda: health() == ["draining"])
        assert server.process.poll() is None
        errors = server.stop()
        assert isinstance(call.join(), shmrpc.ConnectionLost)
    assert server.process.returncode == 0
    assert "stopping at once" in errors
    assert "Traceback" not in errors


def test_ctrl_c_reaches_workers_too_and_cuts_off_nothing(app: Path) -> None:
    command = [sys.executable, "-m", "shmrpc", "serve", "made_service:service", "--app-dir", str(app), "--workers", "1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    (app / "busy").touch()
    with clients(1) as (client,):
        call = InThread(client.wait)
        assert eventually(client.waits)
        os.killpg(server.pid, signal.SIGINT)
        assert eventually(lambda: is_refused(client))
        assert call.outcome is None
        (app / "busy").unlink()
        _, errors = server.communicate(timeout=STOPPING)
        assert isinstance(call.join(), int)
    assert server.returncode == 0
    assert "Traceback" not in errors


def test_workers_share_clients_evenly_and_are_reported_together(app: Path) -> None:
    with serving(app, "--workers", "2") as server:
        with clients(4) as all_clients:
            pids = [client.pid() for client in all_clients]
            assert sorted(pids) == sorted(workers_of(server) * 2)
            assert eventually(lambda: connected() == 4)
            (report,) = collect_reports()
            assert (report.service, report.pid, report.health) == ("made", server.pid, "serving")
            assert report.endpoints == ["pid", "version", "loop", "sleep", "wait", "waits", "burn"]
        assert eventually(lambda: connected() == 0)


def test_of_two_workers_with_as_many_clients_the_idle_one_gets_the_next(app: Path) -> None:
    (app / "busy").touch()
    with serving(app, "--workers", "2"), clients(2) as (busy, idle):
        call = InThread(busy.burn)
        idle_pid = idle.pid()

        def the_next() -> int:
            assert eventually(lambda: connected() == 2)  # The one before is gone, and the supervisor knows.
            with clients(1) as (third,):
                return int(third.pid())

        # The supervisor samples the CPU time once a second. Without a difference, workers would take turns.
        assert eventually(lambda: all(the_next() == idle_pid for _ in range(4)), 60)
        (app / "busy").unlink()
        call.join()


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(app: Path) -> None:
    with serving(app, "--workers", "2") as server, clients(2) as two:
        killed, kept = (client.pid() for client in two)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(shmrpc.ConnectionLost):
            two[0].sleep(60)
        assert two[1].pid() == kept

        def replaced() -> bool:
            with clients(1) as (client,):
                return client.pid() not in (killed, kept)

        assert eventually(replaced, 60)
        assert two[1].pid() == kept
        assert f"worker {killed} was killed by SIGKILL" in server.stop()


def test_a_client_of_a_worker_that_dies_before_it_takes_it_finds_another(app: Path) -> None:
    with serving(app, "--workers", "1") as server:
        (worker,) = workers_of(server)
        os.kill(worker, signal.SIGSTOP)
        client = shmrpc.sync.connect("made", timeout=60)
        connecting = InThread(client.__enter__)
        time.sleep(0.2)
        assert connecting.outcome is None
        os.kill(worker, signal.SIGKILL)
        assert connecting.join() is client
        assert client.pid() != worker
        client.close()


async def test_a_client_waits_while_no_worker_has_room_for_it() -> None:
    passed: list[bytes] = []

    async def pass_on(name: str, accepted: socket.socket) -> str | None:
        rooms.pop()
        if rooms:
            return ""
        passed.append(accepted.recv(control.MAX_MESSAGE))
        accepted.send(b"taken")
        return None

    rooms = [1, 2, 3]
    report = control.StatusReport("made", 1, 0.0, [], 0, "serving")
    desk = ConnectionRouter("made", lambda _: report, pass_on)
    dialled = rendezvous.dial("made")
    assert dialled is not None
    dialled.setblocking(True)
    with dialled:
        dialled.send(b"hello")
        async with asyncio.timeout(60):
            while not passed:
                await asyncio.sleep(0.005)
        assert passed == [b"hello"]
        assert dialled.recv(100) == b"taken"
        assert dialled.recv(100) == b""
    desk.close()


def test_workers_of_a_killed_supervisor_stop_and_the_name_is_free(app: Path) -> None:
    with serving(app, "--workers", "2") as server, clients(1) as (client,):
        assert client.pid() in workers_of(server)
        server.kill()
        assert eventually(lambda: not any(map(is_alive, workers_of(server))))
        with pytest.raises(shmrpc.ConnectionLost):
            client.pid()
        with serving(app), clients(1) as (again,):
            assert again.version() == 1


def test_a_worker_that_gets_a_stop_signal_finishes_and_is_replaced(app: Path) -> None:
    with serving(app, "--workers", "1") as server, clients(1) as (client,):
        (worker,) = workers_of(server)
        (app / "busy").touch()
        call = InThread(client.wait)
        assert eventually(client.waits)
        os.kill(worker, signal.SIGTERM)
        assert eventually(lambda: is_refused(client))
        other = shmrpc.sync.connect("made", timeout=60)
        connecting = InThread(other.__enter__)
        time.sleep(0.1)  # The new worker starts while the old one is still busy.
        assert call.outcome is None
        (app / "busy").unlink()
        assert call.join() == worker
        assert connecting.join() is other
        assert other.pid() != worker
        other.close()


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_clients_wait_for_a_server_that_is_starting(app: Path, options: tuple[str, ...]) -> None:
    (app / "hold").touch()
    command = [sys.executable, "-m", "shmrpc", "serve", "made_service:service", "--app-dir", str(app), *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: health() == ["starting"], 60)
        client = shmrpc.sync.connect("made", timeout=60)
        connecting = InThread(client.__enter__)
        time.sleep(0.2)
        assert connecting.outcome is None
        (app / "hold").unlink()
        assert connecting.join() is client
        assert client.version() == 1
        client.close()
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=STOPPING)
    assert server.returncode == 0
    assert "Traceback" not in errors


#: ``shmrpc`` for which no death after a worker has served is a quick one.
PATIENT = (
    "from shmrpc.supervisor import supervisor; supervisor.QUICK_DEATH_SECONDS = 0.0; "
    "from shmrpc.cli import main; main()"
)


@pytest.mark.parametrize(("command", "code"), [(("-m", "shmrpc"), 3), (("-c", PATIENT), 1)])
def test_a_crash_loop_ends(app: Path, command: Sequence[str], code: int) -> None:
    options = ("--app-dir", str(app), "--workers", "1")
    with ServerProcess("made_service:service", *options, shmrpc_command=command) as server:
        if code == 3:
            (app / "die").touch()
        else:  # A worker that never serves dies quickly, however long its start takes.
            (app / "made_service.py").write_text("1 / 0  # a broken one\n")
        os.kill(workers_of(server)[0], signal.SIGKILL)
        _, errors = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    when = "before they served or within 3 s after"
    assert f"5 workers in a row died {when}, the last one exited with code {code}: giving up" in errors
    assert collect_reports() == []


@pytest.mark.parametrize("option", [("--workers", "2"), ("--reload",)])
def test_a_first_start_that_fails_is_not_tried_again(app: Path, option: tuple[str, ...]) -> None:
    words = failing("absent.module:x", *option)
    assert words.count("there is no module 'absent.module'") == 1
    assert "Traceback" not in words
    (app / "made_service.py").write_text("1 / 0\n")
    words = failing("made_service:service", "--app-dir", str(app), *option)
    assert words.count("ZeroDivisionError") == 1
    assert re.search(r"Error: worker \d+ exited with code 1 before it served", words)


def test_workers_of_a_name_that_is_taken_do_not_start(app: Path) -> None:
    with serving(app) as server:
        words = failing("made_service:service", "--app-dir", str(app), "--workers", "2")
        assert f"already served by process {server.pid}" in words


@one_loop
async def test_a_rolling_restart_loses_no_call(app: Path) -> None:
    with serving(app, "--workers", "2") as server:
        old = set(workers_of(server))
        seen: list[set[int]] = []
        calls: list[int] = [0] * 8
        lasting = True

        async def work(number: int, pause: float) -> None:
            pids: set[int] = set()
            seen.append(pids)
            async with shmrpc.connect("made", timeout=60, reconnect=True) as client:
                while lasting:
                    pids.add(await client.pid())
                    pids.add(await client.sleep(pause))
                    calls[number] += 1
                while (await client.pid()) in old:  # The last workers drain soon.
                    await asyncio.sleep(0.01)
                pids.add(await client.pid())

        def work_in_thread(number: int) -> None:
            with shmrpc.sync.connect("made", timeout=60, reconnect=True) as client:
                while lasting:
                    client.pid()
                    client.sleep(0.002)
                    calls[number] += 1
                assert client.pid() not in old

        async def each_makes(more: int) -> None:
            """Wait until all clients have made so many more calls."""
            enough = [count + more for count in calls]
            while any(count < least for count, least in zip(calls, enough, strict=True)):
                assert not any(task.done() for task in tasks)
                assert [thread.outcome for thread in threads] == [None] * 2
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(work(n, pause)) for n, pause in enumerate((0, 0, 0.001, 0.01, 0.05, 0.3))]
        threads = [InThread(functools.partial(work_in_thread, number)) for number in (6, 7)]
        await each_makes(1)
        for number in range(2):
            # Workers of the last restart that no client has called are not new either.
            before = {pid for pids in seen for pid in pids} | await asyncio.to_thread(children, server.pid)
            os.kill(server.pid, signal.SIGHUP)
            while not all(pids - before for pids in seen) or len(await asyncio.to_thread(children, server.pid)) != 2:
                assert not any(task.done() for task in tasks), number
                await asyncio.sleep(0.01)
        await each_makes(1)
        lasting = False
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        for thread in threads:
            assert await asyncio.to_thread(thread.join) is None
        now = children(server.pid)
        assert len(now) == 2
        assert not now & old
        assert "Traceback" not in await asyncio.to_thread(server.stop)


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_a_new_worker_that_fails_leaves_the_old_one_at_work(app: Path) -> None:
    with serving(app, "--workers", "1") as server, clients(1) as (client,):
        tried = app / "tried"
        (app / "made_service.py").write_text(f"import pathlib\npathlib.Path({str(tried)!r}).touch()\n1 / 0\n")
        os.kill(server.pid, signal.SIGHUP)
        assert eventually(tried.exists, 60)
        assert eventually(lambda: children(server.pid) == set(workers_of(server)), 60)
        assert client.pid() in workers_of(server)
        assert "the new worker does not serve; the old workers continue" in server.stop()


def test_sighup_without_workers_ends_nothing(app: Path) -> None:
    with serving(app) as server, clients(1) as (client,):
        os.kill(server.pid, signal.SIGHUP)
        assert client.pid() == server.pid
        assert "needs --workers" in server.stop()


def test_reload_serves_what_the_source_says_now(app: Path) -> None:
    with serving(app, "--reload") as server, shmrpc.sync.connect("made", timeout=60, reconnect=True) as client:
        assert client.version() == 1
        path = app / "made_service.py"
        # Of another size: within one second bytecode of the old source would pass for that of a new one of its size.
        path.write_text(path.read_text().replace("return 1", "return 1 + 1"))
        assert eventually(lambda: client.version() == 2, 60)
        path.write_text(path.read_text().replace('Service("made"', 'Service("renamed"'))
        assert eventually(lambda: [report.service for report in collect_reports()] == ["renamed"], 60)
        assert "made_service.py changed" in server.stop()


#: Modules that are not installed, and that are but cannot be loaded.
ABSENT = "raise ModuleNotFoundError(name='{}')\n"
BROKEN = "raise ImportError('libodd.so is missing')\n"


def test_reload_without_watchfiles_says_what_to_install(tmp_path: Path) -> None:
    path = f"{tmp_path}:{os.getcwd()}"
    (tmp_path / "watchfiles.py").write_text(ABSENT.format("watchfiles"))
    assert "pip install 'shmrpc[reload]'" in failing("absent:x", "--reload", PYTHONPATH=path)
    (tmp_path / "watchfiles.py").write_text(BROKEN)
    words = failing("absent:x", "--reload", PYTHONPATH=path)
    assert "watchfiles cannot be imported here: ImportError: libodd.so is missing" in words
    assert "pip install" not in words
    assert "leave --workers away" in failing("absent:x", "--reload", "--workers", "2")


def test_options_come_from_the_environment_and_the_command_line(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"WORKERS": "1", "LOOP": "asyncio", "MAX_IN_FLIGHT": "1", "MAX_WAITING": "0", "MAX_FRAME": "5000"}
    for name, value in values.items():
        monkeypatch.setenv(f"SHMRPC_{name}", value)
    with serving(app) as server, clients(2) as (client, other):
        assert [client.pid()] == workers_of(server)
        assert client.loop().startswith("asyncio")
        (app / "busy").touch()
        call = InThread(client.wait)
        assert eventually(client.waits)
        with pytest.raises(shmrpc.Overloaded):
            other.sleep(0)
        with pytest.raises(shmrpc.FrameTooLarge):
            other.sleep(bytes(5001))
        (app / "busy").unlink()
        assert isinstance(call.join(), int)
    monkeypatch.delenv("SHMRPC_WORKERS")
    with serving(app, "--loop", "uvloop", "--codec", "msgpack", "--max-per-connection", "2") as server:
        with clients(1) as (client,):
            assert client.loop().startswith("uvloop")
            assert client.pid() == server.pid


@pytest.mark.parametrize("options", [(), ("--workers", "1")])
def test_logging_is_as_configured(app: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    handler = {"class": "logging.FileHandler", "filename": str(log)}
    root = {"handlers": ["file"], "level": "WARNING"}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"version": 1, "handlers": {"file": handler}, "root": root}))
    with serving(app, "--log-config", str(path), "--log-level", "debug", *options) as server, clients(1) as (client,):
        assert client.version() == 1
        assert server.stop() == ""
    assert f"client process {os.getpid()} connected" in log.read_text()


def test_log_config_explains_what_is_wrong(app: Path, tmp_path: Path) -> None:
    target = ("made_service:service", "--app-dir", str(app), "--log-config")
    path = tmp_path / "log.json"
    path.write_text("{}")
    assert "dictionary doesn't specify a version" in failing(*target, str(path))
    path.write_text("[")
    assert f"--log-config {path}: " in failing(*target, str(path))
    path = tmp_path / "log.ini"
    path.write_text("nothing\n")
    assert f"--log-config {path}: " in failing(*target, str(path))
    (tmp_path / "yaml.py").write_text(ABSENT.format("yaml"))
    path = tmp_path / "log.yaml"
    path.write_text("version: 1\n")
    assert "needs PyYAML" in failing(*target, str(path), PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    (tmp_path / "yaml.py").write_text(BROKEN)
    words = failing(*target, str(path), PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    assert "--log-config: yaml cannot be imported here: ImportError: libodd.so is missing" in words
