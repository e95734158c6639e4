"""Loops that are closed under a connection, and several loops at a time: clear errors, and no descriptor is left."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import uvloop

import shmrpc
from tests.helpers.scale import scaled
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.time_bound import bounded
from tests.reliability.watched_service import as_new, held_by, service

TARGET = "tests.reliability.watched_service:service"

NAME = "tested.watched"

Make = Callable[[], asyncio.AbstractEventLoop]
both = pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return as_new(shared_server)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


@pytest.fixture(autouse=True)
def first_loops() -> None:
    """Open a loop of each kind, because the first one may open descriptors that the process keeps."""
    for make in (asyncio.new_event_loop, uvloop.new_event_loop):
        make().close()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def connected() -> shmrpc.Client:
    client = await shmrpc.connect(NAME)
    assert await client.add(1, 2) == 3
    return client


@both
def test_a_client_whose_loop_was_closed_raises_that(server: ServerProcess, make: Make) -> None:
    before = descriptors()
    loop = make()
    client = loop.run_until_complete(connected())
    loop.close()

    async def use(client: shmrpc.Client) -> None:
        said = "the event loop of this client of 'tested.watched' was closed; connect again"
        with pytest.raises(shmrpc.LocalProtocolError, match=said):
            await client.with_options(timeout=5).wait_for("never")
        with pytest.raises(shmrpc.LocalProtocolError, match=said):
            await client.wait_for("never")
        with pytest.raises(shmrpc.LocalProtocolError, match=said):
            await anext(client.flood(1))

    asyncio.run(use(client))
    asyncio.run(client.close())
    asyncio.run(client.close())
    with pytest.raises(shmrpc.ConnectionLost, match="closed"):
        asyncio.run(client.add(1, 2))
    del client, loop
    assert eventually(lambda: descriptors() == before, 30)


@both
def test_a_client_dropped_after_its_loop_leaves_no_descriptor(server: ServerProcess, make: Make) -> None:
    """The client was not closed: only the socket's own warning appears."""
    base = held_by(server.pid)["descriptors"]
    before = descriptors()
    for _ in range(scaled(5, 50)):
        loop = make()
        client = loop.run_until_complete(connected())
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del client, loop
            gc.collect()
    assert eventually(lambda: descriptors() == before, 30)
    assert eventually(lambda: held_by(server.pid)["descriptors"] == base, 30), "the server keeps a descriptor"


@both
def test_a_cancelled_call_leaves_no_descriptor_when_the_loop_is_closed(server: ServerProcess, make: Make) -> None:
    before = descriptors()
    loop = make()
    client = loop.run_until_complete(connected())
    call = loop.create_task(client.wait_for("never"))
    loop.run_until_complete(asyncio.sleep(0.01))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    loop.run_until_complete(client.close())
    loop.close()
    del client, call, loop
    assert eventually(lambda: descriptors() == before, 30)


@both
def test_a_server_whose_loop_is_closed_disconnects_its_clients(make: Make) -> None:
    """The clients raise ConnectionLost, and the name is free."""

    async def begin() -> shmrpc.Server:
        server = shmrpc.serve(service)
        await server.__aenter__()
        return server

    ready, finish = threading.Event(), threading.Event()

    def serve() -> None:
        loop = make()
        server = loop.run_until_complete(begin())
        ready.set()
        while not finish.is_set():
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del server, loop
            gc.collect()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(30)
    with shmrpc.sync.connect(NAME) as client:
        assert client.add(1, 2) == 3
        finish.set()
        thread.join(30)
        assert not thread.is_alive()
        gc.collect()
        with pytest.raises(shmrpc.ConnectionLost):
            client.with_options(timeout=30).add(1, 2)
    before = descriptors()
    for close in (True, False, True):
        loop = make()
        again = loop.run_until_complete(begin())
        if close:
            loop.run_until_complete(again.close())
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del again, loop
            assert descriptors() == before


@both
def test_several_threads_each_with_a_loop_and_a_client_are_served(server: ServerProcess, make: Make) -> None:
    clients: list[shmrpc.Client] = []
    outcomes: list[int] = []
    all_there = threading.Barrier(4)

    async def work(n: int) -> None:
        async with shmrpc.connect(NAME) as client:
            clients.append(client)
            await asyncio.to_thread(all_there.wait, 60)
            for i in range(scaled(300, 5000)):
                assert await client.add(i, n) == i + n
            other = next(one for one in clients if one is not client)
            for i in range(scaled(20, 500)):
                with pytest.raises(shmrpc.LocalProtocolError, match="another event loop"):
                    await other.wait_for("never")
                assert await client.add(i, n) == i + n, "the error has lost an answer"
            assert await client.sleep(0.001, n) == n
            await asyncio.to_thread(all_there.wait, 60)
            outcomes.append(n)

    def run(n: int) -> None:
        loop = make()
        try:
            loop.run_until_complete(work(n))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(outcomes) == [0, 1, 2, 3]
