"""Streams that are written and read by hand in a loop alone; what holds in threads too is in tests/contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import shmrpc
from shmrpc.testing import connect
from tests.helpers import stream_service

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


async def test_a_write_that_is_cancelled_sent_nothing(client: shmrpc.Client) -> None:
    async with client.open("doubled") as call:
        sent = []
        for n in range(2000):
            task = asyncio.ensure_future(call.write(n))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            task.cancel()
            if not (await asyncio.gather(task, return_exceptions=True))[0]:
                sent.append(n)
        writing = asyncio.ensure_future(call.done_writing())
        assert [item async for item in call] == [2 * n for n in sent]
        await writing


async def test_a_connection_that_ends_ends_who_waits() -> None:
    async with connect(stream_service.service) as client:
        async with client.open("doubled") as call:
            reading = asyncio.ensure_future(call.read())
            await asyncio.sleep(0.01)
            await client.close()
            with pytest.raises(shmrpc.ConnectionLost):
                await reading
            with pytest.raises(shmrpc.ConnectionLost):
                await call.write(1)


async def test_an_opened_call_cannot_be_used_outside_its_block(client: shmrpc.Client) -> None:
    opened = client.open("total")
    for use in (opened.write(1), opened.done_writing(), opened.read(), opened.result()):
        with pytest.raises(shmrpc.LocalProtocolError, match=r"is not open: use `async with client\.open"):
            await use
    awaited: Any = client.open("total")
    with pytest.raises(TypeError, match=r"`async with client\.open"):
        await awaited


async def test_a_stream_behind_other_parameters() -> None:
    service = shmrpc.Service("tested.near")

    @service.endpoint
    async def joined(separator: str, words: AsyncIterator[str], last: str) -> str:
        return separator.join([*[word async for word in words], last])

    async with connect(service) as client:
        for args, kwargs in ((("-", "c"), {}), (("-",), {"last": "c"}), ((), {"separator": "-", "last": "c"})):
            async with client.open("joined", *args, **kwargs) as call:
                await call.write("a")
                await call.write("b")
                await call.done_writing()
                assert await call.result() == "a-b-c"
