"""Fixtures for tests of the contract: each runs with every kind of client, those of loops on both loops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import shmrpc
from shmrpc.testing import Network
from tests.contract import service as contract
from tests.contract.awaited_client import AwaitedClient
from tests.helpers.server_process import PATIENCE

#: Function that makes a client of the tested service, with these options; the test enters it with ``async with``.
Connect = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Harness:
    """The server and the client side that a test runs with: services are served in the test's own loop."""

    #: ``shmrpc.serve``, or its counterpart of another transport.
    serve: Callable[..., Any]
    #: Function that makes a client of a service, or of the service with this name, for ``async with``.
    connect: Callable[..., Any]
    #: True if users of these clients await their calls. The tests always do.
    is_awaited: bool = True
    #: True if a deadline is the same instant at both ends. Otherwise the remaining time travels.
    has_one_clock: bool = True


def _connect_in_loop(service: str | shmrpc.Service, *, timeout: float = PATIENCE, **options: Any) -> Any:
    return shmrpc.connect(service, timeout=timeout, **options)


def _connect_in_threads(service: str | shmrpc.Service, *, timeout: float = PATIENCE, **options: Any) -> Any:
    return AwaitedClient(shmrpc.sync.connect(service, timeout=timeout, **options))


@pytest.fixture(params=["loop", "threads", "memory", "nats", "nats from threads"])
def harness(request: pytest.FixtureRequest) -> Harness:
    """Return the server and the client side of the test, one kind after the other."""
    return harness_of(request)


def harness_of(request: pytest.FixtureRequest) -> Harness:
    """Return the harness that the parameter names."""
    if request.param == "memory":
        network = Network()
        return Harness(network.serve, network.connect)
    if request.param == "nats":
        at = request.getfixturevalue("nats").url
        return Harness(
            functools.partial(shmrpc.serve, at=at), functools.partial(_connect_in_loop, at=at), has_one_clock=False
        )
    if request.param == "nats from threads":
        at = request.getfixturevalue("nats").url
        return Harness(
            functools.partial(shmrpc.serve, at=at),
            functools.partial(_connect_in_threads, at=at),
            is_awaited=False,
            has_one_clock=False,
        )
    if request.param == "threads":
        return Harness(shmrpc.serve, _connect_in_threads, is_awaited=False)
    return Harness(shmrpc.serve, _connect_in_loop)


@pytest.fixture
async def connect(request: pytest.FixtureRequest, harness: Harness) -> AsyncIterator[Connect]:
    """Serve the contract's service, or the module's ``SERVICE``, and yield a function that makes clients of it."""
    service: shmrpc.Service = getattr(request.module, "SERVICE", contract.service)
    async with harness.serve(service):
        yield functools.partial(harness.connect, service.name)


@pytest.fixture
async def client(connect: Connect) -> AsyncIterator[Any]:
    """Yield a client of the tested service."""
    async with connect() as client:
        yield client
