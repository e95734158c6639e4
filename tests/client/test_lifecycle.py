"""Servers that come and go, and clients that follow: nothing that was answered is lost, nothing is run twice."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import shmrpc
from shmrpc.transport.shm.close_reason import parse_close_packet
from shmrpc.wire import control, frames
from tests.helpers import stream_service
from tests.helpers.host_names import nothing_is_left
from tests.helpers.hostile_server import Died, ScriptedServer, scripted_server
from tests.helpers.interruptions import Interrupted
from tests.helpers.loops import one_loop
from tests.helpers.server_process import (
    PATIENCE,
    STOPPING,
    ServerProcess,
    eventually,
    eventually_in_loop,
    eventually_seen,
)
from tests.helpers.wire_client import Control

TARGET = "tests.helpers.stream_service:service"


async def _until_served(name: str) -> None:
    async with shmrpc.connect(name):
        pass


async def test_draining_finishes_what_is_under_way_and_takes_nothing_new() -> None:
    service, release = shmrpc.Service("tested.drained"), asyncio.Event()
    service.endpoint(stream_service.add)
    service.endpoint(stream_service.count)

    @service.endpoint
    async def held(tag: str) -> str:
        await release.wait()
        return tag

    server = shmrpc.serve(service)
    async with server, shmrpc.connect("tested.drained") as client, shmrpc.connect("tested.drained") as idle:
        under_way = [asyncio.create_task(client.held(f"{i}")) for i in range(5)]
        stream = client.count(5)
        first = await anext(stream)
        while server.in_flight < 5:
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(server.drain(grace=60))
        await asyncio.sleep(0.01)
        assert server.health == "draining"
        with pytest.raises(shmrpc.ServiceUnavailable, match="shutting down"):
            await client.add(1, 2)
        with pytest.raises(shmrpc.ServiceUnavailable, match="shutting down"):
            await idle.with_options(metadata={"a": "b"}).add(1, 2)
        release.set()
        assert await asyncio.gather(*under_way) == [f"{i}" for i in range(5)]
        assert [first] + [item async for item in stream] == list(range(5))
        await asyncio.wait_for(draining, 60)
        with pytest.raises(shmrpc.ConnectionLost, match="stopped") as caught:
            await client.add(1, 2)
        assert not caught.value.maybe_executed
    assert server.health is None


async def test_after_the_grace_what_is_left_is_cancelled() -> None:
    async with shmrpc.serve(stream_service.service) as server, shmrpc.connect("tested.flows") as client:
        call = asyncio.create_task(client.sleep(60))
        while server.in_flight != 1:
            await asyncio.sleep(0.001)
        await server.drain(grace=0.05)
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await call
        assert caught.value.maybe_executed


async def test_a_large_answer_on_its_way_is_not_cut_by_a_drain() -> None:
    async with shmrpc.serve(stream_service.service) as server, shmrpc.connect("tested.flows") as client:
        blobs = client.blobs(1, 20_000_000)
        reading = asyncio.create_task(anext(blobs))
        while server.in_flight != 1 and not reading.done():
            await asyncio.sleep(0)
        draining = asyncio.create_task(server.drain(grace=60))
        assert len(await reading) == 20_000_000
        await blobs.aclose()
        await draining


async def test_a_call_that_the_server_never_took_was_certainly_not_executed() -> None:
    async with shmrpc.serve(stream_service.service) as server, shmrpc.connect("tested.flows") as client:
        taken = asyncio.create_task(client.sleep(60, "taken"))
        while server.in_flight != 1:
            await asyncio.sleep(0.001)
        untaken = asyncio.create_task(client.sleep(0, "untaken"))
        await asyncio.sleep(0)  # The request is in the ring; the server, in this same loop, has not run since.
        await server.close()
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await taken
        assert caught.value.maybe_executed
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await untaken
        assert not caught.value.maybe_executed
        assert "untaken:began" not in stream_service.seen()


async def test_a_client_that_reconnects_follows_its_service() -> None:
    async with contextlib.AsyncExitStack() as stack:
        with ServerProcess(TARGET) as first:
            client = await stack.enter_async_context(shmrpc.connect("tested.flows", reconnect=True, timeout=60))
            bound = client.add
            assert await bound(1, 2) == 3
            in_flight = asyncio.create_task(client.sleep(60))
            assert await eventually_seen(client, "sleep:began")  # The client would repeat a call that had not begun.
            first.kill()
            with pytest.raises(shmrpc.ConnectionLost) as caught:
                await in_flight
            assert caught.value.maybe_executed
        waiting = [asyncio.create_task(client.add(i, 1)) for i in range(10)]
        await asyncio.sleep(0.05)
        assert not any(call.done() for call in waiting)
        with ServerProcess(TARGET):
            assert await asyncio.gather(*waiting) == list(range(1, 11))
            await client.wait_for_ready()
            assert await bound(3, 4) == 7, "what was bound to the first server goes to the second"
            assert await client.with_options(timeout=60).add(5, 6) == 11
            assert [x async for x in client.count(3)] == [0, 1, 2]
            assert [x async for x in client.map("add", [1], [2])] == [3]


@pytest.mark.parametrize("first_call", ["plain", "under a deadline", "a batch", "a stream", "one way"])
def test_an_idle_client_in_threads_sends_nothing_to_a_server_that_is_gone(first_call: str) -> None:
    """The client checks the connection before it sends, so that no call for the next server is lost."""
    with ServerProcess(TARGET) as first:
        with shmrpc.sync.connect("tested.flows", reconnect=True, timeout=60) as client:
            assert client.add(1, 2) == 3
            first.kill()
            with ServerProcess(TARGET):
                match first_call:
                    case "plain":
                        assert client.add(1, 2) == 3
                    case "under a deadline":
                        assert client.with_options(timeout=60).add(1, 2) == 3
                    case "a batch":
                        with client.batch() as batch:
                            result = batch.add(1, 2)
                        assert result.result() == 3
                    case "a stream":
                        assert list(client.count(3)) == [0, 1, 2]
                    case "one way":
                        client.notify("add", 1, 2)
                assert client.add(3, 4) == 7


@one_loop  # A loop that has not turned behaves the same on asyncio and uvloop.
@pytest.mark.parametrize(
    "first_call", ["plain", "under a deadline", "a batch", "a map", "a stream", "an upload", "by hand", "one way"]
)
async def test_a_loop_that_stood_still_while_its_server_died_sends_it_nothing(first_call: str) -> None:
    with ServerProcess(TARGET) as first:
        async with shmrpc.connect("tested.flows", reconnect=True, timeout=60) as client:
            assert await client.add(1, 2) == 3
            first.kill()
            with ServerProcess(TARGET):
                match first_call:  # The loop has not turned since the kill.
                    case "plain":
                        assert await client.add(1, 2) == 3
                    case "under a deadline":
                        assert await client.with_options(timeout=60).add(1, 2) == 3
                    case "a batch":
                        async with client.batch() as batch:
                            result = batch.add(1, 2)
                        assert await result == 3
                    case "a map":
                        assert [item async for item in client.map("add", [1], [2])] == [3]
                    case "a stream":
                        assert [item async for item in client.count(3)] == [0, 1, 2]
                    case "an upload":
                        assert await client.total([1, 2]) == 3
                    case "by hand":  # The client does not repeat this call.
                        with pytest.raises(shmrpc.ConnectionLost) as caught:
                            async with client.open("count", 3):
                                raise AssertionError("it was sent to a server that is gone")
                        assert not caught.value.maybe_executed
                    case "one way":
                        await client.notify("sleep", 0.0, "one way")
                        assert await eventually_seen(client, "one way:began")
                assert await client.add(3, 4) == 7


async def test_without_reconnecting_a_call_to_a_server_that_is_gone_was_certainly_not_executed() -> None:
    with ServerProcess(TARGET) as server:
        async with shmrpc.connect("tested.flows") as client:
            with shmrpc.sync.connect("tested.flows") as in_threads:
                assert await client.add(1, 2) == in_threads.add(1, 2) == 3
                server.kill()
                time.sleep(0.002)  # A client that heard from the server within a millisecond does not check.
                with pytest.raises(shmrpc.ConnectionLost, match="it died, or was killed") as caught:
                    in_threads.add(1, 2)
                assert not caught.value.maybe_executed
                with pytest.raises(shmrpc.ConnectionLost, match="it died, or was killed") as caught:
                    await client.add(1, 2)
                assert not caught.value.maybe_executed


async def test_a_client_that_knows_of_a_drain_sends_that_server_nothing_new() -> None:
    async with shmrpc.serve(stream_service.service) as server:
        client = shmrpc.connect("tested.flows", reconnect=True, timeout=60)
        async with client:
            under_way = asyncio.create_task(client.sleep(60))
            assert await eventually_in_loop(lambda: server.in_flight == 1)
            draining = asyncio.create_task(server.drain(grace=60))
            assert await eventually_in_loop(lambda: not repr(client).endswith(", connected>"))
            new = asyncio.create_task(client.add(1, 2))
            await asyncio.sleep(0)
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await new
        assert not caught.value.maybe_executed
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await under_way
        assert caught.value.maybe_executed
        await draining


async def test_a_client_hears_of_a_drain_though_an_exception_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler raises such an exception. The packet that the client has read by then comes no second time."""
    raised: list[None] = []

    def interrupted(*arguments: Any) -> Any:
        if not raised:
            raised.append(None)
            raise Interrupted
        return parse_close_packet(*arguments)

    monkeypatch.setattr("shmrpc.transport.shm.loop_connection.parse_close_packet", interrupted)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with shmrpc.serve(stream_service.service) as server:
        async with shmrpc.connect("tested.flows", reconnect=True, timeout=60) as client:
            under_way = asyncio.create_task(client.sleep(60))
            assert await eventually_in_loop(lambda: server.in_flight == 1)
            draining = asyncio.create_task(server.drain(grace=60))
            heard = await eventually_in_loop(lambda: not repr(client).endswith(", connected>"))
        with pytest.raises(shmrpc.ConnectionLost):
            await under_way
        await draining
    assert heard
    assert raised


