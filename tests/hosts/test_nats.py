"""Behaviour specific to NATS: discovery, errors when a server or NATS is lost, and the choice among addresses."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import nats as nats_py
import numpy as np
import pytest

import shmrpc
from shmrpc import access_log
from shmrpc.transport.nats import messages, subjects
from shmrpc.wire import control, frames
from tests.helpers.nats_servers import NatsServer, flush
from tests.helpers.prepared_python import run_prepared
from tests.helpers.server_process import PATIENCE, InThread, Script, ServerProcess, eventually

LOOP = "either"

service = shmrpc.Service("tested.nats")
#: Calls of process() that have begun here.
begun: list[float] = []


@service.endpoint
def double(number: int) -> int:
    return 2 * number


@service.endpoint
def same(value: Any) -> Any:
    return value


@service.endpoint
async def process(seconds: float = 0) -> int:
    begun.append(seconds)
    await asyncio.sleep(seconds)
    return os.getpid()


@service.endpoint
def under_way() -> int:
    return len(begun)


@service.endpoint
async def ticks(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@service.endpoint
async def endless() -> AsyncIterator[bytes]:
    begun.append(0)
    try:
        while True:
            yield bytes(1000)
    finally:
        begun.clear()


@service.endpoint
def fill(array: shmrpc.Writable[np.ndarray[Any, Any]]) -> int:
    array[:] = 9
    return int(array.sum())


@service.endpoint
def zeros(size: int) -> Any:
    return np.zeros(size, np.uint8)


@pytest.fixture
def own() -> Iterator[NatsServer]:
    """Yield a server of NATS that the test may kill."""
    server = NatsServer()
    yield server
    server.close()


def connect(server: NatsServer, **options: Any) -> shmrpc.Client:
    return shmrpc.connect(service.name, **{"at": server.url, "timeout": PATIENCE, **options})


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "shmrpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_url_names_the_service_and_the_client_its_place(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), shmrpc.connect(f"{nats.url}/{service.name}") as client:
        assert await client.double(4) == 8
        assert client.address == nats.url


async def test_the_access_log_leaves_unknown_processes_out(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shmrpc.access")
    async with shmrpc.serve(service, at=nats.url, interceptors=[access_log.interceptor()]), connect(nats) as client:
        await client.double(1)
    assert any("tested.nats.double() pid=- uid=- " in each.getMessage() for each in caplog.records)


async def test_a_service_without_a_server_is_unavailable_at_once(nats: NatsServer) -> None:
    with pytest.raises(
        shmrpc.ServiceUnavailable,
        match=r"no server of .* at nats://.*: none of its servers is connected to that NATS; start",
    ):
        await connect(nats, timeout=0)


async def test_a_name_like_one_that_is_served_is_pointed_to(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url):
        with pytest.raises(
            shmrpc.ServiceUnavailable, match=r"did you mean 'tested\.nats', which is served\? If not, start"
        ):
            await shmrpc.connect("tested.nast", at=nats.url, timeout=0.2)
        with pytest.raises(shmrpc.ServiceUnavailable, match="no server of 'another'") as caught:
            await shmrpc.connect("another", at=nats.url, timeout=0.2)
        assert "did you mean" not in str(caught.value)


async def test_a_server_that_cannot_be_reached_is_named() -> None:
    async def serve() -> None:
        async with shmrpc.serve(service, at="nats://127.0.0.1:9"):
            pass

    with pytest.raises(
        shmrpc.ServiceUnavailable,
        match=r"cannot reach NATS at nats://127.0.0.1:9: .*(refused|Connect call failed).*; is nats-server running",
    ):
        await serve()
    with pytest.raises(
        shmrpc.ServiceUnavailable,
        match=r"cannot reach NATS at nats://127.0.0.1:9: .*(refused|Connect call failed).*; is nats-server running",
    ):
        await shmrpc.connect(service.name, at="nats://127.0.0.1:9", timeout=0)


async def test_all_clients_and_servers_of_a_loop_share_one_connection(own: NatsServer) -> None:
    async with shmrpc.serve(service, at=own.url), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(own)) for _ in range(10)]
        assert await asyncio.gather(*(each.double(1) for each in clients)) == [2] * 10
        before = await nats_py.connect(own.url)
        clients.append(await stack.enter_async_context(connect(own)))
        after = await nats_py.connect(own.url)
        assert (before.client_id or 0) + 1 == after.client_id  # NATS numbers what connects: no other one came between.
        await before.close()
        await after.close()


@pytest.mark.parametrize("size", [0, 1, 100_000, 1_000_000, 9_000_000])
async def test_arrays_and_bytes_of_any_size_arrive_as_what_they_were(nats: NatsServer, size: int) -> None:
    async with shmrpc.serve(service, at=nats.url), connect(nats) as client:
        array = np.arange(size, dtype=np.uint8)
        back = await client.same({"array": array, "bytes": array.tobytes(), "text": "x" * size})
        assert type(back["array"]) is np.ndarray and back["array"].dtype == np.uint8
        assert (back["array"] == array).all()
        assert (back["bytes"], back["text"]) == (array.tobytes(), "x" * size)


async def test_large_bodies_both_ways_at_once_wait_for_each_other(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), connect(nats) as client:
        arrays = [np.full(3 << 20, number, np.uint8) for number in range(12)]
        for array, back in zip(arrays, await asyncio.gather(*map(client.same, arrays)), strict=True):
            assert (array == back).all()


async def test_a_nats_that_takes_small_messages_alone_will_do() -> None:
    server = NatsServer("max_payload: 4096")
    try:
        async with shmrpc.serve(service, at=server.url), connect(server) as client:
            value = [np.arange(3000), "x" * 20_000, *(np.full(5000, number % 251, np.uint8) for number in range(1500))]
            back = await client.same(value)
            assert (back[0] == value[0]).all() and back[1] == value[1]
            assert all((each == number % 251).all() for number, each in enumerate(back[2:]))
    finally:
        server.close()
    server = NatsServer("max_payload: 1024")
    try:
        with pytest.raises(shmrpc.ServiceUnavailable, match="accepts 1024 bytes in a message, 3072 are needed"):
            await connect(server, timeout=0)
    finally:
        server.close()


async def test_buffers_over_max_memory_are_refused_in_words(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url, max_memory=1 << 20), connect(nats) as client:
        with pytest.raises(shmrpc.FrameTooLarge, match="arguments are too large: .*max_memory=1,048,576"):
            await client.same(np.zeros(2 << 20, np.uint8))
        with pytest.raises(shmrpc.FrameTooLarge, match="result is too large: .*max_memory=1,048,576"):
            await client.zeros(2 << 20)
        with pytest.raises(shmrpc.SharedMemoryError, match="2,097,152 bytes are over max_memory=1,048,576"):
            client.empty(2 << 20, "uint8")
        assert client.empty(1 << 20, "uint8").nbytes == 1 << 20
        assert await client.double(2) == 4


@pytest.mark.parametrize("where", ["memory", "nats"])
async def test_writes_in_place_stay_at_the_server_without_shared_memory(nats: NatsServer, where: str) -> None:
    at = nats.url if where == "nats" else "memory://"
    async with shmrpc.serve(service, at=at), shmrpc.connect(service, at=at) as client:
        for size in (10, 100_000):
            array = client.empty(size, "uint8")
            array[:] = 1
            assert await client.fill(array) == 9 * size
            assert (array == 1).all()


@dataclasses.dataclass
class Unregistered:
    number: int


@pytest.mark.parametrize(("server", "client"), [("msgspec", "pickle"), ("pickle", "msgspec")])
async def test_pickle_is_refused_unless_both_sides_ask_for_it(nats: NatsServer, server: Any, client: Any) -> None:
    async with shmrpc.serve(service, at=nats.url, codec=server):
        with pytest.raises(shmrpc.ServiceUnavailable, match="codec='pickle' is for both sides"):
            await connect(nats, codec=client)
        with pytest.raises(shmrpc.ServiceUnavailable, match="codec='pickle' is for both sides"):
            await asyncio.to_thread(connect_in_threads(nats, codec=client).connect)


async def test_pickle_is_for_both_sides(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url, codec="pickle"), connect(nats, codec="pickle") as client:
        assert await client.same(Unregistered(7)) == Unregistered(7)
        threads = await asyncio.to_thread(connect_in_threads(nats, codec="pickle").connect)
        assert await asyncio.to_thread(threads.same, Unregistered(8)) == Unregistered(8)
        await asyncio.to_thread(threads.close)


def server_process(at: str, *options: str) -> ServerProcess:
    return ServerProcess("tests.hosts.test_nats:service", "--at", at, *options)


async def test_a_server_that_is_killed_is_noticed_and_its_calls_told(nats: NatsServer) -> None:
    with server_process(nats.url) as server:
        async with connect(nats) as client:
            assert await client.process() == server.pid
            call = asyncio.ensure_future(client.process(60))
            await client.double(1)  # By now the other one runs.
            server.kill()
            with pytest.raises(shmrpc.ConnectionLost, match="is gone: it died, was killed") as caught:
                await asyncio.wait_for(call, PATIENCE)
            assert caught.value.maybe_executed
            with pytest.raises(shmrpc.ConnectionLost):
                await client.double(1)


async def until_nats_knows_of_no_server(server: NatsServer) -> None:
    """Wait until NATS has seen the end of a killed server: calls sent before are lost with the server."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with connect(server, timeout=0):
                    pass
            except shmrpc.ServiceUnavailable as error:
                if "none of its servers is connected" in str(error):
                    return


