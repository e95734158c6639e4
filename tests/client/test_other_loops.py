"""Clients of one event loop that are used in another one of the same thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

import shmrpc
from tests.helpers.server_process import ServerProcess


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_is_refused_in_another_loop_of_its_thread_every_time(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def connected() -> shmrpc.Client:
        client = await shmrpc.connect("calculator")
        assert await client.add(1, 2) == 3
        return client

    async def in_batch(client: shmrpc.Client) -> object:
        async with client.batch() as batch:
            total = batch.add(1, 2)
        return await total

    ours, other = new_loop(), new_loop()
    with ServerProcess("examples.calculator:calculator"):
        client = ours.run_until_complete(connected())
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: client.add(1, 2),
            lambda: client.call("add", 1, b=2),
            lambda: client.with_options(timeout=60).add(1, 2),
            lambda: client.describe(),
            lambda: in_batch(client),
        ]
        for use in uses:

            async def refused(use: Callable[[], Awaitable[object]] = use) -> None:
                for _ in range(50):  # An answer may be there before anything has to wait.
                    with pytest.raises(shmrpc.LocalProtocolError, match="belongs to another event loop"):
                        await use()

            other.run_until_complete(refused())
        assert ours.run_until_complete(uses[0]()) == 3
        ours.run_until_complete(client.close())
    ours.close()
    other.close()
