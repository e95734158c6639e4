"""Far more data than memory, as streams; and bodies far larger than the ring.

With SHMRPC_LONG=1 in the environment the amounts are those that one waits for.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import shmrpc
from shmrpc import _core
from shmrpc.values import block_of
from tests.helpers.array_service import Bytes, filled, is_filled, memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess, eventually, eventually_in_loop

MIB = 1 << 20
LONG = os.environ.get("SHMRPC_LONG") == "1"

#: Bytes of a stream, and of the memory that it goes through.
AMOUNT, LIMIT = (10 << 30, 256 * MIB) if LONG else (1 << 30, 64 * MIB)
#: Items of a list of dicts, of about 70 bytes each, and the largest body.
DICTS, MAX_FRAME = (3_000_000, 512 * MIB) if LONG else (200_000, 128 * MIB)

#: Seconds after which memory that is free is given back: core/src/connection/sweeper.rs.
IDLE = 5.0


@one_loop
@pytest.mark.parametrize("size", [MIB, 12 * MIB])
async def test_a_stream_of_far_more_than_memory_to_a_slow_consumer(size: int) -> None:
    number = AMOUNT // size
    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(LIMIT)) as server:
        async with shmrpc.connect(server.name, max_memory=LIMIT) as client:
            place = 0
            async for item in client.fills(number, size):
                assert is_filled(item, place)
                assert isinstance(block_of(item), _core.Buffer), "none had to be copied again"
                place += 1
                if place % 16 == 0:
                    await asyncio.sleep(0.01)
                    assert (await client.memory())[0] <= LIMIT
            assert place == number
            assert memory_of(client) == (0, 0)
            del item
            gc.collect()
            assert (await client.memory())[1] == 0


@one_loop
@pytest.mark.parametrize("size", [MIB, 12 * MIB])
async def test_a_stream_of_far_more_than_memory_to_a_slow_server(size: int) -> None:
    number, most = AMOUNT // size, 0
    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(LIMIT)) as server:
        async with shmrpc.connect(server.name, max_memory=LIMIT) as client:

            async def items() -> AsyncIterator[Bytes]:
                nonlocal most
                for place in range(number):
                    yield filled(place, size)
                    most = max(most, memory_of(client)[0])

            assert await client.count_fills(items(), 0.0005) == number
            assert size <= most <= LIMIT
            gc.collect()
            assert await eventually_in_loop(lambda: memory_of(client)[1] == 0)
            assert (await client.memory())[1] == 0


def test_streams_of_far_more_than_memory_without_a_loop() -> None:
    size, limit, number = MIB, 8 * MIB, 200
    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(limit)) as server:
        with shmrpc.sync.connect(server.name, max_memory=limit) as client:
            for place, item in enumerate(client.fills(number, size)):
                assert is_filled(item, place)
            assert place == number - 1
            assert client.memory()[0] <= limit

            def items() -> Iterator[Bytes]:
                for place in range(number):
                    yield filled(place, size)
                    assert memory_of(client)[0] <= limit

            assert client.count_fills(items()) == number
            assert eventually(lambda: memory_of(client)[1] == 0)


@one_loop
async def test_streams_built_in_place_both_ways_at_a_time() -> None:
    size, limit, number = 300_000, 16 * MIB, 300  # The limit is a little more than the windows of both streams.
    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(limit)) as server:
        async with shmrpc.connect(server.name, max_memory=limit) as client:

            async def items() -> AsyncIterator[Bytes]:
                for seed in range(number):
                    array = client.empty(size, "uint8")
                    array[:] = numbered(seed, size)
                    yield array

            async def down() -> list[int]:
                return [sum_of(item) async for item in client.built_arrays(number, size)]

            async def back() -> list[int]:
                return [sum_of(item) async for item in client.echo_each(items())]

            expected = [sum_of(numbered(seed, size)) for seed in range(number)]
            assert list(await asyncio.gather(down(), back(), client.sums(items()))) == [expected] * 3
            gc.collect()
            assert await eventually_in_loop(lambda: memory_of(client)[1] == 0)


@one_loop
async def test_a_consumer_that_keeps_all_items_gets_what_finds_no_memory_as_copies() -> None:
    size, limit, number = MIB, 16 * MIB, 60
    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(limit)) as server:
        async with shmrpc.connect(server.name, max_memory=limit) as client:
            items = [item async for item in client.arrays(number, size)]
            shared = [isinstance(block_of(item), _core.Buffer) for item in items]
            assert shared == [True] * sum(shared) + [False] * (number - sum(shared))
            assert limit // size // 2 <= sum(shared) <= limit // size
            assert all((item == numbered(seed, size)).all() for seed, item in enumerate(items))
            assert (await client.memory())[0] <= limit
            sums = [sum_of(item) for item in items]
            assert await client.sums_of_all(items) == sums, "the server keeps them all, too"
            assert await client.sums_of_all(numbered(seed, size) for seed in range(number)) == sums
            assert memory_of(client)[0] <= limit
            with pytest.raises(OSError, match="no shared memory for a buffer"):
                _ = [item async for item in client.built_arrays(number, size)]
            del items
            gc.collect()
            assert [sum_of(item) async for item in client.built_arrays(number, size)] == sums


def dicts(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": f"the name of number {n}", "tags": ["a", "bc", str(n)], "x": n * 1.5} for n in range(count)
    ]


@pytest.mark.parametrize("max_memory", [MIB, 1 << 30])
def test_bodies_far_larger_than_the_ring(max_memory: int) -> None:
    """Such bodies travel by reference, or in pieces where there is no memory for them."""
    value = dicts(DICTS)
    options = ("--max-memory", str(max_memory), "--max-frame", str(MAX_FRAME))
    with ServerProcess("tests.helpers.array_service:service", *options) as server:
        with shmrpc.sync.connect(server.name, max_memory=max_memory, max_frame=MAX_FRAME) as client:
            began = time.monotonic()
            assert client.echo(value) == value
            reserved = memory_of(client)[0]
            assert all(size <= max_memory for size in (reserved, client.memory()[0]))
            if time.monotonic() - began < IDLE:  # Later the memory may have been returned to the host.
                assert (reserved > 10 * MIB) == (max_memory > MIB)
            assert eventually(lambda: memory_of(client)[1] == 0)


@one_loop
@pytest.mark.parametrize("max_memory", [MIB, 1 << 30])
async def test_bodies_over_the_limit_are_refused_and_the_connection_lives(max_memory: int) -> None:
    value, limit = dicts(10_000), 300_000
    options = ("--max-memory", str(max_memory), "--max-frame", str(limit))
    with ServerProcess("tests.helpers.array_service:service", *options) as server:
        async with shmrpc.connect(server.name, max_memory=max_memory) as client:
            small = value[:3000]
            assert await client.echo(small) == small
            for _ in range(3):
                with pytest.raises(shmrpc.FrameTooLarge, match=rf"echo\(\): .* limit is {limit}; set max_frame="):
                    await client.echo(value)
                with pytest.raises(shmrpc.FrameTooLarge, match=f"the result is too large: .* limit is {limit}; set"):
                    await client.text(limit)
                with pytest.raises(shmrpc.FrameTooLarge):
                    _ = [item async for item in client.echo_each([small, value])]
                assert await client.echo(small) == small
            array = numbered(1, limit // 2)
            assert (await client.echo([small, array]))[0] == small
            with pytest.raises(shmrpc.FrameTooLarge):
                await client.echo([value, array])
            gc.collect()
            assert await eventually_in_loop(lambda: memory_of(client)[1] == 0), "what was lent for it was taken back"
            assert await client.echo(small) == small
