"""An overloaded server: further calls wait in line, or fail with the certainty that they were not executed."""

from __future__ import annotations

import asyncio

import pytest

import shmrpc
from tests.contract.conftest import Harness
from tests.helpers.server_process import eventually_in_loop


async def test_a_call_that_finds_no_place_in_the_line_was_not_executed(harness: Harness) -> None:
    service, release = shmrpc.Service("tested.full"), asyncio.Event()
    begun: list[str] = []

    @service.endpoint
    async def hold(name: str) -> str:
        begun.append(name)
        await release.wait()
        return name

    async with harness.serve(service, max_in_flight=1, max_waiting=1) as server:
        async with harness.connect(service.name) as client:
            first = asyncio.ensure_future(client.hold("first"))
            assert await eventually_in_loop(lambda: server.in_flight == 1)
            second = asyncio.ensure_future(client.hold("second"))
            assert await eventually_in_loop(lambda: server.waiting == 1)
            with pytest.raises(shmrpc.Overloaded) as caught:
                await client.hold("third")
            assert not caught.value.maybe_executed
            release.set()
            assert (await first, await second) == ("first", "second")
    assert begun == ["first", "second"]
