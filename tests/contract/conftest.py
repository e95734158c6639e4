"""The clients that a test of the contract is run with, each in turn; every loop's, on both loops."""

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

#: Makes one more client of the tested service, with these options; to be entered by ``async with``.
Connect = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where services meet the clients that a test is run with: services are served in the test's own loop."""

    #: ``shmrpc.serve``, or what stands for it here.
    serve: Callable[..., Any]
    #: Makes a client of a service, or of one of this name, to be entered by ``async with``.
    connect: Callable[..., Any]
    #: Whether a user of these clients awaits what they do. The tests always do.
    is_awaited: bool = True
    #: Whether a deadline is the same instant at both ends. Otherwise the time that is left travels.
    has_one_clock: bool = True


def _connect_in_loop(service: str | shmrpc.Service, *, timeout: float = PATIENCE, **options: Any) -> Any:
    return shmrpc.connect(service, timeout=timeout, **options)


def _connect_in_threads(service: str | shmrpc.Service, *, timeout: float = PATIENCE, **options: Any) -> Any:
    return AwaitedClient(shmrpc.sync.connect(service, timeout=timeout, **options))


@pytest.fixture(params=["loop", "threads", "memory", "nats", "nats from threads"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where a test's services and clients meet."""
    return place_of(request)


def place_of(request: pytest.FixtureRequest) -> Place:
    """The place that the parameter names."""
    if request.param == "memory":
        network = Network()
        return Place(network.serve, network.connect)
    if request.param == "nats":
        at = request.getfixturevalue("nats").url
        return Place(
            functools.partial(shmrpc.serve, at=at), functools.partial(_connect_in_loop, at=at), has_one_clock=False
        )
    if request.param == "nats from threads":
        at = request.getfixturevalue("nats").url
        return Place(
            functools.partial(shmrpc.serve, at=at),
            functools.partial(_connect_in_threads, at=at),
            is_awaited=False,
            has_one_clock=False,
        )
    if request.param == "threads":
        return Place(shmrpc.serve, _connect_in_threads, is_awaited=False)
    return Place(shmrpc.serve, _connect_in_loop)


@pytest.fixture
async def connect(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Connect]:
    """What makes clients of the tested service: that of the contract, or what the module names as its ``SERVICE``."""
    service: shmrpc.Service = getattr(request.module, "SERVICE", contract.service)
    async with place.serve(service):
        yield functools.partial(place.connect, service.name)


@pytest.fixture
async def client(connect: Connect) -> AsyncIterator[Any]:
    """A client of the tested service."""
    async with connect() as client:
        yield client
