"""Errors where the surroundings are not as shmrpc needs them: directories, event loops, interpreters."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.pools.task_future import TaskFuture
from shmrpc.stores import packing
from tests.helpers.server_process import ServerProcess

SERVICE = """
import shmrpc
service = shmrpc.Service("files")
deleted = []

@service.endpoint
def delete(*names: str) -> int:
    deleted.extend(names)
    return len(names)

@service.endpoint
def seen() -> list[str]:
    return deleted
"""


def shmrpc_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmrpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "use",
    [
        lambda: shmrpc.sync.queue("surroundings"),
        lambda: shmrpc.sync.connect("surroundings", timeout=0).__enter__(),
        lambda: shmrpc.members("surroundings"),
    ],
)
def test_a_runtime_directory_that_is_a_file(
    use: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(shmrpc.LocalProtocolError, match=r"/file is not a directory; let \$XDG_RUNTIME_DIR be one"):
        use()
    assert "is not a directory" in shmrpc_command("ls").stderr


async def next_claim(name: str) -> None:
    with contextlib.closing(shmrpc.queue(name)) as queue:
        await anext(queue.claims())


async def result_of(future: TaskFuture[object]) -> None:
    await future


@pytest.mark.parametrize(
    "begin",
    [
        lambda: shmrpc.connect("surroundings").__aenter__(),
        lambda: shmrpc.serve(shmrpc.Service("surroundings")).__aenter__(),
        lambda: shmrpc.Event("surroundings").wait(),
        lambda: shmrpc.attach("surroundings"),
        lambda: next_claim("surroundings"),
        lambda: result_of(TaskFuture()),
    ],
)
def test_without_an_event_loop_of_asyncio_a_sentence_says_what_to_use(
    begin: Callable[[], Coroutine[Any, Any, object]],
) -> None:
    coroutine = begin()  # The same steps as trio's.
    with pytest.raises(shmrpc.LocalProtocolError, match=r"no asyncio event loop .* shmrpc\.sync, under trio"):
        coroutine.send(None)


#: Imports shmrpc in a sub-interpreter, then in the main one, and uses a name there.
IN_A_SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

{before}
inner = interpreters.create()
interpreters.run_string(inner, '''
try:
    import shmrpc
except ImportError as error:
    print(error, flush=True)
try:
    import shmrpc._core
except ImportError as error:
    print(error, flush=True)
''')
interpreters.destroy(inner)
import shmrpc.sync
with shmrpc.sync.Lock("in-the-main-interpreter"):
    print("held")
"""


@pytest.mark.parametrize("before", ["", "import shmrpc"])
def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on(before: str) -> None:
    program = IN_A_SUB_INTERPRETER.format(before=before)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    *refusals, held = ran.stdout.splitlines()
    assert held == "held"
    assert len(refusals) == 2
    assert all(each.startswith("shmrpc does not support sub-interpreters: import it") for each in refusals)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a directory with a service."""
    (tmp_path / "files_service.py").write_text(SERVICE)
    return tmp_path


def test_options_behind_the_service_are_not_given_to_the_endpoint(app: Path) -> None:
    with ServerProcess("files_service:service", "--app-dir", str(app)):
        helped = shmrpc_command("call", "files", "delete", "--help")
        assert (helped.returncode, helped.stdout.startswith("Usage:")) == (0, True)
        for arguments in (["a", "--timeout", "1"], ["--json"], ["a", "--at=shm"], ["-k", "a=1"]):
            refused = shmrpc_command("call", "files", "delete", *arguments)
            assert refused.returncode == 2
            assert "comes after SERVICE: write options before it, and -- before" in refused.stderr
        with shmrpc.sync.connect("files", timeout=60) as client:
            assert client.seen() == []
            assert shmrpc_command("call", "files", "delete", "-5", "--", "--json").stdout == "2\n"
            assert client.seen() == ["-5", "--json"]


def test_serve_ends_with_2_if_what_is_asked_for_is_wrong(app: Path) -> None:
    at = ("--app-dir", str(app))
    wrong = [
        ("files_service:absent", *at),
        ("absent_module:service", *at),
        ("files_service:service", *at, "--spin", "-4"),
        ("files_service:service", *at, "--at", "nowhere://"),
        ("files_service:absent", *at, "--workers", "2"),
        ("files_service:service", *at, "--spin", "-4", "--workers", "2"),
        ("files_service:service", *at, "--log-config", os.fspath(app / "files_service.py")),
    ]
    for arguments in wrong:
        done = shmrpc_command("serve", *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), arguments
    with ServerProcess("files_service:service", *at):
        for workers in ((), ("--workers", "2")):
            done = shmrpc_command("serve", "files_service:service", *at, *workers)
            assert done.returncode == 1 and "already served" in done.stderr


@pytest.mark.parametrize("data", [b"\xa1\xff", b"\x81\xa1\xff\x01", b"\x91" * 2000, b"\xc1"])
def test_an_overwritten_value_in_a_store_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(shmrpc.DecodeError, match="a value in the store cannot be read"):
        packing.unpack(data)
