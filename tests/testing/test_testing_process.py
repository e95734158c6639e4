"""Servers in other processes for users' tests, with pytest and without: they start, say why not, and all end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shmrpc
from shmrpc.testing import ServerFailed, ServerProcess
from tests.helpers.server_process import Script, eventually, is_alive


async def test_a_server_in_another_process_from_start_to_restart() -> None:
    runtime_before = os.environ["XDG_RUNTIME_DIR"]
    with ServerProcess("tests.helpers.services:service") as server:
        assert os.environ["XDG_RUNTIME_DIR"] != runtime_before
        assert server.name == "tested"
        async with server.connect(reconnect=True) as client, shmrpc.connect("tested") as by_name:
            first = server.pid
            assert await client.pid() == await by_name.pid() == first
            with server.sync_connect() as threads:
                assert threads.pid() == first
            sleeping = asyncio.create_task(client.sleep(60))
            await asyncio.sleep(0)
            await client.add(1, 2)  # Which the server takes after the other: that one was begun, and is not made again.
            server.kill()
            assert not server.is_running
            with pytest.raises(shmrpc.ConnectionLost) as caught:
                await sleeping
            assert caught.value.maybe_executed
            server.restart()
            assert await client.pid() == server.pid != first
            server.restart()
            assert server.stop() == 0
            assert not server.is_running
        assert server.stderr.count("Serving 'tested'") == 3
    assert os.environ["XDG_RUNTIME_DIR"] == runtime_before
    with pytest.raises(shmrpc.LocalProtocolError, match="block"):
        server.restart()


def test_a_server_that_cannot_start_says_why() -> None:
    for target, words in [
        (
            "tests.helpers.services:absent",
            r"(?s)`shmrpc serve tests\.helpers\.services:absent` ended with exit code 2.*nothing named",
        ),
        ("tests.no_such_module:service", r"(?s)no_such_module"),
    ]:
        with pytest.raises(ServerFailed, match=words):
            ServerProcess(target).__enter__()
    assert "shmrpc-" not in os.environ["XDG_RUNTIME_DIR"]


def test_two_servers_meet_and_leave_in_any_order() -> None:
    before = os.environ["XDG_RUNTIME_DIR"]
    first, second = (
        ServerProcess("tests.helpers.services:service"),
        ServerProcess("tests.helpers.stream_service:service"),
    )
    first.__enter__()
    try:
        with second:
            directory = Path(os.environ["XDG_RUNTIME_DIR"])
            with pytest.raises(ServerFailed, match="already served by process"):
                ServerProcess("tests.helpers.stream_service:service").__enter__()
            with pytest.raises(shmrpc.LocalProtocolError, match="in use"):
                second.__enter__()
            with first.sync_connect() as one, second.sync_connect() as two:
                assert (one.add(1, 2), two.add(1, 2)) == (3, 3)
            first.__exit__(None, None, None)
            assert Path(os.environ["XDG_RUNTIME_DIR"]) == directory
            with second.sync_connect() as two:
                assert two.add(1, 2) == 3
        assert not list(directory.rglob("*.sock")) and not list(directory.rglob("*.stderr"))
    finally:
        first.kill()
    assert os.environ["XDG_RUNTIME_DIR"] == before


def test_services_of_the_shared_directory_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMRPC_DIRECTORY", str(tmp_path))
    with ServerProcess("tests.helpers.services:service") as server, server.sync_connect() as client:
        assert client.add(1, 2) == 3
        assert not list(tmp_path.glob("*.sock"))
    assert os.environ["SHMRPC_DIRECTORY"] == str(tmp_path)


def test_several_services_of_one_server() -> None:
    with ServerProcess("tests.helpers.services:service", "tests.helpers.stream_service:service") as server:
        assert sorted(server.names) == ["tested", "tested.flows"]
        with server.sync_connect("tested.flows") as client:
            assert client.count_plainly is not None
        with pytest.raises(ValueError, match=r"serves .*tested\.flows.*: say which one you mean"):
            server.connect()


def test_a_stopped_server_ends_all_the_same() -> None:
    with ServerProcess("tests.helpers.services:service") as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not server.is_running


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_server_ends_with_a_parent_that_is_killed(options: tuple[str, ...]) -> None:
    program = """
        import os, sys, time
        from shmrpc.testing import ServerProcess
        with ServerProcess("tests.helpers.services:service", *sys.argv[1:]) as server:
            if os.fork() == 0:  # What a test has forked does not keep it.
                time.sleep(3600)
            print(server.pid, os.environ["XDG_RUNTIME_DIR"], flush=True)
            time.sleep(3600)
    """
    with Script(program, *options) as script:
        pid, directory = script.line().split()
        script.kill()
        assert eventually(lambda: not is_alive(int(pid)))
    shutil.rmtree(directory)


def test_a_server_that_never_gets_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = ServerProcess("slow:service", timeout=0.5)
    with pytest.raises(ServerFailed, match=r"did not serve within 0\.5 s and was killed"):
        server.__enter__()
    assert not server.is_running


def test_the_plugin_in_a_users_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of a user's own: its tests pass, and nothing of their servers is left."""
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    (project / "greeter.py").write_text(
        "import os, shmrpc\n"
        "service = shmrpc.Service('greeter')\n"
        "@service.endpoint\n"
        "def greet(name: str) -> str:\n"
        "    return f'Hello, {name}'\n"
        "@service.endpoint\n"
        "def pid() -> int:\n"
        "    return os.getpid()\n"
    )
    (project / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    (project / "conftest.py").write_text(
        "import pytest\n"
        "pytest_plugins = ['shmrpc.testing.plugin']\n"
        "@pytest.fixture(scope='session')\n"
        "def shared(shmrpc_session_server):\n"
        "    return shmrpc_session_server('other:service')\n"
    )
    (project / "other.py").write_text(
        "import os, shmrpc\n"
        "service = shmrpc.Service('other')\n"
        "@service.endpoint\n"
        "def pid() -> int:\n"
        "    return os.getpid()\n"
    )
    (project / "tests" / "test_greeter.py").write_text(
        "import multiprocessing, pytest, shmrpc, shmrpc.testing\n"
        "import greeter\n"
        "\n"
        "async def test_within_the_loop():\n"
        "    async with shmrpc.testing.connect(greeter.service) as client:\n"
        "        assert await client.greet('Ada') == 'Hello, Ada'\n"
        "\n"
        "async def test_another_process(shmrpc_server):\n"
        "    server = shmrpc_server('greeter:service', '--max-in-flight', '5')\n"
        "    async with server.connect() as client, shmrpc.connect('greeter') as by_name:\n"
        "        assert await client.greet('Ada') == 'Hello, Ada'\n"
        "        assert await by_name.pid() == server.pid\n"
        "    with open('pids', 'a') as pids:\n"
        "        print(server.pid, file=pids)\n"
        "\n"
        "def test_without_a_loop(shmrpc_server):\n"
        "    server = shmrpc_server('greeter:service')\n"
        "    server.kill()\n"
        "    server.restart()\n"
        "    with server.sync_connect() as client:\n"
        "        assert client.pid() == server.pid\n"
        "    with open('pids', 'a') as pids:\n"
        "        print(server.pid, file=pids)\n"
        "\n"
        "def ask(name):\n"
        "    with shmrpc.sync.connect(name) as client:\n"
        "        assert client.pid() > 0\n"
        "\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_children_of_a_forkserver_that_the_first_test_has_started(shmrpc_server, number):\n"
        "    server = shmrpc_server('greeter:service')\n"
        "    child = multiprocessing.get_context('forkserver').Process(target=ask, args=['greeter'])\n"
        "    child.start()\n"
        "    child.join()\n"
        "    assert child.exitcode == 0\n"
        "\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_a_server_of_the_session(shared, shmrpc_server, number):\n"
        "    with shared.sync_connect() as client:\n"
        "        pid = client.pid()\n"
        "    assert pid == shared.pid == vars(pytest).setdefault('shared_pid', pid)\n"
        "    ask(shmrpc_server('greeter:service').name)\n"
        "\n"
        "def test_that_fails_for_a_server_that_dies(shmrpc_server):\n"
        "    shmrpc_server('greeter:serivce')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert "7 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "1 failed" in ran.stdout or "1 error" in ran.stdout
    assert "ServerFailed: `shmrpc serve greeter:serivce` ended with exit code 2" in ran.stdout
    assert "its services: service" in ran.stdout
    for pid in (project / "pids").read_text().split():
        assert eventually(lambda pid=pid: not is_alive(int(pid)))  # type: ignore[misc]
