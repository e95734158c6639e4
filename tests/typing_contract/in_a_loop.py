"""Types of a client in an event loop. Each `type: ignore` is needed: a checker reports an unnecessary one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, assert_type

import shmrpc
from tests.typing_contract.offered import (
    Point,
    add,
    countdown,
    greet,
    halved,
    letters,
    move,
    names,
    nothing,
    offered,
    points,
    ticks,
    total,
    untold,
)


async def accepted(numbers: AsyncIterator[int]) -> None:
    async with shmrpc.connect(offered) as client:
        assert_type(client, shmrpc.Client)
        assert_type(await client.call(add, 1, 2), int)
        assert_type(await client.call(add, a=1), int)
        assert_type(await client.call(greet, "Ada", punctuation="?"), str)
        assert_type(await client.call(move, Point(1, 2), by=1), Point)
        assert_type(await client.call(names), list[str])
        await client.call(nothing)
        assert_type(await client.call("add", 1, 2), Any)
        await client.call(untold, [1])

        assert_type(client.call(ticks, 3), AsyncGenerator[int, None])
        assert_type([tick async for tick in client.call(ticks, 3)], list[int])
        assert_type([point async for point in client.call(points, 3)], list[Point])
        assert_type([number async for number in client.call(countdown, 3)], list[int])
        assert_type([letter async for letter in client.call(letters, "word")], list[str])

        assert_type(await client.call(total, numbers), int)
        assert_type(await client.call(total, numbers, factor=2), int)
        assert_type(await client.call(total, [1, 2, 3], 2), int)
        assert_type(client.call(halved, numbers), AsyncGenerator[float, None])
        assert_type([half async for half in client.call(halved, [1], offset=2)], list[float])

        assert_type([sum async for sum in client.map(add, [1], [2])], list[int])
        assert_type([sum async for sum in client.map(add, range(3), chunk=2)], list[int])
        assert_type([greeting async for greeting in client.map(greet, ["Ada"])], list[str])
        assert_type([moved async for moved in client.map(move, [Point(1, 2)], [1])], list[Point])
        assert_type([sum async for sum in client.map("add", [1], [2])], list[Any])

        async with client.open(halved, offset=2) as conversation:
            assert_type(conversation, shmrpc.StreamCall[int, float])
            await conversation.write(1)
            assert_type(await conversation.read(), float)
            await conversation.write("one")  # type: ignore[arg-type]
        async with client.open(total, 2) as upload:
            assert_type(await upload.result(), int)
        async with client.open(ticks, 3) as download:
            assert_type(await download.read(), int)

        async with client.batch() as batch:
            sum_of = batch.call(add, 1, 2)
            greeting_of = batch.call(greet, "Ada")
        assert_type(sum_of, asyncio.Future[int])
        assert_type(greeting_of, asyncio.Future[str])

        await client.notify(add, 1, 2)
        await client.notify(greet, "Ada")
        await client.notify("add", 1, 2)
        assert_type(client.with_options(timeout=1), shmrpc.Client)
        assert_type(await client.describe(), shmrpc.Description)
        assert_type(await client.add(1, 2), Any)
    assert_type(await shmrpc.connect("offered"), shmrpc.Client)


async def refused(client: shmrpc.Client, words: AsyncIterator[str]) -> None:
    await client.call(add, "one")  # type: ignore[call-overload]
    await client.call(add)  # type: ignore[call-overload]
    await client.call(add, 1, 2, 3)  # type: ignore[call-overload]
    await client.call(greet, "Ada", "?")  # type: ignore[call-overload]
    await client.call(greet, "Ada", ending="?")  # type: ignore[call-arg]
    await client.call(move, {"x": 1, "y": 2}, 1)  # type: ignore[call-overload]
    await client.call(total, words)  # type: ignore[call-overload]
    await client.call(total, ["one"])  # type: ignore[call-overload]
    await client.call(total, [1], "two")  # type: ignore[call-overload]
    await client.call(3)  # type: ignore[call-overload]
    await client.call(ticks, 3)  # type: ignore[misc]
    client.call(ticks, "three")  # type: ignore[call-overload]
    client.call(halved, [1], 2)  # type: ignore[call-overload]
    async for _ in client.call(add, 1, 2):  # type: ignore[attr-defined]
        pass
    client.map(add, 1, 2)  # type: ignore[call-overload]
    client.map(add, ["one"])  # type: ignore[arg-type]
    client.map(add, [1], ["two"])  # type: ignore[arg-type]
    client.map(move, [Point(1, 2)])  # type: ignore[arg-type]
    client.batch().call(add, "one")  # type: ignore[call-overload]
    await client.notify(greet, 1)  # type: ignore[call-overload]
