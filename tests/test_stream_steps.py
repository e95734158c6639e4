"""A stream is an asynchronous generator like any other, and takes its items from any: each step may wait or not."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

import shmrpc
from tests.helpers.server_process import eventually_in_loop

service = shmrpc.Service("tested.steps")
#: Generators that have ended.
closed: list[int] = []


@service.endpoint
async def count(n: int, pause: float = -1) -> AsyncIterator[int]:
    """``pause``: seconds before each item; less than 0: none."""
    try:
        for number in range(n):
            if pause >= 0:
                await asyncio.sleep(pause)
            yield number
    finally:
        closed.append(n)


@service.endpoint
async def doubled(items: AsyncIterator[int]) -> AsyncIterator[int]:
    async for item in items:
        yield 2 * item


@pytest.fixture
async def client() -> AsyncIterator[shmrpc.Client]:
    closed.clear()
    async with shmrpc.serve(service), shmrpc.connect("tested.steps") as client:
        yield client


async def test_it_is_a_generator(client: shmrpc.Client) -> None:
    stream = client.count(100)
    assert isinstance(stream, AsyncGenerator) and not inspect.isawaitable(stream)
    assert [await anext(stream), await stream.asend(None), await stream.asend("nothing"), await stream.__anext__()] == [
        *range(4)
    ]
    assert [item async for item in stream] == list(range(4, 100))
    assert [item async for item in stream] == []
    assert await anext(stream, "none") == "none"
    with pytest.raises(StopAsyncIteration):
        await stream.asend("still nothing")
    await stream.aclose()


async def test_an_item_goes_to_one_alone(client: shmrpc.Client) -> None:
    """Steps that are taken together are apart: one waits, and the other says so."""
    stream = client.count(10, 0.01)
    came: list[object] = await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)
    assert came[0] == 0 and isinstance(came[1], RuntimeError) and "already running" in str(came[1])
    assert await anext(stream) == 1
    there = client.count(10)
    assert await anext(there) == 0  # With the others behind it, as a rule.
    steps = [anext(there) for _ in range(3)]
    assert [await step for step in reversed(steps)] == [1, 2, 3]
    await stream.aclose()
    await there.aclose()


@pytest.mark.parametrize("pause", [-1, 0], ids=["with items at hand", "with none"])
async def test_what_is_thrown_into_it_ends_it(client: shmrpc.Client, pause: float) -> None:
    stream = client.count(100_000, pause)
    assert await anext(stream) == 0
    with pytest.raises(ValueError, match="own"):
        await stream.athrow(ValueError("own"))
    assert await eventually_in_loop(lambda: closed != [])
    assert [item async for item in stream] == []


async def test_closed_it_gives_nothing_that_had_come(client: shmrpc.Client) -> None:
    stream = client.count(100_000)
    assert await anext(stream) == 0
    await stream.aclose()
    assert await eventually_in_loop(lambda: closed != [])
    assert [item async for item in stream] == []


async def test_a_step_that_is_given_up_ends_the_stream(client: shmrpc.Client) -> None:
    async with contextlib.aclosing(client.count(10, 0.05)) as stream:
        assert await anext(stream) == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert await eventually_in_loop(lambda: closed != [])


async def test_what_is_left_unread_is_closed(client: shmrpc.Client) -> None:
    async for item in client.count(100_000):
        if item == 10:
            break
    assert await eventually_in_loop(lambda: closed != [])


async def test_a_stream_is_not_awaited(client: shmrpc.Client) -> None:
    with pytest.raises(TypeError, match="can't be used in 'await' expression"):
        await client.count(1)


def test_a_step_can_be_driven_by_hand() -> None:
    """As a loop of another kind, or a debugger, does it: without the interpreter's own way."""

    async def lists() -> AsyncGenerator[list[int], None]:
        yield [1, 2]
        await pause()
        yield []
        yield [3]

    @types.coroutine
    def pause() -> Generator[str, str, None]:
        assert (yield "waits") == "go on"

    def result(step: Callable[[], object]) -> object:
        with pytest.raises(StopIteration) as returned:
            step()
        return returned.value.value

    stream: Any = shmrpc._core.ItemStream(lists())
    assert result(lambda: next(anext(stream))) == 1
    assert result(lambda: anext(stream).send(None)) == 2
    step = anext(stream)
    with pytest.raises(TypeError, match="non-None value"):
        step.send("too early")
    assert step.send(None) == "waits"
    assert result(lambda: step.send("go on")) == 3
    del step
    waiting: Any = shmrpc._core.ItemStream(lists())
    assert [result(lambda: next(anext(waiting))) for _ in range(2)] == [1, 2]
    step = anext(waiting)
    assert next(step) == "waits"
    with pytest.raises(KeyError):
        step.throw(KeyError("own"))
    with pytest.raises(StopAsyncIteration):
        next(anext(waiting))
    step.close()


# What yields the items that are sent.


class Each:
    """An iterator whose steps are what a function makes of its numbers."""

    def __init__(self, step: Callable[[int], Awaitable[int]]) -> None:
        self._step = step
        self._next = 0

    def __aiter__(self) -> Each:
        return self

    def __anext__(self) -> Awaitable[int]:
        self._next += 1
        if self._next <= 1000:
            return self._step(self._next)
        return self._end()

    async def _end(self) -> int:
        raise StopAsyncIteration


async def at_once(number: int) -> int:
    return number


async def later(number: int) -> int:
    if number % 100 == 0:
        await asyncio.sleep(0)
    return number


@types.coroutine
def of_a_generator(number: int) -> Generator[None, None, int]:
    if number % 100 == 0:
        yield
    return number


def done(number: int) -> asyncio.Future[int]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(number)
    return future


class Object:
    def __init__(self, number: int) -> None:
        self._number = number

    def __await__(self) -> Generator[None, None, int]:
        if self._number % 100 == 0:
            yield
        return self._number


@pytest.mark.parametrize("step", [at_once, later, of_a_generator, done, Object])
async def test_sources_whose_steps_are_of_any_kind(client: shmrpc.Client, step: Callable[[int], Any]) -> None:
    assert [item async for item in client.doubled(Each(step))] == [2 * number for number in range(1, 1001)]


async def test_a_source_whose_steps_cannot_be_awaited(client: shmrpc.Client) -> None:
    with pytest.raises(TypeError, match="does not implement __await__: int"):
        [item async for item in client.doubled(Each(lambda number: number))]  # type: ignore[arg-type,return-value]
    assert [item async for item in client.count(2)] == [0, 1]


async def test_a_source_that_waits_is_cancelled_where_it_waits(client: shmrpc.Client) -> None:
    ended: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("closed")

    stream = client.doubled(source())
    assert await anext(stream) == 2
    await asyncio.sleep(0.01)
    await stream.aclose()
    assert ended[-1] == "closed"