async def test_a_call_that_reached_no_server_was_certainly_not_executed(nats: NatsServer) -> None:
    with server_process(nats.url) as server:
        async with connect(nats) as client:
            await client.double(1)
            server.kill()
            await until_nats_knows_of_no_server(nats)
            with pytest.raises(shmrpc.ConnectionLost) as caught:
                await client.double(1)
            assert not caught.value.maybe_executed


async def test_a_call_that_reached_no_server_is_repeated_with_reconnect(nats: NatsServer) -> None:
    with server_process(nats.url) as first:
        async with connect(nats, reconnect=True) as client:
            assert await client.process() == first.pid
            with server_process(nats.url) as second:
                first.kill()
                await asyncio.sleep(0.3)  # NATS sees its end. Before that, a call would be lost with it.
                assert await client.process() == second.pid


async def test_a_server_that_is_stopped_is_given_up_within_the_heartbeat(nats: NatsServer) -> None:
    url = f"{nats.url}?heartbeat=0.4"
    with server_process(url) as server:
        async with shmrpc.connect(service.name, at=url, timeout=PATIENCE) as client:
            assert await client.process() == server.pid
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(shmrpc.ConnectionLost, match=r"has said nothing for .* \(heartbeat=0.4\)") as caught:
                await client.double(1)
            assert caught.value.maybe_executed  # The server has the call, and may execute it when it goes on.
            os.kill(server.pid, signal.SIGCONT)
        async with shmrpc.connect(service.name, at=url, timeout=PATIENCE) as client:
            assert await client.process() == server.pid


