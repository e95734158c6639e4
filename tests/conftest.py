"""Every test meets in a directory of its own and leaves /dev/shm as it found it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

import shmrpc
from tests.services import service
from tests.support import PATIENCE, ServerProcess, eventually, ours_in_shm
from tests.wire_client import WireClient


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


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The tested service in another process, or what the module names as its ``TARGET``."""
    with ServerProcess(getattr(request.module, "TARGET", "tests.services:service")) as process:
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
