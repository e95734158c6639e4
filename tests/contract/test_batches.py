"""Calls in one frame of which some cannot be sent, or name endpoints that do not exist: where each error is raised."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import shmrpc
from tests.contract.conftest import Harness
from tests.helpers.server_process import eventually_in_loop

UNSENDABLE = object()


class Broken:
    """A value that can be encoded, but not decoded."""


@dataclasses.dataclass
class Point:
    x: int


def _refuse(data: object) -> Broken:
    raise ValueError("unreadable")


shmrpc.register(Broken, lambda value: None, _refuse)


def made() -> shmrpc.Service:
    """Return the service that all tests of this file call."""
    service = shmrpc.Service("tested.batches")

    @service.endpoint
    def add(a: int, b: int) -> int:
        return a + b

    @service.endpoint
    def echo(value: Any) -> Any:
        return value

    @service.endpoint
    def broken(value: int) -> Any:
        return Broken() if value < 0 else np.full(20_000, value)

    @service.endpoint
    def point(x: int) -> Point:
        return Point(x) if x else "none"  # type: ignore[return-value]  # Results are not checked here.

    @service.endpoint
    async def count(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @service.endpoint
    async def total(numbers: AsyncIterator[int]) -> int:
        return sum([number async for number in numbers])

    return service


def other() -> shmrpc.Service:
    """Another one of the same name: its endpoints have other numbers, and not all are there."""
    service = shmrpc.Service("tested.batches")

    @service.endpoint
    def first() -> None: ...

    @service.endpoint
    def add(a: int, b: int) -> int:
        return -a - b

    return service


async def mapped(results: list[Any], client: Any, *args: Any) -> None:
    """Append each result of a map() as it arrives."""
    async for each in client.map(*args):
        results.append(each)


async def test_an_endpoint_that_is_not_there_raises_at_its_own_line(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        async with client.batch() as batch:
            added = batch.add(1, 2)
            for wrong in ("ad", _ad):
                with pytest.raises(shmrpc.EndpointNotFound, match="has no endpoint 'ad'; did you mean 'add'"):
                    batch.call(wrong, 1, 2)
            with pytest.raises(shmrpc.EndpointNotFound, match="has no endpoint 'ad'; did you mean 'add'"):
                batch.ad(1, 2)
        assert added.result() == 3


def _ad(a: int, b: int) -> int:
    return a + b


_ad.__name__ = "ad"


async def test_an_endpoint_that_streams_raises_at_its_own_line_and_says_what_to_write(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        awaited = harness.is_awaited
        for name, instead in (
            ("count", f"{'async ' if awaited else ''}for item in client.count(...): ..."),
            ("total", f"{'await ' if awaited else ''}client.total(...)"),
        ):
            with pytest.raises(shmrpc.InvalidArguments) as raised:
                async with client.batch() as batch:
                    batch.call(name, 1)
            assert str(raised.value) == f"{name}() streams, and so cannot be called in a batch; write `{instead}`"
            with pytest.raises(shmrpc.InvalidArguments) as raised:
                await mapped([], client, name, [1])
            assert str(raised.value) == f"{name}() streams, and so cannot be called by map(); write `{instead}`"


async def test_a_batch_without_a_connection_raises_at_its_first_line(harness: Harness) -> None:
    client = harness.connect("tested.batches")
    with pytest.raises(shmrpc.LocalProtocolError, match="not connected"):
        async with client.batch() as batch:
            batch.add(1, 2)


async def test_an_argument_that_cannot_be_sent_fails_its_own_call_alone(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        async with client.batch() as batch:
            array = np.arange(50_000)
            sent = [batch.add(1, 2), batch.echo(array), batch.add(1, "x"), batch.add(3, b=4)]
            wrong = [batch.echo(UNSENDABLE), batch.echo([array, UNSENDABLE]), batch.add(a=UNSENDABLE, b=1)]
            last = batch.echo("last")
        assert [sent[0].result(), sent[3].result(), last.result()] == [3, 7, "last"]
        assert (sent[1].result() == array).all()
        assert isinstance(sent[2].exception(), shmrpc.InvalidArguments)
        for each, name in zip(wrong, ("echo", "echo", "add"), strict=True):
            with pytest.raises(shmrpc.EncodeError, match=rf"^{name}\(\): an argument cannot be sent .*type object is"):
                each.result()


async def test_a_batch_in_which_no_call_can_be_sent(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        async with client.batch() as batch:
            wrong = [batch.echo(UNSENDABLE), batch.echo(UNSENDABLE)]
        assert [type(each.exception()) for each in wrong] == [shmrpc.EncodeError] * 2


@pytest.mark.parametrize("typed", [False, True])
async def test_a_map_raises_for_what_cannot_be_sent_when_its_turn_comes(harness: Harness, typed: bool) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        endpoint = _add if typed else "add"
        results: list[int] = []
        with pytest.raises(shmrpc.EncodeError, match=r"add\(\): an argument cannot be sent"):
            await mapped(results, client, endpoint, range(9), [*range(5), UNSENDABLE, *range(6, 9)])
        assert results == [0, 2, 4, 6, 8]


async def test_a_map_drops_a_result_that_was_read_before_the_next_one_is(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        results = aiter(client.map("broken", range(6), chunk=2))
        for value in range(6):
            result = await anext(results)
            assert (result == value).all()
            kept = weakref.ref(result)
            del result
            assert await eventually_in_loop(partial(gone, kept))  # The map reads no further meanwhile.
        assert [each async for each in results] == []


def gone(reference: weakref.ref[Any]) -> bool:
    return reference() is None


def _add(a: int, b: int) -> int:
    return a + b


_add.__name__ = "add"


async def test_a_result_that_cannot_be_read_fails_its_own_call_alone(harness: Harness) -> None:
    async with harness.serve(made()), harness.connect("tested.batches") as client:
        async with client.batch() as batch:
            first, bad, failed, last = batch.broken(1), batch.broken(-1), batch.add("x"), batch.broken(2)
        assert (first.result() == 1).all() and (last.result() == 2).all()
        with pytest.raises(shmrpc.DecodeError, match=r"broken\(\): the result cannot be decoded.*unreadable"):
            bad.result()
        assert isinstance(failed.exception(), shmrpc.InvalidArguments)

        results: list[Any] = []
        with pytest.raises(shmrpc.DecodeError, match=r"broken\(\): the result cannot be decoded"):
            await mapped(results, client, "broken", [1, 2, -1, 3])
        assert [int(each[0]) for each in results] == [1, 2]


async def test_a_client_of_a_service_gets_results_of_the_declared_types(harness: Harness) -> None:
    """Also by name, as in calls. A client that has only the name of the service gets results as they were sent."""
    service = made()
    async with harness.serve(service), harness.connect(service) as client:
        async with client.batch() as batch:
            sent = [batch.point(1), batch.call("point", 1), batch.add(1, 2), batch.echo({"x": 1})]
            wrong = batch.point(0)
        assert [each.result() for each in sent] == [Point(1), Point(1), 3, {"x": 1}]
        assert await client.point(1) == Point(1)
        assert [each async for each in client.map("point", [1, 2])] == [Point(1), Point(2)]
        with pytest.raises(shmrpc.DecodeError, match=r"point\(\): the result cannot be decoded"):
            wrong.result()
        async with harness.connect(service.name) as untyped, untyped.batch() as batch:
            sent = [batch.point(1), batch.call(_point, 1)]
        assert [each.result() for each in sent] == [{"x": 1}, Point(1)]


def _point(x: int) -> Point:
    return Point(x)


_point.__name__ = "point"


async def test_another_server_answers_the_calls_of_the_endpoints_that_it_has(harness: Harness) -> None:
    """The server goes between the lines of a batch and its end, and the next one has other endpoints."""
    async with harness.serve(made()) as server, harness.connect("tested.batches", reconnect=True) as client:
        async with contextlib.AsyncExitStack() as served:
            async with client.batch() as batch:
                added, echoed, again = batch.add(1, 2), batch.echo(1), batch.add(3, 4)
                await server.close()
                await served.enter_async_context(harness.serve(other()))
        assert [added.result(), again.result()] == [-3, -7]
        with pytest.raises(shmrpc.EndpointNotFound, match="'echo'; it has first, add"):
            echoed.result()
