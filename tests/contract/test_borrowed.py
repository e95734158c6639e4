"""The tests of calls, repeated: all that need only a client hold within one loop, and over NATS, too."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import shmrpc
from tests.calls import test_calls, test_cancellation, test_errors
from tests.contract.conftest import Harness, harness_of
from tests.helpers import services, stream_service
from tests.server import test_handlers
from tests.streams import test_streams


@pytest.fixture(params=["memory", "nats"])
def harness(request: pytest.FixtureRequest) -> Harness:
    """Return the transports other than shared memory, over which the tests run in their own folders."""
    if request.param == "nats" and "await_that_never_suspends" in request.function.__name__:
        pytest.skip("over NATS each await suspends")
    return harness_of(request)


@pytest.fixture
async def near(harness: Harness) -> AsyncIterator[shmrpc.Client]:
    async with harness.serve(services.service), harness.connect(services.service.name) as client:
        yield client


@pytest.fixture
async def client(request: pytest.FixtureRequest, harness: Harness) -> AsyncIterator[shmrpc.Client]:
    """Yield a client of the service that the borrowed test calls in its own folder."""
    of_flows = request.function.__module__ in (test_streams.__name__, test_cancellation.__name__)
    served = stream_service.service if of_flows else services.service
    stream_service._seen.clear()  # There each test has a process of its own.
    stream_service._produced = 0
    async with harness.serve(served), harness.connect(served.name) as client:
        yield client


#: These transports need nothing of a loop but that it turns, and over shared memory the same tests run on both.
LOOP = "asyncio"

#: Texts in the sources of tests that connect in their own way.
_OTHER_WAYS = ("shmrpc.connect(", "shmrpc.serve(", "shmrpc.sync.", "Script(")


def _borrowed() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the tests that need a client and nothing else."""
    for module in (test_calls, test_errors, test_handlers, test_streams, test_cancellation):
        for name, test in vars(module).items():
            if name.startswith("test_") and _needs_only_a_client(test):
                yield name, test


def _needs_only_a_client(test: Callable[..., Any]) -> bool:
    wants, source = {*inspect.signature(test).parameters}, inspect.getsource(test)
    if not wants & {"client", "near"} or wants & {"server", "sync_client"}:
        return False
    return not any(way in source for way in _OTHER_WAYS)


globals().update(_borrowed())


def test_most_tests_of_calls_are_borrowed() -> None:
    assert len(dict(_borrowed())) > 50
