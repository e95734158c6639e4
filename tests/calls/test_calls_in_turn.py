"""Calls whose tasks let the loop turn while they are under way: client and server share a CPU, or a slice is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

import shmrpc
from shmrpc.client.aio.session import LoopSession
from tests.helpers.server_process import PATIENCE, ServerProcess, eventually_seen
from tests.helpers.services import Point

TARGET = "tests.helpers.stream_service:service"

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both sides always share the only CPU")


def session_of(client: shmrpc.Client) -> LoopSession:
    session = client._reconnector.session
    assert session is not None
    return session


def is_overlapped(client: shmrpc.Client) -> bool:
    channel = session_of(client).shared_memory.channel
    assert channel is not None
    return channel.has_pipelined_calls()


def begun(make: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
    """Return a call that has yielded to the event loop."""
    while True:
        call = make()
        try:
            if call.send(None) is None:
                return call
        except StopIteration:  # The call was answered in place.
            continue
        call.close()  # The call waits in the loop.


def begun_sleep(client: shmrpc.Client) -> tuple[Coroutine[Any, Any, Any], str]:
    """Return a call that has yielded to the event loop, and its tag at the server: earlier calls may be in flight."""
    tags: list[str] = []

    def make() -> Coroutine[Any, Any, Any]:
        tags.append(f"in turn {len(tags)}")
        return client.sleep(60, tags[-1])  # type: ignore[no-any-return]

    return begun(make), tags[-1]


def answered(client: shmrpc.Client) -> Coroutine[Any, Any, int]:
    """Return a call whose reply has arrived and whose yield budget is used up."""

    def make() -> Coroutine[Any, Any, int]:
        time.sleep(0.0005)
        return client.add(1, 2)  # type: ignore[no-any-return]

    return begun(make)


@contextlib.contextmanager
def one_cpu(server: ServerProcess) -> Iterator[None]:
    """Has the server and this thread share a CPU."""
    cpus = os.sched_getaffinity(0)
    try:
        for pid in (0, server.process.pid):
            os.sched_setaffinity(pid, {min(cpus)})
        yield
    finally:
        os.sched_setaffinity(0, cpus)
        if server.process.poll() is None:
            os.sched_setaffinity(server.process.pid, cpus)


@pytest.fixture
async def busy(server: ServerProcess, client: shmrpc.Client) -> AsyncIterator[shmrpc.Client]:
    """Yield a client that shares a CPU with its server and has another call in flight."""
    with one_cpu(server):
        call = answered(client)
        yield client
        call.close()
    assert not is_overlapped(client)


async def test_a_call_is_sent_and_has_its_answer_on_the_next_turn(busy: shmrpc.Client) -> None:
    while True:
        call = begun(lambda: busy.add(20, 22))
        try:
            while call.send(None) is None:
                pass
        except StopIteration as ended:
            answer = ended.value
            break
        call.close()  # A busy machine: it waits in the loop then, which has to turn for once.
        assert await busy.add(1, 1) == 2
    assert answer == 42
    with pytest.raises(RuntimeError, match="already awaited"):
        call.send(None)


async def test_each_task_has_its_own_answer(busy: shmrpc.Client) -> None:
    async def calls(base: int) -> list[int]:
        return [await busy.add(base, i) for i in range(50)]

    results = await asyncio.gather(*map(calls, range(0, 64_000, 1000)))
    assert results == [[base + i for i in range(50)] for base in range(0, 64_000, 1000)]


async def test_answers_that_others_take_out_of_the_ring_are_kept(busy: shmrpc.Client) -> None:
    later = [begun(lambda i=i: busy.add(i, 0)) for i in range(10)]  # type: ignore[misc]
    for number, call in reversed([*enumerate(later)]):
        assert await call_on(call) == number


async def call_on(call: Coroutine[Any, Any, Any]) -> Any:
    """Goes on with a call that has begun."""
    return await asyncio.create_task(_rest(call))


async def _rest(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


async def test_all_kinds_of_calls_at_once(busy: shmrpc.Client) -> None:
    for _ in range(3):
        results = await asyncio.gather(
            busy.add(1, b=2),
            busy.with_options(timeout=PATIENCE).add(3, 4),
            busy.sleep(0.01, "slept"),
            _collected(busy.count(300)),
            busy.total(range(100)),
            busy.add("no", 1),
            busy.add(1),
            return_exceptions=True,
        )
        assert results[:5] == [3, 7, "slept", list(range(300)), 4950]
        assert [type(result) for result in results[5:]] == [shmrpc.InvalidArguments] * 2


async def _collected(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def test_values_of_all_sizes() -> None:
    values = [b"x" * 100, b"y" * 5_000, b"z" * 300_000, [1, "two", {"three": 3.0}], Point(1, 2)]
    with ServerProcess("tests.helpers.services:service") as server:
        async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
            with one_cpu(server), contextlib.closing(answered(client)):
                results = await asyncio.gather(*map(client.echo, values))
                assert results == [*values[:4], {"x": 1, "y": 2}]
                with pytest.raises(ValueError, match="ValueError"):
                    await client.fail("ValueError")


async def test_a_call_that_is_cancelled_before_its_turn_is_cancelled_at_the_server(busy: shmrpc.Client) -> None:
    call, tag = begun_sleep(busy)
    with pytest.raises(asyncio.CancelledError):
        call.throw(asyncio.CancelledError())
    assert await eventually_seen(busy, f"{tag}:cancelled")


async def test_any_other_exception_ends_it_too(busy: shmrpc.Client) -> None:
    call, tag = begun_sleep(busy)
    with pytest.raises(LookupError):
        call.throw(LookupError())
    assert await eventually_seen(busy, f"{tag}:cancelled")


async def test_a_deadline_that_comes_meanwhile(busy: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.DeadlineExceeded):
        await busy.with_options(timeout=0.02).sleep(60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await busy.sleep(60)


async def test_a_closed_or_dropped_call_is_forgotten(busy: shmrpc.Client) -> None:
    closed, dropped = begun(lambda: busy.add(1, 2)), begun(lambda: busy.add(3, 4))
    assert is_overlapped(busy)
    closed.close()
    del dropped
    assert await busy.add(5, 6) == 11, "no other call gets the late replies"


async def test_the_server_is_lost_meanwhile(server: ServerProcess, busy: shmrpc.Client) -> None:
    call = begun(lambda: busy.sleep(60, "lost"))
    while not (await busy.seen()).get("lost:began"):
        await asyncio.sleep(0.001)
    server.kill()
    with pytest.raises(shmrpc.ConnectionLost) as lost:
        await call_on(call)
    assert lost.value.maybe_executed
    with pytest.raises(shmrpc.ConnectionLost):
        await busy.add(1, 2)


async def test_the_client_is_closed_meanwhile(busy: shmrpc.Client) -> None:
    call, done = begun(lambda: busy.sleep(60)), answered(busy)
    assert await busy.add(1, 1) == 2  # Which takes the answer before its own out of the ring.
    await busy.close()
    with pytest.raises(shmrpc.ConnectionLost):
        await call_on(call)
    assert await call_on(done) == 3, "its answer had come"


async def test_a_session_that_is_left_stays_for_them(client: shmrpc.Client) -> None:
    session, call = session_of(client), answered(client)
    session.drain()
    assert session.close_reason is None
    assert await call_on(call) == 3
    async with asyncio.timeout(PATIENCE):
        while session.close_reason is None:
            await asyncio.sleep(0.001)