async def test_want_of_descriptors_does_not_end_the_reconnecting(monkeypatch: pytest.MonkeyPatch) -> None:
    from shmrpc.host import rendezvous

    with ServerProcess(TARGET) as first:
        async with shmrpc.connect("tested.flows", reconnect=True, timeout=60) as client:
            tries = 0

            def dial(service: str, allow_uids: frozenset[int]) -> None:
                nonlocal tries
                tries += 1
                raise OSError(24, "Too many open files")

            with monkeypatch.context() as patch:
                patch.setattr(rendezvous, "dial", dial)
                first.kill()
                async with asyncio.timeout(60):
                    while tries < 2:
                        await asyncio.sleep(0.01)
            with ServerProcess(TARGET):
                assert await client.add(1, 2) == 3


async def test_a_client_closed_while_it_connects_stays_closed() -> None:
    client = shmrpc.connect("tested.flows", timeout=60)
    connecting = asyncio.create_task(client.__aenter__())
    await asyncio.sleep(0.01)
    await client.close()
    with ServerProcess(TARGET):
        with pytest.raises(shmrpc.ConnectionLost, match="was closed"):
            await connecting


async def test_without_it_the_connection_stays_lost() -> None:
    with ServerProcess(TARGET) as process:
        async with shmrpc.connect("tested.flows") as client:
            await client.wait_for_ready()
            process.kill()
            with ServerProcess(TARGET):
                with pytest.raises(shmrpc.ConnectionLost):
                    await client.add(1, 2)
                with pytest.raises(shmrpc.ConnectionLost):
                    await client.wait_for_ready()


