"""Calls that go well, on both loops, from the same loop and from another process."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import random
import threading
import uuid

import pytest

import shmrpc
from tests.helpers.server_process import ServerProcess
from tests.helpers.services import Colour, Order, Pair, Point, add, greet, kinds, move

SHARED_SERVER = True

pytestmark = pytest.mark.usefixtures("runtime")


async def test_the_three_ways_to_call(client: shmrpc.Client) -> None:
    assert await client.add(1, 2) == 3
    assert await client.call(add, 1, 2) == 3
    assert await client.call("greet", "Ada", punctuation="?") == "Hello, Ada?"
    assert await client.call(greet, "Ada") == "Hello, Ada!"


async def test_a_server_in_the_same_loop(near: shmrpc.Client) -> None:
    assert [await near.add(i, 1) for i in range(200)] == list(range(1, 201))
    assert await near.sleep(0.01, "slept") == "slept"


def test_a_client_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    assert sync_client.add(1, 2) == 3
    assert sync_client.call(add, 1, 2) == 3
    assert sync_client.call("greet", "Ada", punctuation="?") == "Hello, Ada?"
    assert sync_client.call(greet, "Ada") == "Hello, Ada!"
    assert sync_client.sleep(0.05, "slept") == "slept"


async def test_positional_keyword_and_default_arguments(client: shmrpc.Client) -> None:
    assert await client.defaults(1) == [1, 2, [], "c", {}]
    assert await client.defaults(1, 5) == [1, 5, [], "c", {}]
    assert await client.defaults(1, 5, 6, 7) == [1, 5, [6, 7], "c", {}]
    assert await client.defaults(b=3, a=1) == [1, 3, [], "c", {}]
    assert await client.defaults(1, c="x", d=1.5) == [1, 2, [], "x", {"d": 1.5}]
    assert await client.defaults(*range(40)) == [0, 1, list(range(2, 40)), "c", {}]
    assert await client.keyword_only(a=1) == 1
    assert await client.nothing() is None


async def test_arguments_named_like_our_own_parameters(client: shmrpc.Client) -> None:
    assert await client.defaults(1, timeout=1.0, name=2.0, self=3.0, endpoint=4.0, args=5.0) == [
        1, 2, [], "c", {"timeout": 1.0, "name": 2.0, "self": 3.0, "endpoint": 4.0, "args": 5.0},
    ]  # fmt: skip


async def test_every_kind_of_annotation(client: shmrpc.Client) -> None:
    arrived = await client.call(
        kinds, 1, 1.5, "t", b"r", True, None, [1], (1, "a"), {"k": 1}, {1, 2}, None, "a", Colour.BLUE,
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), decimal.Decimal("1.10"), uuid.uuid4(),
        Point(1, 2), {"depth": 1}, Pair(1, "r"), Order("book", 2),
    )  # fmt: skip
    assert arrived == [
        "int", "float", "str", "bytes", "bool", "NoneType", "list", "tuple", "dict", "set", "NoneType", "str",
        "Colour", "datetime", "Decimal", "UUID", "Point", "dict", "Pair", "Order",
    ]  # fmt: skip


async def test_a_function_as_endpoint_gives_the_declared_type(client: shmrpc.Client) -> None:
    assert await client.call(move, Point(1, 2), by=10) == Point(11, 12)
    assert await client.move(Point(1, 2)) == {"x": 2, "y": 3}


async def test_values_of_messagepack_need_no_annotations(client: shmrpc.Client) -> None:
    for value in [
        None,
        True,
        -1,
        2**63,
        -(2**63),
        1.5,
        "ü\0",
        b"\xff",
        [1, [2]],
        {"a": {"b": None}},
        {1: "int key"},
    ]:
        assert await client.echo(value) == value


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 32_000, 33_000, 65_511, 65_512, 65_513, 70_000, 1_000_000, 10_000_001])
async def test_bodies_of_any_size(client: shmrpc.Client, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert await client.echo(value) == value


def test_bodies_of_any_size_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    for size in [0, 33_000, 65_513, 1_000_000, 10_000_001]:
        value = random.Random(size).randbytes(size)
        assert sync_client.echo(value) == value


async def test_many_large_calls_in_flight_keep_apart(client: shmrpc.Client) -> None:
    async def one(number: int) -> None:
        value = bytes([number % 256]) * (number * 5_003)
        assert await client.echo(value) == value

    await asyncio.gather(*(one(number) for number in range(60)))


async def test_thousands_of_calls_in_flight_answered_in_any_order(client: shmrpc.Client) -> None:
    delays = [random.Random(i).random() / 4 for i in range(3000)]
    assert await asyncio.gather(*(client.sleep(delay, i) for i, delay in enumerate(delays))) == list(range(3000))


async def test_quick_calls_overtake_slow_ones(client: shmrpc.Client) -> None:
    slow = asyncio.create_task(client.sleep(60, "slow"))
    soon = asyncio.create_task(client.sleep(0.05, "soon"))
    await asyncio.sleep(0.01)
    assert [await client.add(i, 1) for i in range(2000)] == list(range(1, 2001))
    assert await soon == "soon"
    assert not slow.done()
    slow.cancel()


async def test_many_tasks_share_a_client(client: shmrpc.Client) -> None:
    async def caller(base: int) -> list[int]:
        return [await client.add(base, i) for i in range(300)]

    results = await asyncio.gather(*(caller(base) for base in range(64)))
    assert results == [[base + i for i in range(300)] for base in range(64)]


def test_many_threads_share_a_client(sync_client: shmrpc.sync.Client) -> None:
    wrong: list[object] = []

    def caller(base: int) -> None:
        for i in range(200):
            if (result := sync_client.add(base, i)) != base + i:
                wrong.append((base, i, result))
        if (result := sync_client.sleep(0.05, base)) != base:
            wrong.append((base, result))
        value = bytes([base]) * 100_000
        if sync_client.echo(value) != value:
            wrong.append(base)

    threads = [threading.Thread(target=caller, args=(base,)) for base in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert wrong == []


async def test_many_clients_of_one_server(server: ServerProcess) -> None:
    async def one(number: int) -> list[int]:
        async with shmrpc.connect("tested") as client:
            return [await client.add(number, i) for i in range(50)]

    results = await asyncio.gather(*(one(number) for number in range(40)))
    assert results == [[number + i for i in range(50)] for number in range(40)]


async def test_two_clients_in_one_loop_and_the_server_too(near: shmrpc.Client) -> None:
    async with shmrpc.connect("tested") as other:
        for i in range(50):
            assert await near.add(i, 1) == i + 1
            assert await other.add(i, 2) == i + 2


async def test_an_await_that_never_suspends_lets_others_run(client: shmrpc.Client) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for i in range(20_000):
        await client.add(i, 1)
    task.cancel()
    # 20,000 calls take tens of milliseconds at the least: without yielding this would be 1.
    assert turns > 10


async def test_a_client_of_one_codec_calls_a_server_of_the_other(server: ServerProcess) -> None:
    async with shmrpc.connect("tested", codec="msgpack") as client:
        assert await client.add(1, 2) == 3
        assert await client.call(move, Point(1, 2)) == Point(2, 3)
        with pytest.raises(shmrpc.InvalidArguments):
            await client.add(1, "x")


async def test_a_server_with_the_reference_codec() -> None:
    with ServerProcess("tests.helpers.services:service", "--codec", "msgpack", "--loop", "asyncio"):
        async with shmrpc.connect("tested") as client:
            assert await client.add(1, 2) == 3
            assert await client.call(move, Point(1, 2)) == Point(2, 3)
            with pytest.raises(shmrpc.InvalidArguments, match=r"parameter 'b'.*int.*str"):
                await client.add(1, "x")


async def test_never_spinning_works_as_well() -> None:
    with ServerProcess("tests.helpers.services:service", "--spin", "0"):
        async with shmrpc.connect("tested", spin=0) as client:
            assert [await client.add(i, 1) for i in range(100)] == list(range(1, 101))


async def test_awaiting_connect(server: ServerProcess) -> None:
    client = await shmrpc.connect("tested")
    try:
        assert await client.add(1, 2) == 3
    finally:
        await client.close()