async def test_a_server_that_is_stopped_is_there_and_silent_to_who_connects(nats: NatsServer) -> None:
    with server_process(nats.url) as server:
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(shmrpc.ServiceUnavailable) as caught:
            await connect(nats, timeout=1.5)
        os.kill(server.pid, signal.SIGCONT)
        words = "no server of 'tested.nats' answered at nats://.* within [0-9.]+ s: .* it is stopped, busy"
        assert re.match(words, str(caught.value))


async def test_the_generator_of_a_client_that_is_stopped_is_closed_within_the_heartbeat(nats: NatsServer) -> None:
    source = f"""
    import asyncio, shmrpc
    async def main():
        async with shmrpc.connect({service.name!r}, at="{nats.url}?heartbeat=0.4") as client:
            async for _ in client.endless():
                print("begun", flush=True)
                await asyncio.sleep(0.01)
    asyncio.run(main())
    """
    begun.clear()
    async with shmrpc.serve(service, at=f"{nats.url}?heartbeat=0.4") as server:
        with Script(source) as other:
            assert await asyncio.to_thread(other.line) == "begun"
            assert begun
            os.kill(other.process.pid, signal.SIGSTOP)
            await until(lambda: (server.connections, server.in_flight) == (0, 0))
            await until(lambda: not begun)


