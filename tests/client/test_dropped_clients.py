"""A client that is dropped open is closed at once; whatever was made of it keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import shmrpc
from shmrpc.testing import Network
from tests.helpers import stream_service
from tests.helpers.server_process import PATIENCE, eventually_in_loop
from tests.streams.test_streams import Source

NAME = stream_service.service.name


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector: dropped clients are freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def server() -> AsyncIterator[shmrpc.Server]:
    async with shmrpc.serve(stream_service.service) as server:
        yield server


async def connected(**options: Any) -> shmrpc.Client:
    return await shmrpc.connect(NAME, timeout=PATIENCE, **options)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _untouched(client: shmrpc.Client) -> object:
    return None


async def _calls(client: shmrpc.Client) -> object:
    assert await client.add(1, 2) == 3
    assert await client.call(stream_service.add, 1, 2) == 3
    assert await client.call("add", 1, 2) == 3
    return client.add


async def _options(client: shmrpc.Client) -> object:
    late, told = client.with_options(timeout=PATIENCE), client.with_options(metadata={"a": "b"})
    assert [await late.add(1, 2), await told.add(1, 2)] == [3, 3]
    return late, told


async def _batches(client: shmrpc.Client) -> object:
    async with client.batch() as batch:
        batch.add(1, 2)
    assert [sums async for sums in client.map("add", [1], [2])] == [3]
    return batch


async def _streams(client: shmrpc.Client) -> object:
    assert [item async for item in client.count(3)] == [0, 1, 2]
    assert await client.total(Source().numbers(3)) == 3
    return client.count(3)


async def _an_open_stream(client: shmrpc.Client) -> object:
    stream = client.flood()
    assert await anext(stream) == 0
    return stream


USES: list[Callable[[shmrpc.Client], Awaitable[object]]] = [
    _untouched,
    _calls,
    _options,
    _batches,
    _streams,
    _an_open_stream,
]


@contextlib.contextmanager
def warned() -> Iterator[None]:
    """Check that the block drops one open client, with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(warning.message) for warning in caught] == [f"unclosed client of {NAME!r}"]
    assert caught[0].category is ResourceWarning


async def let_go(server: shmrpc.Server, before: int) -> bool:
    """Return True once the server has no connection and this process has no more descriptors than before."""
    return await eventually_in_loop(lambda: server.connections == 0 and descriptors() == before)


@pytest.mark.parametrize("use", USES)
async def test_a_dropped_client_is_closed_at_once(
    server: shmrpc.Server, use: Callable[[shmrpc.Client], Awaitable[object]]
) -> None:
    before = descriptors()
    with warned():
        client = await connected()
        made = await use(client)
        assert await eventually_in_loop(lambda: server.connections == 1)
        del client
        if made is not None:
            assert server.connections == 1, "what was made of it keeps it"
        del made
        assert await let_go(server, before)


async def test_endpoints_batches_and_streams_work_after_their_client_is_dropped(server: shmrpc.Server) -> None:
    client = await connected()
    add, late, batch, stream = client.add, client.with_options(timeout=PATIENCE), client.batch(), client.count(3)
    task = asyncio.create_task(client.add(1, 2))
    del client
    assert await task == 3
    assert await add(1, 2) == 3
    assert await late.add(1, 2) == 3
    async with batch:
        future = batch.add(1, 2)
    assert future.result() == 3
    assert [item async for item in stream] == [0, 1, 2]
    await late.close()


async def test_a_client_dropped_by_another_thread(server: shmrpc.Server) -> None:
    before = descriptors()
    with warned():
        held = [await connected()]
        await asyncio.to_thread(held.clear)
        assert await let_go(server, before)


async def test_a_client_that_is_dropped_while_it_looks_for_a_server() -> None:
    first = shmrpc.serve(stream_service.service)
    async with first:
        held = [await connected(reconnect=True)]
        await first.close()
        assert await eventually_in_loop(lambda: "not connected" in repr(held[0]))
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert others, "it looks"
    held.clear()
    assert await eventually_in_loop(lambda: not asyncio.all_tasks() & others)
    async with shmrpc.serve(stream_service.service) as second:
        await asyncio.sleep(0.05)
        assert second.connections == 0


async def test_a_client_of_the_same_loop() -> None:
    network = Network()
    with warned():
        async with network.serve(stream_service.service) as server:
            client = await network.connect(NAME)
            assert await client.add(1, 2) == 3
            del client
            assert await eventually_in_loop(lambda: server.connections == 0)


def test_a_thread_client_that_was_used_is_closed_at_once() -> None:
    served, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with shmrpc.serve(stream_service.service):
            served.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert served.wait(PATIENCE)
    with warned():
        client = shmrpc.sync.connect(NAME, timeout=PATIENCE).connect()
        add, before = client.add, descriptors()
        del client
        assert add(1, 2) == 3
        del add
        assert descriptors() < before
    done.set()
    thread.join()
