"""The program's code runs in none of our own except clauses: what it raises brings along nothing of ours."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator

import pytest

import shmrpc
from tests.helpers.server_process import PATIENCE, ServerProcess

TARGET = "tests.calls.test_contexts:service"
SHARED_SERVER = True

service = shmrpc.Service("tested.contexts")


@dataclasses.dataclass
class Picky:
    """A class whose own code is run as it is decoded."""

    n: int

    def __post_init__(self) -> None:
        if sys.exception() is not None:
            raise AssertionError(f"something is being handled: {sys.exception()!r}")


@service.endpoint
def handled() -> str:
    """Return the exception that this handler sees as being handled."""
    return repr(sys.exc_info()[1])


@service.endpoint
async def fail() -> None:
    raise ValueError("of the handler's own")


@service.endpoint
def picky(given: Picky, times: int) -> int:
    return given.n * times


@service.endpoint
async def first(numbers: AsyncIterator[int]) -> int:
    return await anext(numbers)


class Ones:
    """An iterator with an end of its own, which says what is being handled there."""

    def __init__(self, *last: object) -> None:
        self._last = last
        self._yielded = 0
        self.handled_at_end: list[BaseException | None] = []

    def __aiter__(self) -> Ones:
        return self

    async def __anext__(self) -> object:
        self._yielded += 1
        return self._last[0] if self._last and self._yielded > 1 else 1

    async def aclose(self) -> None:
        self.handled_at_end.append(sys.exception())
        if self._last:
            raise ValueError(f"at its end, handling {sys.exception()!r}")


@service.endpoint
def ones_and_what_cannot_be_sent() -> AsyncIterator[object]:
    return Ones(object())


async def test_a_first_call_is_not_run_while_the_handshake_is_handled(server: ServerProcess) -> None:
    for _ in range(10):  # The first call is often there by the time the server has made the connection.
        async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
            assert await client.handled() == "None"
        async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
            with pytest.raises(ValueError, match="own") as caught:
                await client.fail()
            assert "StopIteration" not in caught.value.remote_traceback  # type: ignore[attr-defined]


async def test_a_stream_is_not_closed_while_a_failure_of_ours_is_handled(server: ServerProcess) -> None:
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        with pytest.raises(ValueError, match="at its end, handling None") as caught:
            [item async for item in client.ones_and_what_cannot_be_sent()]
        assert "cannot be sent" not in caught.value.remote_traceback  # type: ignore[attr-defined]


async def test_a_class_is_not_made_while_a_failed_decoding_is_handled(server: ServerProcess) -> None:
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        assert await client.picky({"n": 3}, 2) == 6
        with pytest.raises(shmrpc.InvalidArguments, match="parameter 'times'"):
            await client.picky({"n": 3}, "twice")


async def test_a_source_is_not_closed_while_its_cancellation_is_handled(server: ServerProcess) -> None:
    ones = Ones()
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        assert await client.first(ones) == 1
    assert ones.handled_at_end == [None]


async def test_a_call_repeated_on_the_next_server_raises_without_context() -> None:
    """The call raises the next server's error alone, without the loss of the first server as its context."""
    first = shmrpc.serve(service)
    async with first, shmrpc.connect("tested.contexts", timeout=PATIENCE, reconnect=True) as client:
        fail = client.fail  # Of the first connection.
        await first.close()
        async with shmrpc.serve(service):
            assert await client.handled() == "None"
            with pytest.raises(ValueError, match="own") as caught:
                await fail()
            assert caught.value.__context__ is None
