"""The clients that a test of the contract is run with, each in turn; every loop's, on both loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import shmrpc
from shmrpc.testing import Network
from tests.contract import service as contract
from tests.helpers.awaited_client import AwaitedClient
from tests.helpers.server_process import PATIENCE

#: Makes one more client of the tested service, with these options; to be entered by ``async with``.
Connect = Callable[..., Any]


@pytest.fixture(params=["loop", "threads", "memory"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """What makes clients of the tested service, which is served in the test's own loop.

    It is that of the contract, or what the test's module names as its ``SERVICE``.
    """
    service: shmrpc.Service = getattr(request.module, "SERVICE", contract.service)
    if request.param == "memory":
        network = Network()
        async with network.serve(service):
            yield lambda **options: network.connect(service.name, **options)
        return
    in_threads = request.param == "threads"
    async with shmrpc.serve(service):
        if in_threads:
            yield lambda **options: AwaitedClient(shmrpc.sync.connect(service.name, timeout=PATIENCE, **options))
        else:
            yield lambda **options: shmrpc.connect(service.name, timeout=PATIENCE, **options)


@pytest.fixture
async def client(connect: Connect) -> AsyncIterator[Any]:
    """A client of the tested service."""
    async with connect() as client:
        yield client