async def test_waiting_for_a_server_has_an_end() -> None:
    with ServerProcess(TARGET) as process:
        async with shmrpc.connect("tested.flows", reconnect=True, timeout=60) as client:
            client._reconnector._timeout = (
                0.2  # Of which the first connection, to a server that is there, might want more.
            )
            process.kill()
            with pytest.raises((shmrpc.ServiceUnavailable, shmrpc.ConnectionLost)):
                await client.add(1, 2)
            with pytest.raises(shmrpc.ServiceUnavailable, match="no other has appeared"):
                await client.wait_for_ready(timeout=0.05)
            # The text when the server dies during the handshake.
            client._reconnector._last_failure = "the peer closed the connection during the handshake"
            with pytest.raises(shmrpc.ServiceUnavailable, match="is gone, and no other has appeared$"):
                await client.wait_for_ready(timeout=2)
            with pytest.raises(shmrpc.ServiceUnavailable):
                await client.add(1, 2)
            with pytest.raises(shmrpc.ServiceUnavailable):
                await client.with_options(timeout=0.05).add(1, 2)
        with pytest.raises(shmrpc.ConnectionLost, match="was closed"):
            await client.add(1, 2)


async def test_a_drain_loses_no_call_of_a_client_that_reconnects() -> None:
    """Calls without pause while one server drains and the next one begins: each is answered, and run once."""
    runs: dict[int, int] = {}
    service = shmrpc.Service("tested.rolling")

    @service.endpoint
    def run(n: int) -> int:
        runs[n] = runs.get(n, 0) + 1
        return n

    @service.endpoint
    async def run_slowly(n: int) -> int:
        await asyncio.sleep(0.002)
        return run(n)

    numbers = iter(range(1_000_000))
    async with contextlib.AsyncExitStack() as stack:
        servers = contextlib.AsyncExitStack()
        server = await servers.enter_async_context(shmrpc.serve(service))
        client = await stack.enter_async_context(shmrpc.connect("tested.rolling", reconnect=True))
        stop = False

        endpoints = ["run", "run", "run_slowly", "run_slowly", "run_slowly"]
        counts = [0] * len(endpoints)

        async def call_on(caller: int) -> None:
            while not stop:
                n = next(numbers)
                assert await client.call(endpoints[caller], n) == n
                counts[caller] += 1
                await asyncio.sleep(0)

        async def each_makes(more: int) -> None:
            enough = [count + more for count in counts]
            while any(count < least for count, least in zip(counts, enough, strict=True)):
                assert not any(caller.done() for caller in callers)
                await asyncio.sleep(0.01)

        callers = [asyncio.create_task(call_on(caller)) for caller in range(len(endpoints))]
        for _ in range(4):
            await each_makes(10)
            await server.drain(grace=60)
            server = await servers.enter_async_context(shmrpc.serve(service))
        await each_makes(10)
        stop = True
        await asyncio.wait_for(asyncio.gather(*callers), 60)
        assert set(runs.values()) == {1}
        assert len(runs) == sum(counts)
        await servers.aclose()


