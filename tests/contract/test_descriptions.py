"""The description of a service, and clients made of the service itself: the same over each transport."""

from __future__ import annotations

from typing import Any

from shmrpc.introspection.describe import describe_service
from tests.contract import service as contract
from tests.contract.conftest import Harness
from tests.helpers import services
from tests.typing_contract.varied import varied


async def test_a_live_service_describes_itself(client: Any) -> None:
    assert await client.describe() == describe_service(contract.service)


async def test_a_description_with_many_types_arrives_whole(harness: Harness) -> None:
    async with harness.serve(varied), harness.connect(varied.name) as client:
        assert await client.describe() == describe_service(varied)


async def test_a_client_of_the_service_itself_has_results_of_the_declared_types(harness: Harness) -> None:
    point = services.Point(1, 2)
    async with harness.serve(services.service):
        async with harness.connect(services.service) as typed, harness.connect(services.service.name) as plain:
            assert await typed.move(point) == services.Point(2, 3)
            assert await plain.move(point) == {"x": 2, "y": 3}
            assert [each async for each in typed.map("move", [point] * 3)] == [services.Point(2, 3)] * 3
