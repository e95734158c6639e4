"""The command line as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import STOPPING, ServerProcess, eventually


def shmrpc(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmrpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd)


def test_serve_call_ls() -> None:
    with ServerProcess("examples.calculator:calculator") as server:
        assert "'calculator'" in server.greeting
        assert str(server.pid) in server.greeting
        assert shmrpc("call", "calculator", "add", "1", "2").stdout == "3\n"
        assert shmrpc("call", "calculator", "add", "-1", "2").stdout == "1\n"
        assert shmrpc("call", "-k", "punctuation=?", "calculator", "greet", "Ada").stdout == '"Hello, Ada?"\n'
        assert shmrpc("call", "calculator", "greet", '"5"').stdout == '"Hello, 5!"\n'
        # The last client's process has ended; the server hears of it.
        assert eventually(lambda: json.loads(shmrpc("ls", "--json").stdout)[0]["connections"] == 0)
        (row,) = json.loads(shmrpc("ls", "--json").stdout)
        assert row["uptime"] > 0
        assert (row["service"], row["pid"], row["connections"]) == ("calculator", server.pid, 0)
        assert row["endpoints"] == ["add", "greet"]
        header, line = shmrpc("ls").stdout.splitlines()
        assert header.split() == ["SERVICE", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS"]
        assert line.split()[:3] == ["calculator", str(server.pid), "serving"]
    assert "No live services" in shmrpc("ls").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "1", "x"], r"parameter 'b': expected `int`, got `str` ('x')"),
        (["ad", "1", "2"], "did you mean 'add'?"),
        (["add", "1"], "missing a required argument: 'b'"),
    ],
)
def test_call_explains_what_is_wrong(arguments: list[str], words: str) -> None:
    with ServerProcess("examples.calculator:calculator"):
        done = shmrpc("call", "calculator", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_call_prints_the_remote_traceback() -> None:
    with ServerProcess():
        done = shmrpc("call", "tested", "fail", "odd")
    assert done.returncode == 4
    assert "builtins.ValueError: odd" in done.stderr
    assert "in fail" in done.stderr


def test_call_without_a_server() -> None:
    done = shmrpc("call", "--timeout", "0", "absent", "add")
    assert done.returncode == 3
    assert "shmrpc serve MODULE:absent" in done.stderr


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("calculator", "expected MODULE:SERVICE"),
        ("absent.module:x", "there is no module 'absent.module'"),
        ("examples.calculator:absent", "nothing of this name; its services: calculator"),
        ("examples.calculator:add", "a function, not a shmrpc.Service"),
    ],
)
def test_serve_explains_what_is_wrong(target: str, words: str) -> None:
    done = shmrpc("serve", target)
    assert done.returncode == 1
    assert words in done.stderr


def test_serve_finds_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "local_module.py").write_text("import shmrpc\nbroken = 1\n")
    assert "an int, not a shmrpc.Service" not in shmrpc("serve", "local_module:absent", cwd=tmp_path).stderr
    assert "a int, not a shmrpc.Service" in shmrpc("serve", "local_module:broken", cwd=tmp_path).stderr


def test_serving_a_name_twice() -> None:
    with ServerProcess() as server:
        done = shmrpc("serve", "tests.services:service")
        assert done.returncode == 1
        assert f"already served by process {server.pid}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_and_nothing_is_left(runtime: Path, number: signal.Signals) -> None:
    with ServerProcess() as server:
        os.kill(server.pid, number)
        _, errors = server.process.communicate(timeout=STOPPING)
    assert server.process.returncode == 0
    assert errors == ""
    assert os.listdir(runtime) == []
