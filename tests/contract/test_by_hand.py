"""Streams that are written and read by hand: in step with the handler, exact, and with an end on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest

import shmrpc
from tests.contract.conftest import Harness
from tests.helpers import stream_service
from tests.helpers.server_process import eventually_seen, timeouts

SERVICE = stream_service.service


async def test_ping_and_pong(client: Any) -> None:
    before = (await client.seen()).get("doubled:finished", 0)
    async with client.open("doubled") as call:
        for n in range(100):
            await call.write(n)
            assert await call.read() == 2 * n
        await call.done_writing()
        for _ in range(2):
            with pytest.raises(shmrpc.EndOfStream):
                await call.read()
        with pytest.raises(shmrpc.LocalProtocolError, match="after done_writing"):
            await call.write(1)
        await call.done_writing()
    assert await eventually_seen(client, "doubled:finished", before + 1)


async def test_a_call_with_one_result_is_written_then_awaited(client: Any) -> None:
    async with client.open("total", scale=2) as call:
        for n in range(10):
            await call.write(n)
        await call.done_writing()
        assert [await call.result(), await call.result()] == [90, 90]
        with pytest.raises(shmrpc.LocalProtocolError, match="returns no stream: use"):
            await call.read()


async def test_items_to_read_alone(client: Any) -> None:
    async with client.open("count", 1000) as call:
        assert [await call.read(), await call.read()] == [0, 1]
        assert [item async for item in call] == list(range(2, 1000))
        with pytest.raises(shmrpc.LocalProtocolError, match="takes no stream"):
            await call.write(1)
        with pytest.raises(shmrpc.LocalProtocolError, match="returns a stream: use"):
            await call.result()


async def test_a_write_waits_while_the_handler_has_enough(client: Any) -> None:
    async with client.open("tolerate_slowly", 3) as call:
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await call.write(bytes(10_000))
                written += 1

        with pytest.raises(shmrpc.EndOfStream, match="no more"):
            await write()
        assert await call.result() == 3
    assert written < 30, "credit bounds what is under way"


async def test_leaving_the_block_cancels_the_handler(client: Any) -> None:
    before = (await client.seen()).get("ticks:left", 0)
    async with client.open("ticks", 60) as call:
        await call.read()
    assert await eventually_seen(client, "ticks:left", before + 1)
    with pytest.raises(shmrpc.EndOfStream):
        await call.read()


async def test_a_result_that_has_not_come_when_the_block_is_left(client: Any) -> None:
    async with client.open("total") as call:
        waiting = asyncio.ensure_future(call.result())
        await asyncio.sleep(0)
    for result in (waiting, call.result(), call.result()):
        with pytest.raises(shmrpc.EndOfStream, match=r"total\(\) was ended by its caller"):
            await result


async def test_a_result_that_has_come_stays_after_the_block(client: Any) -> None:
    async with client.open("total") as call:
        await call.write(1)
        await call.done_writing()
        assert await call.result() == 1
    assert await call.result() == 1


async def test_unread_items_are_not_read_after_the_block(client: Any) -> None:
    async with client.open("doubled") as call:
        for n in range(5):
            await call.write(n)
        assert await call.read() == 0
        await call.done_writing()
    for _ in range(2):
        with pytest.raises(shmrpc.EndOfStream, match=r"doubled\(\) was ended by its caller"):
            await call.read()
    async with client.open("count", 5) as call:
        assert await call.read() == 0
    assert [item async for item in call] == []


async def test_an_error_of_the_handler_ends_reads_and_writes(client: Any) -> None:
    async with client.open("fail_after", 2) as call:
        assert [await call.read(), await call.read()] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="after 2"):
                await call.read()
    async with client.open("refuse") as call:
        with pytest.raises(ValueError, match="three"):
            while True:
                await call.write(3)
                await asyncio.sleep(0.001)
        with pytest.raises(ValueError, match="three"):
            await call.result()


async def test_an_invalid_item_raises_and_the_items_after_it_are_read(client: Any) -> None:
    async with client.open(count, 5) as call:
        for n in range(5):
            if n in (0, 3):
                assert await call.read() == n
            else:
                with pytest.raises(shmrpc.DecodeError, match=r"count\(\): the result cannot be decoded"):
                    await call.read()
        with pytest.raises(shmrpc.EndOfStream):
            await call.read()


def count(n: int) -> Iterator[Literal[0, 3]]:
    """Declare some of the items that the endpoint yields; the others are invalid."""
    raise NotImplementedError


async def test_a_handler_that_recurses_too_deeply_is_no_invalid_item(harness: Harness) -> None:
    service = shmrpc.Service("tested.by.hand")

    @service.endpoint
    async def recurse() -> AsyncIterator[int]:
        yield 1
        raise RecursionError("too deep")

    async with harness.serve(service), harness.connect(service.name) as client, client.open("recurse") as call:
        assert await call.read() == 1
        for _ in range(2):
            with pytest.raises(RecursionError, match="too deep"):
                await call.read()


async def test_a_deadline_ends_who_reads_and_who_writes(client: Any) -> None:
    for timeout in timeouts():
        async with client.with_options(timeout=timeout).open("ticks", 60) as call:
            try:
                await call.read()
            except shmrpc.DeadlineExceeded:
                continue
            with pytest.raises(shmrpc.DeadlineExceeded):
                await call.read()
        break
    async with client.with_options(timeout=0.2).open("idle") as call:
        with pytest.raises(shmrpc.DeadlineExceeded):
            while True:
                await call.write(bytes(10_000))
        with pytest.raises(shmrpc.DeadlineExceeded):
            await call.result()


async def test_several_tasks_write_and_read(client: Any) -> None:
    async with client.open("doubled") as call:

        async def write(first: int) -> None:
            for n in range(first, first + 500):
                await call.write(n)

        async def read() -> list[int]:
            return [item async for item in call]

        reading = [asyncio.ensure_future(read()) for _ in range(2)]
        await asyncio.gather(*map(write, (0, 500, 1000)))
        await call.done_writing()
        parts = await asyncio.gather(*reading)
    assert sorted(item for part in parts for item in part) == [2 * n for n in range(1500)]


async def test_an_item_that_cannot_be_sent(client: Any) -> None:
    async with client.open("total") as call:
        with pytest.raises(shmrpc.EncodeError, match="object"):
            await call.write(object())
        await call.write(1)
        await call.done_writing()
        assert await call.result() == 1
    async with client.open("doubled") as call:
        await call.write("text")
        with pytest.raises(shmrpc.InvalidArguments):
            await call.read()


async def test_endpoints_without_suitable_streams_cannot_be_opened(client: Any) -> None:
    for wrong, words in (("add", "no streams"), ("zipped", "takes 2 streams")):
        with pytest.raises(shmrpc.InvalidArguments, match=words):
            async with client.open(wrong):
                pass
    with pytest.raises(shmrpc.InvalidArguments, match="leave out 'numbers'"):
        async with client.open("total", numbers=[1]):
            pass
    assert await client.add(1, 2) == 3
