"""Calls one way: in order, taken once each, and executed though their client has gone."""

from __future__ import annotations

from tests.contract.conftest import Harness
from tests.helpers.noting_service import NotingService
from tests.helpers.server_process import eventually_in_loop


async def test_they_keep_their_order(harness: Harness) -> None:
    service = NotingService()
    async with harness.serve(service), harness.connect(service.name) as client:
        for number in range(500):
            await client.notify("note", str(number))
        assert await client.note("last") == [*map(str, range(500)), "last"]


async def test_one_way_calls_made_before_a_client_closes_are_executed(harness: Harness) -> None:
    service = NotingService()
    async with harness.serve(service) as server:
        async with harness.connect(service.name) as client:
            for number in range(10):
                await client.notify("note", str(number))
        assert await eventually_in_loop(lambda: server.connections == 0 and len(service.done) == 10)
    assert service.done == [*map(str, range(10))]
