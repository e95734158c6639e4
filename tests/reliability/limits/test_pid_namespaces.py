"""Process ids in messages are valid here: a process of another pid namespace has its id in this one, or none.

The process's own id may belong to another process here, which the reader would stop, continue or kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import shmrpc
from shmrpc.host.service_socket import ServiceSocket
from shmrpc.host.status import collect_reports
from tests.helpers.server_process import PATIENCE, Script, ServerProcess
from tests.helpers.stopped_processes import stopped
from tests.helpers.time_bound import bounded

#: The command for a new pid namespace, with a /proc that shows it.
APART: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
#: The command for a new pid namespace whose /proc shows the processes of the host.
HALF_APART: Final = ("unshare", "--pid", "--fork", "--kill-child")
#: Seconds of a deadline.
SOON: Final = 0.2
UNSEEN: Final = "process whose id cannot be seen from here"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


@pytest.fixture(autouse=True, scope="module")
def permitted() -> None:
    if subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("this host does not allow pid namespaces")


def children(pid: int) -> list[int]:
    """Return the child processes of a process, by their ids here."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Apart:
    """``shmrpc serve`` in a pid namespace of its own, where it is process 1."""

    def __init__(self, *options: str, target: str = "tests.helpers.services:service") -> None:
        command = [*APART, sys.executable, "-m", "shmrpc", "serve", target, *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        while not (line := self._process.stderr.readline()).startswith("Serving"):
            assert line, "the server has ended"
        assert "(process 1" in line
        #: The server's id here.
        (self.pid,) = children(self._process.pid)

    def stop(self) -> str:
        """Stop the server; return its output."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.communicate(timeout=PATIENCE)[1]

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()  # Kills its children too.
        self._process.communicate()


async def test_a_server_is_named_by_its_id_here(runtime: Path) -> None:
    with Apart() as server, shmrpc.sync.connect("tested", timeout=PATIENCE) as blocking:
        async with shmrpc.connect("tested", timeout=PATIENCE) as client:
            assert await client.pid() == blocking.pid() == 1
            assert [report.pid for report in collect_reports()] == [server.pid]
            said = rf"\(process {server.pid}\) has read nothing .* to continue it: kill -CONT {server.pid}$"
            with stopped(server.pid):
                with pytest.raises(shmrpc.DeadlineExceeded, match=said):
                    await client.with_options(timeout=SOON).add(1, 2)
                with pytest.raises(shmrpc.DeadlineExceeded, match=said):
                    blocking.with_options(timeout=SOON).add(1, 2)
            os.kill(server.pid, signal.SIGKILL)
            for call in (lambda: client.sleep(PATIENCE), lambda: asyncio.to_thread(blocking.sleep, PATIENCE)):
                with pytest.raises(shmrpc.ConnectionLost, match=rf"\(process {server.pid}\) is gone"):
                    await call()


@pytest.mark.slow
async def test_a_worker_is_named_by_its_id_here(runtime: Path) -> None:
    with Apart("--workers", "1") as server, shmrpc.sync.connect("tested", timeout=PATIENCE) as blocking:
        (worker,) = children(server.pid)
        async with shmrpc.connect("tested", timeout=PATIENCE) as client:
            assert blocking.pid() == await client.pid() != worker
            os.kill(worker, signal.SIGKILL)
            for call in (lambda: client.sleep(PATIENCE), lambda: asyncio.to_thread(blocking.sleep, PATIENCE)):
                with pytest.raises(shmrpc.ConnectionLost, match=rf"\(process {worker}\) is gone"):
                    await call()


def test_a_server_without_its_socket_is_named_by_its_id_here(runtime: Path) -> None:
    """The lock file contains process 1."""
    with Apart() as server:
        (runtime / "tested.sock").unlink()
        with pytest.raises(shmrpc.ServiceInUse, match=f"served by process {server.pid};") as caught:
            ServiceSocket("tested")
        assert caught.value.pid == server.pid


#: A client that prints its errors while the server is stopped.
CLIENT = """
    import asyncio, shmrpc
    with shmrpc.sync.connect("tested") as blocking:
        async def main():
            async with shmrpc.connect("tested", call_timeout=0.2) as client:
                assert await client.add(1, 2) == blocking.add(1, 2) == 3
                print("connected", flush=True)
                said = ""
                while "read nothing" not in said:
                    try:
                        await client.add(1, 2)
                    except shmrpc.DeadlineExceeded as error:
                        said = str(error)
                print(said, flush=True)
        asyncio.run(main())
        said = ""
        while "read nothing" not in said:
            try:
                blocking.with_options(timeout=0.2).add(1, 2)
            except shmrpc.DeadlineExceeded as error:
                said = str(error)
        print(said, flush=True)
    from shmrpc.host.service_socket import ServiceSocket
    try:
        ServiceSocket("tested")
    except shmrpc.ServiceInUse as error:
        print(error, error.pid, flush=True)
"""


@pytest.mark.slow
def test_a_server_that_is_not_visible_is_not_named(server: ServerProcess) -> None:
    with Script(CLIENT, under=APART) as client:
        assert client.line() == "connected"
        with stopped(server.pid):
            for _ in range(2):
                words = client.line()
                assert f"(a {UNSEEN}) has read nothing" in words
                assert words.endswith("it gets no CPU; its state is not visible from here")
                assert "kill" not in words
            assert client.line() == (
                f"service 'tested' is already served by a {UNSEEN}; stop it first, or choose another name None"
            )


@pytest.mark.slow
def test_a_list_of_services_has_no_id_for_a_server_that_is_not_visible(server: ServerProcess) -> None:
    def ls(*options: str) -> str:
        command = [*APART, sys.executable, "-m", "shmrpc", "ls", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert ls().splitlines()[1].split()[:4] == ["tested", "service", "-", "serving"]
    assert [row["pid"] for row in json.loads(ls("--json"))] == [None]


def test_a_client_that_is_not_visible_is_not_named(runtime: Path) -> None:
    with Apart("--log-level", "debug", target="tests.helpers.stream_service:service") as server:
        with shmrpc.sync.connect("tested.flows", timeout=PATIENCE) as client:
            assert client.who_plainly()[0] == 0
        log = server.stop()
    assert f"a client {UNSEEN} connected" in log
    assert not re.search(r"process 0|process \d+ connected", log)


STILL = "import os; from shmrpc.host.processes import explain_no_progress; print(explain_no_progress(os.getpid()))"


def test_the_state_of_a_process_is_unknown_if_proc_shows_another_namespace() -> None:
    """In that /proc another process may have the id, and be stopped."""
    for under, words in ((APART, "is blocked, or it gets no CPU"), (HALF_APART, "not visible from here")):
        with Script(STILL, under=under) as asking:
            assert asking.line().endswith(words)