async def test_a_client_that_is_killed_is_forgotten(nats: NatsServer) -> None:
    source = f"""
    import asyncio, shmrpc
    async def main():
        async with shmrpc.connect({service.name!r}, at={nats.url!r}) as client:
            print("connected", flush=True)
            await client.process(60)
    asyncio.run(main())
    """
    begun.clear()
    async with shmrpc.serve(service, at=nats.url) as server:
        with Script(source) as other:
            assert await asyncio.to_thread(other.line) == "connected"
            await until(lambda: begun)
            assert (server.connections, server.in_flight) == (1, 1)
            other.kill()
            await until(lambda: (server.connections, server.in_flight) == (0, 0))


async def test_many_servers_share_the_work_and_a_drained_one_loses_no_call(nats: NatsServer) -> None:
    with server_process(nats.url) as first, server_process(nats.url) as second:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(nats, reconnect=True)) for _ in range(24)]
            assert {await each.process() for each in clients} == {first.pid, second.pid}
            calls = [asyncio.ensure_future(each.process(0.3)) for each in clients for _ in range(4)]
            await asyncio.gather(*(each.double(1) for each in clients))
            stopped = asyncio.create_task(asyncio.to_thread(first.stop))
            more = [await each.process() for each in clients for _ in range(50)]
            assert set(await asyncio.gather(*calls)) == {first.pid, second.pid}
            await stopped
            assert {await each.process() for each in clients} == {second.pid}
            assert set(more) <= {first.pid, second.pid}


async def test_a_stream_stays_with_its_server(nats: NatsServer) -> None:
    with server_process(nats.url), server_process(nats.url):
        async with connect(nats) as client:
            assert [tick async for tick in client.ticks(3000)] == [*range(3000)]


async def test_workers_come_to_nats_by_themselves_and_are_listed(nats: NatsServer) -> None:
    with server_process(nats.url, "--workers", "2") as server:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(nats)) for _ in range(24)]
            workers = {await each.process() for each in clients}
            assert len(workers) == 2 and server.pid not in workers
            listed = await asyncio.to_thread(run, "ls", "--at", nats.url)
            lines = listed.stdout.splitlines()
            assert [line.split()[0] for line in lines] == ["NAME", service.name, service.name]
            assert {int(line.split()[2]) for line in lines[1:]} == workers
            as_json = await asyncio.to_thread(run, "ls", "--json", "--at", nats.url)
            assert sum(each["connections"] for each in msgspec.json.decode(as_json.stdout)) == 24
    listed = await asyncio.to_thread(run, "ls", "--at", nats.url)
    assert listed.stdout == f"No servers have answered at {nats.url}.\n"