async def test_health_in_the_report() -> None:
    from shmrpc.host.status import collect_reports

    opened = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(service: shmrpc.Service) -> AsyncIterator[None]:
        await opened.wait()
        yield

    async def health() -> str:
        return (await asyncio.to_thread(collect_reports))[0].health

    service, release = shmrpc.Service("tested.health", lifespan=lifespan), asyncio.Event()

    @service.endpoint
    async def held() -> str:
        await release.wait()
        return "held"

    server = shmrpc.serve(service)
    entering = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0.01)
    assert [await health(), str(server.health)] == ["starting"] * 2
    opened.set()
    await entering
    assert [await health(), str(server.health)] == ["serving"] * 2
    async with shmrpc.connect("tested.health") as client:
        call = asyncio.create_task(client.held())
        while not server.in_flight:
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0.01)
        assert [await health(), str(server.health)] == ["draining"] * 2
        release.set()
        assert await call == "held"
        await draining


def test_a_client_without_a_loop_reconnects() -> None:
    stack = contextlib.ExitStack()
    with ServerProcess(TARGET) as first:
        client = stack.enter_context(shmrpc.sync.connect("tested.flows", reconnect=True, timeout=60))
        bound = client.add
        assert bound(1, 2) == 3
        outcome: list[object] = []

        def blocked() -> None:
            try:
                outcome.append(client.sleep(60))
            except shmrpc.ConnectionLost as error:
                outcome.append(error.maybe_executed)

        thread = threading.Thread(target=blocked)
        thread.start()
        assert eventually(lambda: "sleep:began" in client.seen())  # The client would repeat a call that had not begun.
        first.kill()
        thread.join(60)
        assert outcome == [True]
    with stack, ServerProcess(TARGET) as second:
        client.wait_for_ready()
        assert bound(3, 4) == 7
        assert list(client.count(3)) == [0, 1, 2]
        threads = [threading.Thread(target=lambda: outcome.append(client.add(1, 1))) for _ in range(5)]
        second.stop()
        for thread in threads:
            thread.start()
        with ServerProcess(TARGET):
            for thread in threads:
                thread.join(60)
            assert outcome[1:] == [2] * 5
    with pytest.raises(shmrpc.ConnectionLost, match="was closed"):
        client.add(1, 2)


