"""Servers that are absent, drain, stop and return: the errors of a client; no call is lost or run twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import shmrpc
from tests.contract.conftest import Harness
from tests.helpers.noting_service import NotingService
from tests.helpers.server_process import PATIENCE, eventually_in_loop


async def test_a_service_without_a_server_is_unavailable_after_the_timeout(harness: Harness) -> None:
    with pytest.raises(shmrpc.ServiceUnavailable, match="no server of 'tested.near'"):
        async with harness.connect("tested.near", timeout=0):
            pass


async def test_a_client_waits_for_its_server(harness: Harness) -> None:
    service = NotingService()

    async def call() -> object:
        async with harness.connect(service.name) as client:
            return await client.note("came later")

    calling = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    async with harness.serve(service):
        assert await calling == ["came later"]


async def test_a_drain_loses_no_call_and_the_next_server_takes_over(harness: Harness) -> None:
    service, release = NotingService(), asyncio.Event()

    @service.endpoint
    async def held() -> str:
        await release.wait()
        return "answered"

    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(harness.serve(service))
        assert old.health == "serving"
        client = await stack.enter_async_context(harness.connect(service.name, reconnect=True))
        under_way = asyncio.ensure_future(client.held())
        assert await eventually_in_loop(lambda: old.in_flight == 1)
        draining = asyncio.create_task(old.drain(PATIENCE))
        assert await eventually_in_loop(lambda: old.health == "draining")
        waiting = asyncio.ensure_future(client.note("for the next server"))
        await asyncio.sleep(0.01)
        release.set()
        assert await under_way == "answered"
        await draining
        await stack.enter_async_context(harness.serve(service))
        assert await waiting == ["for the next server"]


async def test_when_a_server_stops_only_calls_in_flight_may_have_been_executed(harness: Harness) -> None:
    service = NotingService()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(harness.serve(service))
        client = await stack.enter_async_context(harness.connect(service.name))
        begun = asyncio.ensure_future(client.wait())
        assert await eventually_in_loop(lambda: server.in_flight == 1)
        await server.close()
        with pytest.raises(shmrpc.ConnectionLost, match="the server stopped") as caught:
            await begun
        assert caught.value.maybe_executed
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await client.note("after")
        assert not caught.value.maybe_executed
    assert service.done == ["cancelled"]


async def test_a_client_that_reconnects_goes_on_with_the_next_server(harness: Harness) -> None:
    service = NotingService()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(harness.serve(service))
        client = await stack.enter_async_context(harness.connect(service.name, reconnect=True))
        assert await client.note("one") == ["one"]
        await server.close()
        waiting = asyncio.ensure_future(client.wait_for_ready())
        await asyncio.sleep(0.01)
        await stack.enter_async_context(harness.serve(service))
        await waiting
        assert await client.note("two") == ["one", "two"]


async def test_a_client_that_closes_cancels_its_handlers_and_no_others(harness: Harness) -> None:
    service = NotingService()
    async with harness.serve(service) as server, harness.connect(service.name) as other:
        kept = asyncio.ensure_future(other.wait())
        async with harness.connect(service.name) as client:
            lost = asyncio.ensure_future(client.wait())
            assert await eventually_in_loop(lambda: server.in_flight == 2)
        with pytest.raises(shmrpc.ShmrpcError):
            await lost
        assert await eventually_in_loop(lambda: server.in_flight == 1)
        assert await eventually_in_loop(lambda: server.connections == 1)
        assert (service.done, kept.done()) == (["cancelled"], False)
        await server.close()
        with pytest.raises(shmrpc.ConnectionLost):
            await kept