async def test_all_places_of_the_environment_are_listed(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shmrpc.Service("tested.nats.here")
    monkeypatch.setenv("SHMRPC_AT", f"shm {nats.url}")
    async with shmrpc.serve(service, at=nats.url), shmrpc.serve(other):
        listed = await asyncio.to_thread(run, "ls")
        assert listed.stderr == "" and re.search(r"^tested\.nats +\S", listed.stdout, re.MULTILINE)
        assert re.search(r"^tested\.nats\.here +service", listed.stdout, re.MULTILINE)
        listed = await asyncio.to_thread(run, "ls", "--json")
        assert {"tested.nats", "tested.nats.here"} <= {each.get("service") for each in json.loads(listed.stdout)}
        described = await asyncio.to_thread(run, "describe", service.name)
        assert "double" in described.stdout


async def test_the_command_line_calls_and_describes(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url):
        done = await asyncio.to_thread(run, "call", "--at", nats.url, service.name, "double", "21")
        assert (done.stdout, done.stderr) == ("42\n", "")
        done = await asyncio.to_thread(run, "call", f"{nats.url}/{service.name}", "ticks", "3")
        assert done.stdout == "0\n1\n2\n"
        done = await asyncio.to_thread(run, "describe", "--at", nats.url, service.name)
        assert "double(number: int) -> int" in done.stdout
        done = await asyncio.to_thread(run, "call", "--at", "shm", "--at", nats.url, service.name, "double", "21")
        assert (done.stdout, done.stderr) == ("42\n", "")
    done = await asyncio.to_thread(run, "call", "--timeout", "0", "--at", nats.url, service.name, "double", "21")
    assert done.returncode == 3 and "no server of 'tested.nats'" in done.stderr


async def test_when_nats_is_killed_all_calls_fail_and_clients_reconnect(
    own: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmrpc")  # Without a line for each attempt to connect.
    async with shmrpc.serve(service, at=own.url), connect(own, reconnect=True) as client:
        async with connect(own) as other:
            call = asyncio.ensure_future(client.process(60))
            await client.double(1)
            own.kill()
            for lost in (call, other.double(1)):
                with pytest.raises(shmrpc.ConnectionLost, match="the connection to NATS at .* broke"):
                    await asyncio.wait_for(lost, PATIENCE)
        own.start()
        assert await client.double(3) == 6


async def test_a_reader_that_nats_disconnects_logs_the_reason_and_reconnects(caplog: pytest.LogCaptureFixture) -> None:
    own = NatsServer('max_payload: 32768\nmax_pending: 65536\nwrite_deadline: "100ms"')
    try:
        url = f"{own.url}?heartbeat=30"
        with server_process(own.url) as slow:
            async with shmrpc.connect(service.name, at=url, timeout=PATIENCE, reconnect=True) as client:
                assert await client.process() == slow.pid
                os.kill(slow.pid, signal.SIGSTOP)
                with pytest.raises(shmrpc.ConnectionLost):
                    await client.same([np.zeros(1 << 19, np.uint8) for _ in range(20)])
                os.kill(slow.pid, signal.SIGCONT)
                assert await client.process() == slow.pid
            assert "a slow consumer" in slow.stop()
    finally:
        own.close()


async def test_a_first_place_is_taken_left_when_it_dies_and_taken_again(nats: NatsServer) -> None:
    places = ["shm", nats.url]
    async with shmrpc.serve(service, at=nats.url):
        async with shmrpc.connect(service, at=places, timeout=PATIENCE, reconnect=True) as client:
            assert (await client.double(1), client.address) == (2, nats.url)
            for _ in range(2):
                with ServerProcess("tests.hosts.test_nats:service") as near:
                    await until(lambda: client.address == "shm://")
                    assert await client.process() == near.pid
                    near.kill()
                await client.wait_for_ready()
                assert (await client.process(), client.address) == (os.getpid(), nats.url)


async def test_one_server_has_several_addresses_with_the_options_of_each(nats: NatsServer) -> None:
    places = ["shm", nats.url]
    async with shmrpc.serve(service, at=places, spin=0, max_memory=1 << 24) as server:
        async with shmrpc.connect(service, at=places, spin=0) as near, connect(nats) as far:
            assert (near.address, far.address) == ("shm://", nats.url)
            assert (await near.double(1), await far.double(2)) == (2, 4)
            assert server.connections_by_service == {service.name: 2}
            assert repr(server) == "<shmrpc.Server of 'tested.nats', 2 connections>"
            with pytest.raises(shmrpc.ServiceInUse):
                await shmrpc.serve(service, at=places).__aenter__()


async def test_no_place_with_a_server_says_why_of_each(nats: NatsServer) -> None:
    with pytest.raises(shmrpc.ServiceUnavailable, match=r"at any of 2 addresses: .*; no server of .* at nats://"):
        await shmrpc.connect(service.name, at=["shm", nats.url], timeout=0)


# Clients for threads. What holds for every client is in tests/contract.


def connect_in_threads(server: NatsServer, **options: Any) -> shmrpc.sync.Client:
    return shmrpc.sync.connect(service.name, at=server.url, timeout=PATIENCE, **options)


def test_calls_of_threads_fail_when_the_server_is_killed_and_go_on_with_another(nats: NatsServer) -> None:
    with server_process(nats.url) as server, connect_in_threads(nats) as client:
        assert client.process() == server.pid
        call = InThread(lambda: client.process(60))
        assert eventually(lambda: client.under_way() == 2)
        server.kill()
        error = call.join()
        assert isinstance(error, shmrpc.ConnectionLost) and error.maybe_executed
        assert re.search("the server of .* on .* is gone: it died, was killed", str(error))
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            client.double(1)
        assert not caught.value.maybe_executed
    with server_process(nats.url) as first, connect_in_threads(nats, reconnect=True) as client:
        assert client.process() == first.pid
        with server_process(nats.url) as second:
            first.kill()

            def process() -> int | None:
                try:
                    return client.process()  # type: ignore[no-any-return]
                except shmrpc.ConnectionLost as error:  # The call went to the first server, whose end was not known.
                    if not error.maybe_executed:
                        raise
                    return None

            assert eventually(lambda: process() == second.pid)


def test_calls_of_threads_fail_when_nats_is_killed_and_clients_reconnect(own: NatsServer) -> None:
    with server_process(own.url), connect_in_threads(own, reconnect=True) as client:
        call = InThread(lambda: client.process(60))
        assert eventually(lambda: client.under_way() == 1)
        own.kill()
        error = call.join()
        assert isinstance(error, shmrpc.ConnectionLost) and "the connection to NATS at" in str(error)
        own.start()
        assert client.double(3) == 6


def test_threads_send_arrays_that_wait_for_each_other(nats: NatsServer) -> None:
    arrays = [np.full(3 << 20, number, np.uint8) for number in range(8)]
    with server_process(nats.url), connect_in_threads(nats) as client:
        calls = [InThread(functools.partial(client.same, array)) for array in arrays]
        for array, call in zip(arrays, calls, strict=True):
            assert np.array_equal(call.join(), array)  # type: ignore[arg-type]


async def test_all_clients_for_threads_share_one_connection(own: NatsServer) -> None:
    with server_process(own.url), contextlib.ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(connect_in_threads(own))
            assert await asyncio.to_thread(client.double, 1) == 2
        before = await nats_py.connect(own.url)
        client = stack.enter_context(connect_in_threads(own))
        assert await asyncio.to_thread(client.double, 1) == 2
        after = await nats_py.connect(own.url)
        assert (before.client_id or 0) + 1 == after.client_id
        await before.close()
        await after.close()


def test_a_service_without_a_server_is_unavailable_to_threads_too(nats: NatsServer) -> None:
    with pytest.raises(shmrpc.ServiceUnavailable, match=r"no server of .* at nats://.*: none of its servers"):
        shmrpc.sync.connect(service.name, at=nats.url, timeout=0).connect()
    with pytest.raises(ValueError, match="a client for threads has one address"):
        shmrpc.sync.connect(service.name, at=["shm", nats.url])  # type: ignore[arg-type]


def test_a_forked_child_connects_for_itself(nats: NatsServer) -> None:
    source = f"""
    import os, shmrpc
    with shmrpc.sync.connect({service.name!r}, at={nats.url!r}, timeout={PATIENCE}) as client:
        client.double(1)
        if not os.fork():
            try:
                client.double(1)
            except shmrpc.LocalProtocolError as error:
                print("connect again here" in str(error), flush=True)
            with shmrpc.sync.connect({service.name!r}, at={nats.url!r}, timeout={PATIENCE}) as own:
                print(own.double(2), flush=True)
            os._exit(0)
        os.wait()
        print(client.double(3), flush=True)
    """
    with server_process(nats.url), Script(source) as script:
        assert [script.line() for _ in range(3)] == ["True", "4", "6"]


def test_a_program_that_leaves_its_client_open_ends_without_noise(nats: NatsServer) -> None:
    source = f"""
import shmrpc
client = shmrpc.sync.connect({service.name!r}, at={nats.url!r}, timeout={PATIENCE}).connect()
print(client.double(2))
"""
    with server_process(nats.url):
        done = run_prepared("-c", source)
    assert (done.stdout, done.stderr, done.returncode) == ("4\n", "", 0)


# Messages of other clients of NATS to the subjects of shmrpc.


@contextlib.asynccontextmanager
async def foreign_client(server: NatsServer) -> AsyncIterator[Any]:
    """Yield a client of NATS that does not belong to shmrpc."""
    connection = await nats_py.connect(server.url)
    try:
        yield connection
    finally:
        await connection.close()


#: The inbox of the foreign client, and the 16 bytes with which each message to this inbox begins.
INBOX, PROOF = "shmrpc.to.any.foreign.1", b"foreign client's"


def hello_data(**changes: Any) -> bytes:
    said = messages.Hello((messages.VERSION, control.VERSION), 1 << 20, 1 << 20, 2.0, INBOX, PROOF)
    return messages.encode(msgspec.structs.replace(said, **changes))


@dataclasses.dataclass
class Greeted:
    """A server that has answered a hello."""

    connection: Any
    #: The messages that come to the foreign client, and the first of them.
    answers: Any
    answer: bytes
    welcome: Any = None

    async def send(self, data: bytes) -> None:
        """Send data behind the proof that the server asks for."""
        await self.connection.publish(self.welcome.inbox, self.welcome.proof + data, INBOX)


async def hello(connection: Any, **changes: Any) -> Greeted:
    answers = await connection.subscribe(INBOX)
    await connection.publish(subjects.hello(service.name), hello_data(**changes), INBOX)
    answer = (await answers.next_msg(PATIENCE)).data
    assert answer.startswith(PROOF)
    greeted = Greeted(connection, answers, answer)
    with contextlib.suppress(shmrpc.RemoteProtocolError):
        said = messages.decode(answer[48 + 20 :])
        greeted.welcome = said if isinstance(said, messages.Welcome) else None
    return greeted


def message(number: int, got: int, *parts: bytes, clock: int = 0) -> bytes:
    return struct.pack("<QQQQ", number, got, 4 << 20, clock) + b"".join(parts)


def frame(opcode: int, call_id: int, body: bytes, buffers: int = 0, *sizes: int) -> bytes:
    return struct.pack("<IQII", opcode, call_id, len(body), buffers) + struct.pack(f"<{len(sizes)}Q", *sizes) + body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x01\x02", "unpack_from requires a buffer"),
        (message(1, 1 << 40), "it acknowledged 1099511627776 messages, [0-9]+ were sent"),
        (message(2, 0), "NATS lost 1 messages"),
        (message(1, 0, frame(0xFFFF_FFFF, 0, b"\xc1")), "cannot be decoded"),
        (message(1, 0, frame(2, 1, b"")[:-1]), "unpack"),
        (message(1, 0, frame(2, 1, b"", 70_000, 1)), "unpack|buffers"),
        (message(1, 0, frame(2, 1, b"", 1, 1 << 50)), "max_memory"),
        (message(1, 0, struct.pack("<IQII", 2, 1, 1 << 31, 0)), "the limit is"),
        (message(1, 0, frame(4, 1, b"\x91\xa1x")), "deadline cannot be read"),
        (message(1, 0, frame(frames.RESULT, 1, b"\xc0")), "it sent a result"),
    ],
    ids=str.split("header credit lost message frame count buffers body deadline result"),
)
async def test_a_client_that_breaks_the_rules_loses_only_its_own_connection(
    nats: NatsServer, data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shmrpc.server")
    async with shmrpc.serve(service, at=nats.url) as server, connect(nats) as client, foreign_client(nats) as other:
        greeted = await hello(other)
        assert server.connections == 2
        await greeted.send(data)
        await until(lambda: server.connections == 1)
        assert any(re.search(words, record.getMessage()) for record in caplog.records)
        assert await client.double(1) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": (99, 99)}, "speaks version"),
        ({"max_frame": 1}, "cannot be decoded"),
        ({"pickle": True}, "both sides"),
    ],
)
async def test_a_hello_that_cannot_be_is_refused(nats: NatsServer, changes: dict[str, Any], words: str) -> None:
    async with shmrpc.serve(service, at=nats.url) as server, foreign_client(nats) as other:
        assert words.encode() in (await hello(other, **changes)).answer
        assert server.connections == 0


