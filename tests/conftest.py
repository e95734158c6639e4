"""Every test meets in a directory of its own and leaves /dev/shm as it found it."""

from __future__ import annotations

import asyncio
import fcntl
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import uvloop

import shmrpc
from tests.helpers.server_process import PATIENCE, ServerProcess, eventually, ours_in_shm
from tests.helpers.services import service
from tests.helpers.wire_client import WireClient


def pytest_configure() -> None:
    """A shell starts what is to run in the background with SIGINT ignored, and its children inherit that.

    A handler is not inherited: the programs that the tests start get the signal's default.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Lasting(NamedTuple):
    """A server that several tests share, and the directory under which it is met."""

    process: ServerProcess
    base: Path


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asyncio test runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory where services meet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SHMRPC_DIRECTORY", raising=False)
    before = ours_in_shm()
    yield tmp_path / "shmrpc"
    # Names live for the moments of a handshake, also those of another run on the same machine. A leak stays.
    assert eventually(lambda: set(ours_in_shm()) <= set(before))


def target_of(module: ModuleType) -> str:
    """What a module's server serves: the tested service, or what the module names as its ``TARGET``."""
    return getattr(module, "TARGET", "tests.helpers.services:service")


@pytest.fixture(scope="module")
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    """A server for the tests of a module, in a directory of its own."""
    base = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.delenv("SHMRPC_DIRECTORY", raising=False)
        process = ServerProcess(target_of(request.module))
    with process:
        assert process.process.stderr is not None
        # Nobody reads what it says, so that there has to be room for what it says to all of the tests.
        fcntl.fcntl(process.process.stderr, fcntl.F_SETPIPE_SZ, 1 << 20)
        yield Lasting(process, base)


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """The service in another process, which takes a third of a second to start.

    The tests of a module that says ``LASTING = True`` share one, where those meet who use it, but for tests marked as
    ``own_server``: those that end it, or look at what it counts over all of its clients.
    """
    if getattr(request.module, "LASTING", False) and request.node.get_closest_marker("own_server") is None:
        lasting: Lasting = request.getfixturevalue("lasting")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(lasting.base))
        yield lasting.process
        assert lasting.process.process.poll() is None, "it is not this test's own"
        return
    with ServerProcess(target_of(request.module)) as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[shmrpc.Client]:
    """A client of the server in another process."""
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[WireClient]:
    """A client of it that is made of docs/wire.md alone."""
    with WireClient(server.name) as client:
        yield client


@pytest.fixture
async def near() -> AsyncIterator[shmrpc.Client]:
    """A client of a server in the same loop."""
    async with shmrpc.serve(service), shmrpc.connect("tested", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def sync_client(server: ServerProcess) -> Iterator[shmrpc.sync.Client]:
    """A client without a loop of the server in another process."""
    with shmrpc.sync.connect(server.name, timeout=PATIENCE) as client:
        yield client
