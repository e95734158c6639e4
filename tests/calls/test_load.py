"""Limits, the line of those who wait, and many calls in one frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

import shmrpc
from tests.helpers import services, stream_service
from tests.helpers.server_process import ServerProcess

SHARED_SERVER = True


class Gate:
    """A service in this loop whose handlers wait for us."""

    def __init__(self, name: str = "tested.gate") -> None:
        self.service = shmrpc.Service(name)
        self.open = asyncio.Event()
        self.order: list[int] = []
        self.most = self.now = 0
        self.service.endpoint(self.wait)
        self.service.endpoint(self.at_once)

    async def wait(self, n: int) -> int:
        self.order.append(n)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
        finally:
            self.now -= 1
        return n

    def at_once(self, n: int) -> int:
        return n


async def _until(server: shmrpc.Server, in_flight: int, waiting: int) -> None:
    async with asyncio.timeout(30):
        while (server.in_flight, server.waiting) != (in_flight, waiting):
            await asyncio.sleep(0.001)


async def test_beyond_the_limit_calls_wait_in_order() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service, max_in_flight=3) as server, shmrpc.connect("tested.gate") as client:
        calls = [asyncio.create_task(client.wait(n)) for n in range(20)]
        await _until(server, 3, 17)
        assert gate.order == [0, 1, 2]
        assert await client.at_once(5) == 5, "what does not suspend need not wait"
        gate.open.set()
        assert await asyncio.gather(*calls) == list(range(20))
        assert gate.order == list(range(20))
        assert gate.most == 3
        assert (server.in_flight, server.waiting) == (0, 0)


async def test_beyond_the_bound_calls_are_refused_and_not_begun() -> None:
    gate = Gate()
    limits = shmrpc.serve(gate.service, max_in_flight=2, max_waiting=3)
    async with limits as server, shmrpc.connect("tested.gate") as client:
        calls = [asyncio.create_task(client.wait(n)) for n in range(5)]
        await _until(server, 2, 3)
        for _ in range(10):
            with pytest.raises(shmrpc.Overloaded, match="2 calls in flight and 3 waiting"):
                await client.wait(99)
        gate.open.set()
        assert await asyncio.gather(*calls) == list(range(5))
        assert 99 not in gate.order
        assert await client.wait(6) == 6, "and then it takes some again"


async def test_a_call_that_is_refused_for_its_bytes_displaces_none() -> None:
    gate = Gate()
    limits = shmrpc.serve(gate.service, max_in_flight=1, max_waiting=5)
    async with limits as server, shmrpc.connect("tested.gate") as many, shmrpc.connect("tested.gate") as large:
        calls = [asyncio.create_task(many.wait(0))]
        await _until(server, 1, 0)
        calls.append(asyncio.create_task(large.wait(1)))
        await _until(server, 1, 1)
        calls += [asyncio.create_task(many.wait(n)) for n in range(2, 6)]
        await _until(server, 1, 5)
        assert server._runner is not None
        limiter = server._runner.limiter
        limiter._limits = msgspec.structs.replace(limiter._limits, max_bytes=1)
        with pytest.raises(shmrpc.Overloaded):
            await large.wait(99)
        assert server.waiting == 5
        gate.open.set()
        assert await asyncio.gather(*calls) == list(range(6))


async def test_one_connection_cannot_take_all_places() -> None:
    gate = Gate()
    limits = shmrpc.serve(gate.service, max_in_flight=4, max_per_connection=2)
    async with limits as server, shmrpc.connect("tested.gate") as greedy, shmrpc.connect("tested.gate") as polite:
        many = [asyncio.create_task(greedy.wait(n)) for n in range(100)]
        await _until(server, 2, 98)
        one = asyncio.create_task(polite.wait(1000))
        await _until(server, 3, 98)
        assert 1000 in gate.order
        gate.open.set()
        assert await one == 1000
        assert await asyncio.gather(*many) == list(range(100))


async def test_connections_that_wait_take_turns() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service, max_in_flight=1) as server:
        async with shmrpc.connect("tested.gate") as greedy, shmrpc.connect("tested.gate") as polite:
            many = [asyncio.create_task(greedy.wait(n)) for n in range(50)]
            await _until(server, 1, 49)
            few = [asyncio.create_task(polite.wait(1000 + n)) for n in range(3)]
            await _until(server, 1, 52)
            gate.open.set()
            await asyncio.gather(*few, *many)
        assert max(gate.order.index(1000 + n) for n in range(3)) < 10, gate.order


async def test_a_client_that_goes_takes_its_waiting_calls_along() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service, max_in_flight=1) as server, shmrpc.connect("tested.gate") as client:
        async with shmrpc.connect("tested.gate") as other:
            calls = [asyncio.create_task(other.wait(n)) for n in range(10)]
            await _until(server, 1, 9)
            kept = asyncio.create_task(client.wait(77))
            await _until(server, 1, 10)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, shmrpc.ConnectionLost) for result in results)
        await _until(server, 1, 0)
        gate.open.set()
        assert await kept == 77
        assert gate.order == [0, 77]


async def test_streams_and_threads_count_too() -> None:
    async with (
        shmrpc.serve(stream_service.service, max_in_flight=1) as server,
        shmrpc.connect("tested.flows") as client,
    ):
        stream = client.ticks(0.001)
        await anext(stream)
        waits = asyncio.create_task(client.in_thread(0))
        await _until(server, 1, 1)
        await stream.aclose()
        assert (await waits)[0].startswith("shmrpc-handler")
        fed = asyncio.create_task(client.sleep(0.05))
        await _until(server, 1, 0)
        assert await client.total(range(1000)) == sum(range(1000)), "a stream to a call that waits is not lost"
        await fed


@pytest.mark.parametrize("option", ["max_in_flight", "max_per_connection", "max_waiting"])
def test_limits_are_checked(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: expected"):
        shmrpc.serve(stream_service.service, **{option: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, 1, 256, 5000])
@pytest.mark.parametrize("chunk", [1, 7, 256])
async def test_map_gives_every_result_in_order(client: shmrpc.Client, n: int, chunk: int) -> None:
    n = min(n, 500 * chunk)
    mapped = client.map(services.add, range(n), range(n), chunk=chunk)
    assert [result async for result in mapped] == [2 * i for i in range(n)]


async def test_map_of_endpoints_of_every_kind(client: shmrpc.Client) -> None:
    assert [r async for r in client.map("greet", ["Ada", "Bob"])] == ["Hello, Ada!", "Hello, Bob!"]
    assert [r async for r in client.map("sleep", [0.01] * 600, range(600))] == list(range(600))
    points = [r async for r in client.map(services.move, [services.Point(i, i) for i in range(3)])]
    assert points == [services.Point(i + 1, i + 1) for i in range(3)]
    assert [r[:2] async for r in client.map("defaults", [1, 2])] == [[1, 2], [2, 2]]
    async with shmrpc.serve(stream_service.service), shmrpc.connect("tested.flows") as near:
        threads = [r async for r in near.map("in_thread", [0.0] * 5)]
        assert all(name.startswith("shmrpc-handler") for name, _ in threads)
        with pytest.raises(shmrpc.InvalidArguments, match=r"cannot be called by map\(\)"):
            [r async for r in near.map("count", [1])]


async def test_map_raises_at_the_failed_one_and_goes_no_further(client: shmrpc.Client) -> None:
    results = []
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'b'"):
        async for result in client.map("add", range(1000), [*range(500), "x", *range(501, 1000)]):
            results.append(result)
    assert results == [2 * i for i in range(500)]
    with pytest.raises(ValueError, match="no good"):
        [r async for r in client.map("fail", ["no good"])]
    with pytest.raises(shmrpc.EncodeError, match="returned"):
        async with client.batch() as batch:
            bad = batch.unencodable()
        await bad
    with pytest.raises(shmrpc.EndpointNotFound):
        [r async for r in client.map("ad", [1], [2])]
    with pytest.raises(shmrpc.EncodeError):
        [r async for r in client.map("echo", [object()])]
    with pytest.raises(ValueError, match="chunk"):
        [r async for r in client.map("echo", [1], chunk=0)]


async def test_a_map_that_is_left_cancels_the_rest(client: shmrpc.Client) -> None:
    async for result in client.map("sleep", [0.01] * 10_000, range(10_000), chunk=2):
        assert result == 0
        break
    assert await client.add(1, 2) == 3


async def test_a_map_under_a_deadline(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.DeadlineExceeded):
        [r async for r in client.with_options(timeout=0.05).map("sleep", [60, 60])]


async def test_a_long_batch_lets_others_have_their_turn() -> None:
    service = shmrpc.Service("tested.turns")
    order: list[str] = []

    @service.endpoint
    def slow(n: int) -> int:
        order.append("slow")
        return sum(range(20_000)) * 0 + n

    @service.endpoint
    def quick() -> None:
        order.append("quick")

    async with shmrpc.serve(service), shmrpc.connect("tested.turns") as one, shmrpc.connect("tested.turns") as other:

        async def mapped() -> list[int]:
            return [r async for r in one.map("slow", range(200), chunk=200)]

        running = asyncio.create_task(mapped())
        while not order:
            await asyncio.sleep(0)
        await other.quick()
        assert await running == list(range(200))
    assert order.index("quick") < 199


async def test_the_arguments_of_a_long_batch_are_checked_in_turns_too() -> None:
    service = shmrpc.Service("tested.checks")
    order: list[str] = []

    @service.endpoint
    def long(numbers: list[int]) -> int:
        order.append("long")
        return len(numbers)

    @service.endpoint
    def quick() -> None:
        order.append("quick")

    async with shmrpc.serve(service), shmrpc.connect("tested.checks") as one, shmrpc.connect("tested.checks") as other:

        async def batched() -> list[int]:
            async with one.batch() as batch:
                results = [batch.long([1] * 20_000) for _ in range(100)]
            return [result.result() for result in results]

        running = asyncio.create_task(batched())
        while not order:
            await asyncio.sleep(0)
        await other.quick()
        assert await running == [20_000] * 100
    assert order.index("quick") < 99


async def test_a_batch_of_any_calls_each_with_its_own_outcome(client: shmrpc.Client) -> None:
    async with client.batch() as batch:
        added = batch.add(1, 2)
        greeted = batch.call("greet", "Ada", punctuation="?")
        moved = batch.call(services.move, services.Point(1, 2))
        wrong = batch.add(1, "x")
        failed = batch.fail("no good")
        slept = batch.sleep(0.01, "slept")
    assert [added.result(), greeted.result(), slept.result()] == [3, "Hello, Ada?", "slept"]
    assert moved.result() == services.Point(2, 3)
    with pytest.raises(shmrpc.InvalidArguments):
        wrong.result()
    with pytest.raises(ValueError, match="no good"):
        failed.result()


async def test_a_batch_that_is_not_sent(client: shmrpc.Client) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.batch() as batch:
            pending = batch.add(1, 2)
            _ = 1 // 0
    assert pending.cancelled()
    async with client.batch():
        pass
    with pytest.raises(shmrpc.EndpointNotFound):
        async with client.batch() as batch:
            pending = batch.add(1, 2)
            batch.ad(1, 2)
    assert pending.cancelled()


async def test_one_way_calls_arrive_in_order_and_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    service = shmrpc.Service("tested.oneway")
    heard: list[object] = []

    @service.endpoint
    def hear(what: int, *, loud: bool = False) -> int:
        heard.append((what, loud))
        return 5

    @service.endpoint
    async def hear_later(what: int) -> None:
        await asyncio.sleep(0.001)
        raise LookupError(f"heard {what}")

    with caplog.at_level(logging.ERROR, "shmrpc.server"):
        async with shmrpc.serve(service), shmrpc.connect("tested.oneway") as client:
            for i in range(1000):
                assert await client.notify("hear", i, loud=i == 3) is None  # type: ignore[func-returns-value]
            await client.notify(hear_later, 7)
            await client.notify("hear", "no number")
            with pytest.raises(shmrpc.EndpointNotFound):
                await client.notify("her", 1)
            with pytest.raises(shmrpc.EncodeError):
                await client.notify("hear", object())
            assert await client.hear(1000) == 5
            assert heard == [(i, i == 3) for i in range(1001)]
            async with asyncio.timeout(30):
                while len(caplog.records) < 2:
                    await asyncio.sleep(0.001)
    messages = [f"{record.getMessage()} {record.exc_info[1]}" for record in caplog.records if record.exc_info]
    assert any("hear_later(), called one way, failed heard 7" in message for message in messages), messages
    assert any("one way" in message and "parameter 'what'" in message for message in messages), messages


async def test_one_way_calls_outlive_their_caller() -> None:
    service = shmrpc.Service("tested.oneway")
    heard: list[int] = []

    @service.endpoint
    async def hear(n: int) -> None:
        await asyncio.sleep(0.01)
        heard.append(n)

    async with shmrpc.serve(service, max_in_flight=3) as server:
        async with shmrpc.connect("tested.oneway") as client:
            for n in range(500):
                await client.notify("hear", n)
            waiting = asyncio.create_task(client.hear(1000))
            await asyncio.sleep(0)
        with pytest.raises(shmrpc.ConnectionLost):
            await waiting
        async with asyncio.timeout(60):
            while len(heard) < 500 or server.in_flight:
                await asyncio.sleep(0.01)
        assert heard == list(range(500)), "all that was only told is done, and no more"
        assert server.waiting == 0


async def test_one_way_calls_do_not_outlive_their_server() -> None:
    async with shmrpc.serve(stream_service.service, max_in_flight=1) as server:
        async with shmrpc.connect("tested.flows") as client:
            await client.notify("sleep", 60, "told")
            await client.notify("sleep", 0, "never begun")
            await _until(server, 1, 1)
        await asyncio.wait_for(server.drain(grace=0.05), 30)
    assert stream_service.seen()["told:cancelled"] >= 1
    assert "never begun:began" not in stream_service.seen()


async def test_a_batch_takes_no_more_places_than_a_client_has() -> None:
    gate = Gate()
    limits = shmrpc.serve(gate.service, max_per_connection=3)
    async with limits, shmrpc.connect("tested.gate") as client:

        async def mapped() -> list[int]:
            return [result async for result in client.map("wait", range(50), chunk=50)]

        running = asyncio.create_task(mapped())
        async with asyncio.timeout(30):
            while gate.now < 3:
                await asyncio.sleep(0.001)
        gate.open.set()
        assert await running == list(range(50))
        assert gate.most == 3


async def test_one_way_calls_wait_for_room(client: shmrpc.Client) -> None:
    blob = bytes(30_000)
    async with asyncio.timeout(60):
        for _ in range(300):
            await client.notify("echo", blob)
    assert await client.add(1, 2) == 3


def test_the_same_without_a_loop(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with shmrpc.sync.connect("tested") as client:
        assert list(client.map(services.add, range(3000), range(3000))) == [2 * i for i in range(3000)]
        with pytest.raises(shmrpc.InvalidArguments):
            list(client.map("add", [1], ["x"]))
        for result in client.map("sleep", [0.01] * 100, range(100), chunk=2):
            assert result == 0
            break
        for _ in range(300):
            client.notify("echo", bytes(30_000))
        with pytest.raises(shmrpc.EndpointNotFound):
            client.notify("nothing_such")
        with client.batch() as batch:
            added, wrong = batch.add(1, 2), batch.add(1, "x")
            greeted = batch.call(services.greet, "Ada")
        assert added.result(0) == 3 and greeted.result(0) == "Hello, Ada!"
        with pytest.raises(shmrpc.InvalidArguments):
            wrong.result(0)
        assert client.add(1, 2) == 3


@pytest.mark.parametrize("endpoint", ["ticks", "total"])
async def test_an_endpoint_with_streams_is_not_called_one_way(endpoint: str) -> None:
    service = shmrpc.Service("tested.oneway")

    @service.endpoint
    async def ticks(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @service.endpoint
    async def total(numbers: AsyncIterator[int]) -> int:
        return sum([number async for number in numbers])

    async with shmrpc.serve(service) as server, shmrpc.connect("tested.oneway") as client:
        with pytest.raises(shmrpc.InvalidArguments, match=rf"{endpoint}\(\) streams, .* one way"):
            await client.notify(endpoint, 1_000_000)
        assert [tick async for tick in client.ticks(3)] == [0, 1, 2]
        assert server.in_flight == 0, "no client would read the stream, and its slot would never be free again"
