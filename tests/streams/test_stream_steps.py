"""A stream is an asynchronous generator like any other, and takes its items from any: each step may wait or not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import types
import weakref
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
def given(how: str) -> AsyncIterator[int]:
    return Anew(later)


@service.endpoint
async def doubled(items: AsyncIterator[int]) -> AsyncIterator[int]:
    async for item in items:
        yield 2 * item


@pytest.fixture
async def client() -> AsyncIterator[shmrpc.Client]:
    closed.clear()
    async with shmrpc.serve(service), shmrpc.connect("tested.steps") as client:
        yield client


async def test_a_stream_is_an_asynchronous_generator(client: shmrpc.Client) -> None:
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
    """Of two concurrent steps one waits and the other raises."""
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
async def test_an_exception_thrown_into_a_stream_ends_it(client: shmrpc.Client, pause: float) -> None:
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


async def test_a_stream_that_is_left_unread_is_closed(client: shmrpc.Client) -> None:
    async for item in client.count(100_000):
        if item == 10:
            break
    assert await eventually_in_loop(lambda: closed != [])


async def test_a_stream_is_not_awaited(client: shmrpc.Client) -> None:
    with pytest.raises(TypeError, match="can't be (used in 'await' expression|awaited)"):
        await client.count(1)


def test_a_step_can_be_driven_by_hand() -> None:
    """Another kind of loop, or a debugger, calls the methods of a step without the interpreter's own shortcut."""

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


#: Sources of the items that are sent.


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


class Anew(Each):
    """One that begins anew when it is asked for an iterator."""

    def __aiter__(self) -> Each:
        self._next = 0
        return self


class Numbers:
    """An iterable whose iterators are no iterables."""

    def __aiter__(self) -> AsyncIterator[int]:
        return Bare()  # type: ignore[return-value]


class Bare:
    def __init__(self) -> None:
        self._next = 0

    def __anext__(self) -> Awaitable[int]:
        """Return an awaitable, or raise at the end without an awaitable."""
        self._next += 1
        if self._next > 1000:
            raise StopAsyncIteration
        return later(self._next)


@pytest.mark.parametrize("at", ["shm", "memory"])
@pytest.mark.parametrize("source", [lambda: Anew(later), Numbers], ids=["begins anew", "iterators alone"])
@pytest.mark.parametrize("first", [None, "first"])
async def test_iterators_of_any_kind(source: Callable[[], Any], at: str, first: str | None) -> None:
    async def added() -> int:
        return sum([item async for item in caller.doubled(source())])

    async with shmrpc.serve(service, at=f"{at}://"), shmrpc.connect("tested.steps", at=f"{at}://") as plain:
        caller = plain if first is None else plain.with_options(reply_metadata={})
        assert await asyncio.wait_for(added(), 60) == 2 * sum(range(1, 1001))
        handled = [item async for item in caller.given(at)]
        assert handled == list(range(1, 1001))


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


async def test_a_source_that_cannot_be_thrown_into_is_cancelled_like_any() -> None:
    class Native:
        """An awaitable of an extension: an iterator without further methods."""

        def __await__(self) -> Native:
            return self

        def __iter__(self) -> Native:
            return self

        def __next__(self) -> None:
            return None

    class Waiting:
        def __aiter__(self) -> Waiting:
            return self

        def __anext__(self) -> Native:
            return Native()

    async with shmrpc.serve(service), shmrpc.connect("tested.steps") as client:
        stream: Any = client.doubled(Waiting())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        assert [item async for item in client.count(2)] == [0, 1]


async def test_a_stream_that_an_item_refers_to_is_collected() -> None:
    class Item:
        stream: Any = None

    ended = []

    async def lists(item: Item) -> AsyncGenerator[list[Any], None]:
        try:
            yield [1, item]
        finally:
            ended.append(True)

    item = Item()
    item.stream = shmrpc._core.ItemStream(lists(item))
    assert await anext(item.stream) == 1
    gone = weakref.ref(item)
    del item
    assert await eventually_in_loop(lambda: gc.collect() >= 0 and gone() is None and ended == [True])


def test_a_destructor_may_touch_its_stream() -> None:
    """Whatever runs as an item is asked for: nothing of the stream is locked then."""

    class Touching:
        def __init__(self, stream: Any) -> None:
            self.me, self.stream = self, stream

        def __del__(self) -> None:
            step = self.stream.asend("nothing")
            step.close()
            touched.append(True)

    async def main() -> None:
        async def lists() -> AsyncGenerator[list[int], None]:
            for _ in range(100):
                yield [1, 2]

        stream = shmrpc._core.ItemStream(lists())
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            async for _ in stream:
                Touching(stream)
        finally:
            gc.set_threshold(*before)

    touched: list[bool] = []
    asyncio.run(asyncio.wait_for(main(), 60))
    assert touched