def test_threads_follow_a_drain_and_lose_no_call() -> None:
    with contextlib.ExitStack() as stack:
        server = ServerProcess(TARGET, "--workers", "1")
        stack.enter_context(server)
        client = stack.enter_context(shmrpc.sync.connect("tested.flows", reconnect=True, timeout=60))
        stop = threading.Event()
        outcomes: list[object] = []
        counts = [0] * 3

        def call_on(caller: int) -> None:
            try:
                while not stop.is_set():
                    assert client.add(counts[caller], 1) == counts[caller] + 1
                    assert client.sleep(0.001) == "sleep"
                    assert list(client.map("add", range(20), range(20), chunk=4)) == list(range(0, 40, 2))
                    assert list(client.count(2)) == [0, 1]
                    counts[caller] += 1
                outcomes.append("done")
            except BaseException as error:
                outcomes.append(error)

        def each_makes(more: int) -> bool:
            enough = [count + more for count in counts]

            def made() -> bool:
                return bool(outcomes) or all(count >= least for count, least in zip(counts, enough, strict=True))

            return eventually(made, 60) and not outcomes

        threads = [threading.Thread(target=call_on, args=(caller,)) for caller in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            assert each_makes(10), outcomes
            before = client.in_process(1, 2)[0]
            os.kill(server.pid, signal.SIGHUP)
            assert eventually(lambda before=before: client.in_process(1, 2)[0] != before, 60)  # type: ignore[misc]
        assert each_makes(10), outcomes
        stop.set()
        for thread in threads:
            thread.join(60)
        assert outcomes == ["done"] * 3


def _in_a_batch(client: shmrpc.sync.Client) -> object:
    with client.batch() as batch:
        added = batch.add(1, 2)
    return added.result()


def _read_by_hand(client: shmrpc.sync.Client) -> object:
    with client.open("count", 3) as call:
        return call.read()


#: Calls of threads, on a service of :mod:`tests.helpers.hostile_server`.
WAYS: dict[str, Callable[[shmrpc.sync.Client], object]] = {
    "plain": lambda client: client.add(1, 2),
    "under a deadline": lambda client: client.with_options(timeout=60).add(1, 2),
    "a batch": _in_a_batch,
    "a map": lambda client: list(client.map("add", [1], [2])),
    "a stream": lambda client: list(client.count(3)),
    "an upload": lambda client: client.total([1, 2]),
    "by hand": _read_by_hand,
    "one way": lambda client: client.notify("add", 1, 2),
    "large": lambda client: client.add(bytearray(1 << 18), 2),  # Which the core does not write itself.
}


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"plain", "under a deadline"}))
def test_a_call_that_another_thread_has_overtaken_is_not_taken_for_executed(runtime: Path, way: str) -> None:
    """Its id was drawn before that of a call which the server took, and the server stopped before it was sent."""
    drawn, taken = threading.Event(), threading.Event()
    ids: list[int] = []

    def stop(server: ScriptedServer, call_id: int) -> NoReturn:
        ids.append(call_id)
        taken.set()
        assert eventually(server.channel.has_frame)
        assert server.control is not None
        server.control.send(control.encode(control.Goodbye("stopped", reached=server.channel.reached())))
        frame = server.channel.receive()
        assert frame is not None
        ids.append(frame[1])
        raise Died

    with scripted_server(runtime, stop), shmrpc.sync.connect("tested", timeout=60) as client:
        session = client._reconnector.session
        assert session is not None
        draw = session.next_id

        def draw_and_wait() -> int:
            call_id = draw()
            if threading.current_thread() is overtaken and not drawn.is_set():
                drawn.set()
                assert taken.wait(PATIENCE)
            return call_id

        session.next_id = draw_and_wait
        outcome: list[object] = []

        def call() -> None:
            try:
                outcome.append(WAYS[way](client))
            except shmrpc.ConnectionLost as error:
                outcome.append(error.maybe_executed)

        overtaken = threading.Thread(target=call)
        overtaken.start()
        assert drawn.wait(PATIENCE)
        with pytest.raises(shmrpc.ConnectionLost, match="stopped") as caught:
            client.add(3, 4)
        assert caught.value.maybe_executed
        overtaken.join(PATIENCE)
        assert ids == sorted(ids)
        assert outcome == [None if way == "one way" else False]


