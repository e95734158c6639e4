"""Streams, in both directions: every item once and in order, bounded memory, and an end on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

import shmrpc
from tests.helpers import stream_service
from tests.helpers.server_process import Script, ServerProcess, eventually, eventually_seen, timeouts

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True

pytestmark = pytest.mark.usefixtures("server")


class Source:
    """A caller's generator that says how far it came and that it was closed."""

    def __init__(self) -> None:
        self.yielded = 0
        self.closed = False

    async def numbers(self, n: int = 1_000_000_000) -> AsyncIterator[int]:
        try:
            for i in range(n):
                self.yielded += 1
                yield i
        finally:
            self.closed = True

    def plainly(self, n: int = 1_000_000_000) -> Iterator[int]:
        try:
            for i in range(n):
                self.yielded += 1
                yield i
        finally:
            self.closed = True


@pytest.mark.parametrize("n", [0, 1, 5, 10_000])
@pytest.mark.parametrize("endpoint", ["count", "count_plainly"])
@pytest.mark.own_server
async def test_every_item_comes_once_and_in_order(client: shmrpc.Client, endpoint: str, n: int) -> None:
    assert [item async for item in client.call(endpoint, n)] == list(range(n))
    assert await eventually_seen(client, f"{endpoint}:finished")


async def test_a_generator_in_a_thread(client: shmrpc.Client) -> None:
    items = [item async for item in client.count_in_thread(5)]
    assert [item.split()[0] for item in items] == list("01234")
    assert all("shmrpc-handler" in item for item in items)


@pytest.mark.parametrize("size", [1, 1000, 70_000, 1_000_000])
async def test_items_of_any_size(client: shmrpc.Client, size: int) -> None:
    items = [item async for item in client.blobs(20, size)]
    assert items == [bytes([i]) * size for i in range(20)]


async def test_many_streams_and_calls_at_a_time(client: shmrpc.Client) -> None:
    async def read(n: int) -> list[int]:
        return [item async for item in client.count(n)]

    sizes = [0, 10, 1000, 5000] * 5
    results = await asyncio.gather(*(read(n) for n in sizes), *(client.add(i, 1) for i in range(50)))
    assert results == [list(range(n)) for n in sizes] + list(range(1, 51))


@pytest.mark.parametrize("size", [8, 100_000])
@pytest.mark.own_server
async def test_a_slow_consumer_slows_only_its_own_producer(client: shmrpc.Client, size: int) -> None:
    slow = client.blobs(1_000_000, size)
    assert len(await anext(slow)) == size
    await asyncio.sleep(0.2)  # The producer uses up its credit, unless the machine is busy.
    assert [item async for item in client.count(10_000)] == list(range(10_000))
    assert await client.add(1, 2) == 3
    far = await client.produced()
    assert far * size < 4_000_000 and far < 5_000, "credit bounds the number of items that no consumer has read"
    for _ in range(far):
        await anext(slow)
    assert await client.produced() > far
    await slow.aclose()


async def test_the_items_of_a_stream_before_its_deadline_are_a_prefix(client: shmrpc.Client) -> None:
    far = 5_000  # By then the reader takes items out of the ring itself, many at a time.
    for timeout in timeouts():
        items = []
        with pytest.raises(shmrpc.DeadlineExceeded):
            async for item in client.with_options(timeout=timeout).flood():
                items.append(item)
                if len(items) == far:
                    time.sleep(timeout)  # The deadline passes while there are items in the ring.
                    await client.add(1, 2)  # Receives all frames that have come, for any call.
        assert items == list(range(len(items)))
        if len(items) >= far:
            return
    raise AssertionError("it was over before it came so far each time")


@pytest.mark.own_server
async def test_leaving_the_loop_early_closes_the_generator(client: shmrpc.Client) -> None:
    async for item in client.flood():
        if item == 100:
            break
    assert await eventually_seen(client, "flood:closed")
    async for _ in client.ticks(60):
        break
    assert await eventually_seen(client, "ticks:left")


@pytest.mark.own_server
async def test_an_exception_in_the_loop_closes_the_generator(client: shmrpc.Client) -> None:
    with pytest.raises(ZeroDivisionError):
        async for item in client.flood():
            _ = 1 // (50 - item)
    gc.collect()
    assert await eventually_seen(client, "flood:closed")


@pytest.mark.own_server
async def test_aclose_closes_the_generator(client: shmrpc.Client) -> None:
    stream = client.flood()
    assert await anext(stream) == 0
    await stream.aclose()
    assert await eventually_seen(client, "flood:closed")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    never = client.flood()
    await never.aclose()
    assert (await client.seen())["flood:began"] == 1, "what is never read is never begun"