async def test_rubbish_instead_of_hellos_does_not_fill_the_log(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with shmrpc.serve(service, at=nats.url), connect(nats) as client, foreign_client(nats) as other:
        for reply in ("elsewhere", INBOX):
            for _ in range(50):
                await other.publish(subjects.hello(service.name), b"rubbish", reply)
        await flush(other)
        assert await client.double(1) == 2
        assert await client.double(1) == 2
        warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(warned) == 2, warned


async def test_rubbish_sent_to_a_client_is_dropped(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), foreign_client(nats) as other:
        seen = await other.subscribe("shmrpc.to.>")
        async with connect(nats) as client:
            await client.double(1)
            ends = {(await seen.next_msg(PATIENCE)).subject for _ in range(3)}
            for end in ends:
                for data in (os.urandom(64), b""):
                    await other.publish(end, data, INBOX)
            await flush(other)
            assert await client.double(1) == 2


async def test_a_hello_without_a_subject_of_ours_is_dropped(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url) as server, connect(nats) as client, foreign_client(nats) as other:
        for inbox in ("", "elsewhere", "shmrpc.to.any.>", subjects.hello(service.name)):
            await other.publish(subjects.hello(service.name), hello_data(inbox=inbox), INBOX)
        await other.publish(subjects.STATUS, b"?")
        await flush(other)
        assert await client.double(1) == 2
        assert server.connections == 1


async def test_a_message_for_a_closed_connection_is_returned_with_its_proof(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), foreign_client(nats) as other:
        greeted = await hello(other)
        gone = greeted.welcome.inbox.rpartition(".")[0] + ".999"
        await other.publish(gone, b"its former proof" + message(1, 0), INBOX)
        while (answer := (await greeted.answers.next_msg(PATIENCE)).data).startswith(PROOF):
            pass
        assert answer == b"its former proof"


async def test_a_deadline_is_what_is_left_by_the_receivers_clock(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), foreign_client(nats) as other:
        greeted = await hello(other)
        hour = 3600 * 10**9
        for number, (clock, deadline) in enumerate([(0, 10**9 * 60), (hour, hour + 10**9 * 60), (hour, hour - 1)], 1):
            body = msgspec.msgpack.encode([deadline, 21])
            await greeted.send(message(number, 0, frame(4, number, body), clock=clock))
        answered = b""
        while answered.count(b"deadline") == 0:
            answered += (await greeted.answers.next_msg(PATIENCE)).data
        assert answered.count(struct.pack("<IQII", frames.RESULT, 1, 1, 0) + b"\x2a") == 1
        assert answered.count(struct.pack("<IQII", frames.RESULT, 2, 1, 0) + b"\x2a") == 1
        assert struct.pack("<IQ", frames.FAILURE, 3) in answered


async def test_a_reader_that_stops_holds_its_senders_memory_to_the_window(nats: NatsServer) -> None:
    async with shmrpc.serve(service, at=nats.url), foreign_client(nats) as other:
        greeted = await hello(other, max_memory=1 << 26)
        body = msgspec.msgpack.encode(["x" * 500_000])
        request = frame(frames.CALL | 1 << 8, 1, body)
        for number in range(1, 21):  # The client asks for 10 MB, and acknowledges nothing.
            again = struct.pack("<IQII", frames.CALL | 1 << 8, number, len(body), 0) + request[20:]
            await greeted.send(message(number, 0, again))
        come = 0
        with contextlib.suppress(nats_py.errors.TimeoutError):
            while True:
                come += len((await greeted.answers.next_msg(1)).data)
        assert 4 << 20 <= come + len(greeted.answer) < (4 << 20) + (1 << 16)
