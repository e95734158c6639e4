"""Memory that is shared between threads, streams and calls that end in unusual ways."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import shmrpc
from tests.helpers.array_service import memory_of, numbered
from tests.helpers.server_process import ServerProcess, eventually_in_loop

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True
SIZE = 300_000


async def unused_by_server(client: shmrpc.Client) -> bool:
    for _ in range(500):
        if (await client.memory())[1] == 0:
            return True
        await client.echo_later(None, 0.01)
    return False


def test_threads_get_their_own_arrays_back() -> None:
    """A thread must hold an array that comes back by reference before another thread receives the end of its loan."""
    errors: list[BaseException] = []

    def work(client: shmrpc.sync.Client, seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(1000):
                if errors:
                    return
                byte, size = dice.randrange(256), dice.randrange(4096, 100_000)
                assert (client.echo(np.full(size, byte, "u1")) == byte).all()
        except BaseException as error:
            errors.append(error)

    with ServerProcess(TARGET) as server, shmrpc.sync.connect(server.name, max_memory=4 << 20) as client:
        threads = [threading.Thread(target=work, args=(client, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]


async def test_streams_whose_source_fails_give_their_memory_back(client: shmrpc.Client) -> None:
    for _ in range(5):
        with pytest.raises(shmrpc.EncodeError):
            await client.sums([numbered(1, SIZE), object()])
    assert await eventually_in_loop(lambda: memory_of(client)[1] == 0)


async def test_items_of_a_stream_that_was_left_are_let_go_of(client: shmrpc.Client) -> None:
    stream = client.arrays(1000, SIZE)
    await anext(stream)
    await client.echo_later(None, 0.05)  # More come meanwhile.
    await stream.aclose()
    del stream
    gc.collect()
    await client.echo_later(None, 0.05)  # The server's loop turns, and the stream ends there, before it collects.
    await client.collect()
    assert await unused_by_server(client)


async def test_an_item_that_was_let_go_of_is_not_kept_until_the_next(client: shmrpc.Client) -> None:
    stream = client.slow_arrays(SIZE)
    item = await anext(stream)
    del item
    assert await unused_by_server(client)
    await stream.aclose()


async def test_frame_too_large_names_both_limits() -> None:
    with ServerProcess(TARGET, "--max-memory", str(1 << 20), "--max-frame", str(1 << 20)) as server:
        async with shmrpc.connect(server.name, max_memory=1 << 20) as client:
            with pytest.raises(shmrpc.FrameTooLarge, match="max_memory="):
                await client.echo(numbered(1, 2 << 20))
            with pytest.raises(shmrpc.FrameTooLarge, match="max_memory="):
                await client.numbers(1, 2 << 20)


async def test_writes_in_place_are_visible_in_small_and_strided_arrays(client: shmrpc.Client) -> None:
    small, wide = client.empty(100, "u1"), client.empty(100_000, "u1")
    small[:] = wide[:] = 1
    await client.invert(small)
    await client.invert(wide[::50])
    assert (small == 254).all()
    assert (wide[::50] == 254).all()
    assert (wide[1::50] == 1).all()


async def test_a_writable_array_that_an_endpoint_keeps_is_a_copy(client: shmrpc.Client) -> None:
    array = client.empty(100_000, "u1")
    array[:] = 1
    await client.invert_and_keep(array)
    written = await client.sum_of_kept("written")
    array[:] = 7
    assert await client.sum_of_kept("written") == written


async def test_an_element_that_cannot_be_hashed_is_an_argument_that_does_not_fit(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'values'"):
        await client.unique(values=[[(1,)]])
    async with client.batch() as batch:
        future = batch.unique(values=[[(1,)]])
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'values'"):
        await future