@pytest.mark.own_server
async def test_cancelling_the_reader_closes_the_generator(client: shmrpc.Client) -> None:
    async def read() -> None:
        async for _ in client.ticks(60):
            pass

    task = asyncio.create_task(read())
    assert await eventually_seen(client, "ticks:began")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually_seen(client, "ticks:left")


@pytest.mark.own_server
async def test_a_reader_that_dies_closes_the_generator(client: shmrpc.Client) -> None:
    with Script("""
        import shmrpc
        with shmrpc.sync.connect("tested.flows") as client:
            for item in client.ticks(0.01):
                print(item, flush=True)
    """) as reader:
        assert reader.line()
        assert (await client.seen())["ticks:began"] == 1
        reader.kill()
    assert await eventually_seen(client, "ticks:left")


async def test_an_exception_in_the_generator_comes_after_its_items(client: shmrpc.Client) -> None:
    items = []
    with pytest.raises(ValueError, match="after 1000") as caught:
        async for item in client.fail_after(1000):
            items.append(item)
    assert items == list(range(1000))
    assert isinstance(caught.value, shmrpc.RemoteError)
    assert "fail_after" in caught.value.remote_traceback


async def test_an_item_that_cannot_be_carried_ends_its_stream(client: shmrpc.Client) -> None:
    items = []
    with pytest.raises(shmrpc.EncodeError, match="an item, object, cannot be sent"):
        async for item in client.odd_items():
            items.append(item)
    assert items == [1]
    assert await client.add(1, 2) == 3


@pytest.mark.own_server
async def test_a_server_that_dies_ends_the_stream(client: shmrpc.Client, server: ServerProcess) -> None:
    stream = client.ticks(0.001)
    await anext(stream)
    server.kill()
    with pytest.raises(shmrpc.ConnectionLost) as caught:
        async for _ in stream:
            pass
    assert caught.value.maybe_executed


