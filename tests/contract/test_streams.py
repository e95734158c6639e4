"""Streams that lose an item or an error on their way, in whichever client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shmrpc


@pytest.mark.parametrize("n", [0, 1, 1000])
async def test_every_item_comes_in_order(client: Any, n: int) -> None:
    assert [item async for item in client.count(n)] == list(range(n))


async def test_an_error_of_a_handler_comes_after_its_last_item(client: Any) -> None:
    items = []
    with pytest.raises(ValueError, match="no more") as raised:
        async for item in client.count_and_fail(3):
            items.append(item)
    assert isinstance(raised.value, shmrpc.RemoteError)
    assert items == [0, 1, 2]


async def test_every_item_goes_in_order(client: Any) -> None:
    assert await client.total(iter(range(1000))) == sum(range(1000))
    assert [item async for item in client.doubled(iter(range(10_000)))] == list(range(0, 20_000, 2))


async def test_an_error_of_a_source_is_raised_unchanged_to_its_caller(client: Any) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("mine") from OSError("the cause")

    with pytest.raises(KeyError, match="mine") as raised:
        await client.total(failing())
    assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(KeyError, match="mine"):
        [_ async for _ in client.doubled(failing())]


async def test_a_source_of_which_no_more_is_wanted_is_closed(client: Any) -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            closed.append(True)

    assert await client.first(source()) == 0
    assert closed == [True]


async def test_items_are_written_and_read_by_hand(client: Any) -> None:
    async with client.open("doubled") as call:
        for number in range(1000):
            await call.write(number)
            assert await call.read() == 2 * number
        await call.done_writing()
        with pytest.raises(shmrpc.EndOfStream):
            await call.read()
    async with client.open("total") as call:
        await call.write(1)
        await call.write(2)
        await call.done_writing()
        assert await call.result() == 3


async def test_more_than_is_wanted_cannot_be_written(client: Any) -> None:
    async with client.open("first") as call:
        await call.write(7)
        assert await call.result() == 7
        with pytest.raises(shmrpc.EndOfStream):
            await call.write(8)
