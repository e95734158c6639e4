"""The tests of calls, once more: all that want nothing but a client hold within one loop, and over NATS, too."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import shmrpc
from tests.calls import test_calls, test_cancellation, test_errors
from tests.contract.conftest import Place, place_of
from tests.helpers import services, stream_service
from tests.server import test_handlers
from tests.streams import test_streams


@pytest.fixture(params=["memory", "nats"])
def place(request: pytest.FixtureRequest) -> Place:
    """Over shared memory these tests run where they come from."""
    if request.param == "nats" and "await_that_never_suspends" in request.function.__name__:
        pytest.skip("over NATS each await suspends")
    return place_of(request)


@pytest.fixture
async def near(place: Place) -> AsyncIterator[shmrpc.Client]:
    async with place.serve(services.service), place.connect(services.service.name) as client:
        yield client


@pytest.fixture
async def client(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[shmrpc.Client]:
    """The client of the borrowed tests: of the service that their own one is of."""
    of_flows = request.function.__module__ in (test_streams.__name__, test_cancellation.__name__)
    served = stream_service.service if of_flows else services.service
    stream_service._seen.clear()  # There each test has a process of its own.
    stream_service._produced = 0
    async with place.serve(served), place.connect(served.name) as client:
        yield client


#: These transports need nothing of a loop but that it turns, and over shared memory the same tests run on both.
LOOP = "asyncio"

#: What tests of another way to a server name.
_OTHER_WAYS = ("shmrpc.connect(", "shmrpc.serve(", "shmrpc.sync.", "Script(")


def _borrowed() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The tests that want a client and nothing else."""
    for module in (test_calls, test_errors, test_handlers, test_streams, test_cancellation):
        for name, test in vars(module).items():
            if name.startswith("test_") and _wants_a_client_alone(test):
                yield name, test


def _wants_a_client_alone(test: Callable[..., Any]) -> bool:
    wants, source = {*inspect.signature(test).parameters}, inspect.getsource(test)
    if not wants & {"client", "near"} or wants & {"server", "sync_client"}:
        return False
    return not any(way in source for way in _OTHER_WAYS)


globals().update(_borrowed())


def test_most_tests_of_calls_are_borrowed() -> None:
    assert len(dict(_borrowed())) > 50