async def test_wrong_arguments_of_a_stream(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'n'"):
        await anext(client.count("five"))
    with pytest.raises(shmrpc.EndpointNotFound, match="did you mean 'count'"):
        client.coun(5)


async def test_typed_items(client: shmrpc.Client) -> None:
    assert [item async for item in client.call(stream_service.zipped, _numbers(3), _texts("abc"))] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


async def _texts(texts: str) -> AsyncIterator[str]:
    for text in texts:
        yield text


async def _numbers(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@pytest.mark.parametrize("n", [0, 1, 10_000])
async def test_a_stream_from_the_caller(client: shmrpc.Client, n: int) -> None:
    source = Source()
    assert await client.total(source.numbers(n)) == sum(range(n))
    assert source.closed
    assert await client.total(range(n), scale=2) == 2 * sum(range(n))
    assert await client.total(numbers=source.plainly(n)) == sum(range(n))


async def test_a_handler_that_wants_no_more_closes_the_source(client: shmrpc.Client) -> None:
    source = Source()
    call = asyncio.create_task(client.first(3, source.numbers()))
    while not source.closed:
        await asyncio.sleep(0.001)
    assert await call == [0, 1, 2]
    assert source.yielded < 5_000, "credit bounds what is under way"


async def test_a_handler_that_raises_closes_the_source(client: shmrpc.Client) -> None:
    source = Source()
    with pytest.raises(ValueError, match="three"):
        await client.refuse(source.numbers())
    assert source.closed


async def test_a_source_that_raises_is_raised_by_the_call(client: shmrpc.Client) -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more") as caught:
        await client.total(broken())
    assert not isinstance(caught.value, shmrpc.RemoteError), "it is the very exception"
    assert await client.tolerate(broken()) == "2 RemoteLookupError", "a handler may live with it"
    with pytest.raises(LookupError):
        async for _ in client.doubled(broken()):
            pass


async def test_an_item_of_the_callers_that_does_not_fit(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.InvalidArguments, match="an item of 'numbers': expected `int`, got `str`"):
        await client.total([1, "two"])
    with pytest.raises(shmrpc.EncodeError, match="an item, object, cannot be sent"):
        await client.total([1, object()])
    with pytest.raises(shmrpc.InvalidArguments, match="expected an async iterator or an iterable, got 5"):
        await client.total(5)
    with pytest.raises(shmrpc.FrameTooLarge):
        await client.tolerate([1, "x" * (65 << 20)])
        await client.total([1, "x" * (65 << 20)])


@pytest.mark.own_server
async def test_cancelling_the_call_closes_source_and_handler(client: shmrpc.Client) -> None:
    source = Source()

    async def slowly() -> AsyncIterator[int]:
        async with contextlib.aclosing(source.numbers()) as numbers:  # type: ignore[type-var]
            async for number in numbers:
                yield number
                await asyncio.sleep(60)

    call = asyncio.create_task(client.total(slowly()))
    assert await eventually_seen(client, "total:began")
    while not source.yielded:
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert source.closed
    assert await eventually_seen(client, "total:cancelled")


@pytest.mark.own_server
async def test_a_call_streams_in_both_directions_at_once(client: shmrpc.Client) -> None:
    assert [item async for item in client.doubled(range(5000))] == list(range(0, 10_000, 2))
    source = Source()
    async for item in client.doubled(source.numbers()):
        if item == 100:
            break
    while not source.closed:
        await asyncio.sleep(0.001)
    assert await eventually_seen(client, "doubled:left")


@pytest.mark.own_server
async def test_closing_the_client_ends_its_streams(client: shmrpc.Client) -> None:
    async with shmrpc.connect("tested.flows") as other:
        stream = other.ticks(60)
        await anext(stream)
        await other.close()
        with pytest.raises(shmrpc.ConnectionLost, match="was closed"):
            await anext(stream)
    assert await eventually_seen(client, "ticks:left")


@pytest.mark.own_server
def test_sync_streams(sync_client: shmrpc.sync.Client) -> None:
    assert list(sync_client.count(10_000)) == list(range(10_000))
    assert list(sync_client.blobs(5, 300_000)) == [bytes([i]) * 300_000 for i in range(5)]
    with pytest.raises(ValueError, match="after 3"):
        list(sync_client.fail_after(3))
    for item in sync_client.flood():
        if item == 100:
            break
    assert eventually(lambda: sync_client.seen().get("flood:closed") == 1)
    assert list(sync_client.call(stream_service.count, 3)) == [0, 1, 2]


def test_sync_streams_to_the_server(sync_client: shmrpc.sync.Client) -> None:
    source = Source()
    assert sync_client.total(source.plainly(10_000)) == sum(range(10_000))
    assert sync_client.total([], scale=3) == 0
    source = Source()
    assert sync_client.first(3, source.plainly()) == [0, 1, 2]
    assert source.closed
    source = Source()
    with pytest.raises(ValueError, match="three"):
        sync_client.refuse(source.plainly())
    assert source.closed

    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        sync_client.total(broken())
    assert sync_client.tolerate(broken()) == "1 RemoteLookupError"
    with pytest.raises(shmrpc.InvalidArguments, match="expected an iterable"):
        sync_client.total(Source().numbers(3))
    assert list(sync_client.doubled(range(3000))) == list(range(0, 6000, 2))


@pytest.mark.own_server
def test_sync_stream_left_unread_blocks_no_thread(sync_client: shmrpc.sync.Client) -> None:
    slow = sync_client.flood()
    assert [next(slow) for _ in range(3)] == [0, 1, 2]
    assert [sync_client.add(i, 1) for i in range(100)] == list(range(1, 101))
    before = sync_client.produced()
    assert before < 5_000
    assert [next(slow) for _ in range(5_000)] == list(range(3, 5_003))
    slow.close()
    assert eventually(lambda: sync_client.seen().get("flood:closed") == 1)


def test_wrong_declarations_of_streams_are_rejected() -> None:
    service = shmrpc.Service("wrong")

    def takes(numbers: AsyncIterator[int]) -> int:
        return 0

    def makes() -> Iterator[int]:
        yield 1

    async def sends() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="it takes a stream .numbers., so it must be an async def"):
        service.endpoint(takes)
    with pytest.raises(TypeError, match="a generator cannot run in another process"):
        service.endpoint(run_in="process")(makes)
    with pytest.raises(TypeError, match="an async def runs in the loop"):
        service.endpoint(run_in="thread")(sends)


def test_streams_of_many_threads_lose_no_waking(sync_client: shmrpc.sync.Client) -> None:
    """Several items come with one waking: a thread that takes one of them must not sleep on the others."""
    outcomes: list[object] = []

    def read() -> None:
        for _ in range(5):
            outcomes.append(list(sync_client.count(2000)) == list(range(2000)))

    def fail() -> None:
        for _ in range(50):
            with contextlib.suppress(ValueError):
                list(sync_client.fail_after(3))
            with contextlib.suppress(shmrpc.DeadlineExceeded):
                sync_client.with_options(timeout=0.002).sleep(1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=each, daemon=True) for each in [read, read, read, fail, fail]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert outcomes == [True] * 15


def test_the_garbage_collector_may_close_a_stream_anywhere(sync_client: shmrpc.sync.Client) -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:

        def rounds() -> None:
            for i in range(300):
                cycle: list[object] = [sync_client.count(10)]
                next(cycle[0])  # type: ignore[call-overload]
                cycle.append(cycle)
                assert sync_client.add(i, 1) == i + 1

        thread = threading.Thread(target=rounds, daemon=True)
        thread.start()
        thread.join(300)
        assert not thread.is_alive()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert sync_client.add(1, 2) == 3