@pytest.mark.parametrize("way", ["plain", "under a deadline"])
def test_a_call_of_the_core_that_another_thread_has_overtaken_is_made_again(way: str) -> None:
    with ServerProcess(TARGET), shmrpc.sync.connect("tested.flows") as client:
        session = client._reconnector.session
        assert session is not None
        number = session.numbers["add"]
        one_way = client._codec.encode_all((frames.Header(one_way=True), [3, 4], {}))
        # Its id is the one after the next.
        session.begin(frames.opcode(frames.CALL_WITH, number), session.next_id() + 2, one_way)
        assert WAYS[way](client) == 3
        assert session.next_id() > 3


def test_a_server_that_stops_answers_a_blocked_thread_first() -> None:
    with ServerProcess(TARGET) as process, shmrpc.sync.connect("tested.flows") as client:
        outcome: list[object] = []
        thread = threading.Thread(target=lambda: outcome.append(client.sleep(1)))
        thread.start()
        assert eventually(lambda: "sleep:began" in client.seen())
        process.process.terminate()
        thread.join(60)
        assert outcome == ["sleep"]
        with pytest.raises((shmrpc.ConnectionLost, shmrpc.ServiceUnavailable)):
            client.add(1, 2)
        assert process.process.wait(STOPPING) == 0


