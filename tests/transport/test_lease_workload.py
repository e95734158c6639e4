"""Random exchanges while memory is short: no byte of an array that either side keeps ever changes."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import shmrpc
from tests.helpers.array_service import memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.scale import scaled
from tests.helpers.server_process import ServerProcess, eventually, eventually_in_loop
from tests.transport.array_exchange import Item, KeptArrays

#: The least there may be: it is used up all the time.
MEMORY = 1 << 20


async def exchange(client: shmrpc.Client, kept: KeptArrays, rounds: int) -> None:
    """Several calls at a time, and a stream each way at the same time."""

    async def call() -> None:
        for _ in range(rounds):
            kept.receive(await client.trade(kept.give()))

    async def read() -> None:
        async for items in client.given(rounds):
            kept.receive(items)
            await asyncio.sleep(0)

    async def gifts() -> AsyncIterator[list[Item]]:
        for _ in range(rounds):
            yield kept.give()
            await asyncio.sleep(0)

    async def write() -> None:
        assert await client.taken(gifts()) == rounds

    await asyncio.gather(call(), call(), call(), read(), write())


@one_loop
@pytest.mark.parametrize("seed", range(scaled(1, 8)))
async def test_arrays_that_either_side_keeps_never_change(seed: int) -> None:
    with ServerProcess("tests.transport.array_exchange:service", "--max-memory", str(MEMORY)) as server:
        async with shmrpc.connect(server.name, max_memory=MEMORY) as client:
            kept = KeptArrays(seed, client.empty)
            await client.begin(seed + 100)
            for _ in range(4):
                await exchange(client, kept, 150)
                kept.check()
                sizes = memory_of(client)[0], (await client.memory())[0]
                assert max(sizes) <= MEMORY
            refused, checked = await client.end()
            assert min(refused, kept.refused) > 50, "memory was short on both sides"
            assert min(checked, kept.checked) > 5000
            kept.drop_all()
            gc.collect()
            assert await eventually_in_loop(lambda: memory_of(client)[1] == 0)
            assert (await client.memory())[1] == 0, "all that was lent has come back"


def test_threads_that_share_a_client_get_each_their_own() -> None:
    errors: list[BaseException] = []

    def work(client: shmrpc.sync.Client, seed: int) -> None:
        dice, kept = random.Random(seed), []
        try:
            for _ in range(250):
                size = dice.randrange(4096, 60_000)
                source = numbered(seed * 1000 + size, size)
                try:
                    array: Any = client.empty(size, "uint8") if dice.random() < 0.5 else np.empty(size, "uint8")
                except shmrpc.SharedMemoryError:
                    array = np.empty(size, "uint8")
                array[:] = source
                match dice.randrange(3):
                    case 0:
                        assert client.checksum(array) == sum_of(source)
                    case 1:
                        kept.append((client.inverted(array), ~source))
                    case _:
                        kept.append((client.numbers(seed, size), numbered(seed, size)))
                kept.append((array, source))
                while len(kept) > 4:
                    kept.pop(dice.randrange(len(kept)))
                for found, expected in kept:
                    assert (found == expected).all()
        except BaseException as error:
            errors.append(error)

    with ServerProcess("tests.helpers.array_service:service", "--max-memory", str(MEMORY)) as server:
        with shmrpc.sync.connect(server.name, max_memory=MEMORY) as client:
            threads = [threading.Thread(target=work, args=(client, seed)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(240)
                assert not thread.is_alive()
            assert not errors, errors[0]
            client.echo_later(None, 0.01)
            gc.collect()
            assert eventually(lambda: memory_of(client)[1] == 0)
            assert client.memory()[1] == 0