async def test_the_error_in_a_forked_child_says_to_connect_again() -> None:
    with ServerProcess(TARGET):
        with shmrpc.sync.connect("tested.flows") as sync_client:
            async with (
                shmrpc.connect("tested.flows", reconnect=True) as client,
                shmrpc.serve(shmrpc.Service("tested.mine")) as server,
            ):
                assert sync_client.add(1, 2) == await client.add(1, 2) == 3
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        texts = [_text_of(lambda: sync_client.add(1, 2))]
                        texts.append(_text_of(lambda: client.add(1, 2).send(None)))
                        texts.append(_text_of(lambda: client.sleep(1).send(None)))
                        texts.append(_text_of(lambda: client.ticks(1).__anext__().send(None)))
                        with shmrpc.sync.connect("tested.flows") as again:
                            texts.append(str(again.add(1, 2)))
                        os.write(write, "\n".join(texts).encode())
                    finally:
                        os._exit(0)
                os.close(write)
                await asyncio.to_thread(os.waitpid, child, 0)
                with os.fdopen(read) as pipe:
                    *refused, answer = pipe.read().splitlines()
                assert len(refused) == 4
                for text in refused:
                    assert text.startswith("LocalProtocolError"), text
                    assert f"process {os.getpid()}" in text and f"child {child}" in text, text
                    assert "connect again" in text
                assert answer == "3"
                assert sync_client.add(1, 2) == await client.add(1, 2) == 3, "the parent's goes on unharmed"
                assert server.health == "serving"
                async with shmrpc.connect("tested.mine"):
                    pass


def _text_of(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except BaseException as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "nothing was raised"


def _add_in_child(a: int) -> int:
    with shmrpc.sync.connect("tested.flows") as client:
        return int(client.add(a, 1))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing_connect_for_themselves(method: str) -> None:
    with ServerProcess(TARGET), shmrpc.sync.connect("tested.flows") as client:
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_add_in_child, range(4)) == [1, 2, 3, 4]
        assert client.add(1, 2) == 3
    assert nothing_is_left([])


async def test_a_client_in_the_handshake_of_a_server_that_closes_may_come_again() -> None:
    async with shmrpc.serve(stream_service.service):
        control = Control("tested.flows")
        control.send("hello", version=5, max_frame=1 << 20)
        message, descriptors = await asyncio.to_thread(control.receive)
        for descriptor in descriptors:
            os.close(descriptor)
        assert message["type"] == "welcome"
    with control.socket:
        message, _ = control.receive()
        assert (message["type"], message["reason"], message["reached"]) == ("goodbye", "the server stopped", 0)


async def test_a_client_that_is_pickled_or_copied_says_what_to_do_instead(server: ServerProcess) -> None:
    """So does what has it in it: `multiprocessing` pickles what it is given."""
    async with shmrpc.connect(server.name, timeout=60) as client:
        with shmrpc.sync.connect(server.name, timeout=60) as in_threads:
            for each in (client, in_threads):
                batch = each.batch()
                for what in (each, each.with_options(timeout=60), each.count, batch):
                    with pytest.raises(TypeError, match="cannot be pickled or copied.*connect in the other process"):
                        pickle.dumps(what)
                for copying in (copy.copy, copy.deepcopy):
                    with pytest.raises(TypeError, match="cannot be pickled or copied"):
                        copying(each)


class Failing:
    """The bell of a connection, whose number is not to be had the first time: by ``error``."""

    def __init__(self, client: shmrpc.Client, error: Exception) -> None:
        assert client._reconnector.session is not None
        connection: Any = client._reconnector.session.connection
        self._bell, self._errors = connection._bell, [error]
        self.close = self._bell.close
        connection._bell = self

    def fileno(self) -> int:
        if self._errors:
            raise self._errors.pop()
        return self._bell.fileno()  # type: ignore[no-any-return]


async def test_a_loop_that_is_interrupted_by_a_notification_of_a_connection_handles_it() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    with ServerProcess(TARGET):
        async with shmrpc.connect("tested.flows") as client:
            Failing(client, alarm := Interrupted("as by a signal's handler"))
            assert await asyncio.wait_for(client.sleep(0.05), 30) == "sleep"
    assert told == [alarm]


async def test_a_connection_for_which_the_loop_cannot_wait_ends() -> None:
    with ServerProcess(TARGET):
        async with shmrpc.connect("tested.flows") as client:
            Failing(client, OSError(28, "No space left on device"))
            with pytest.raises(shmrpc.ConnectionLost, match="the loop cannot wait for the server .*No space left"):
                await asyncio.wait_for(client.sleep(3600), 30)
