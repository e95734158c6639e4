"""The table of docs/values.md is what happens: each type, by every way, in loops and in threads."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers import pool_tasks
from tests.values.value_samples import SAMPLES, STRUCTURED, Tensor, is_same

OURS = os.getpid()
#: The columns of the table, and the ways that each is about.
COLUMNS = {
    "calls, streams": ("call", "stream"),
    "queues, topics": ("queue", "topic"),
    "stores": ("store",),
    "pools": ("pool",),
}
WAYS = [way for ways in COLUMNS.values() for way in ways]

service = shmrpc.Service(f"values-by-way-{OURS}")
#: The values that the endpoints which declare a class received.
received: list[Any] = []


@service.endpoint
def echo(value: Any) -> Any:
    return value


@service.endpoint
async def stream(values: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for value in values:
        yield value


def _taking(cls: type) -> Callable[[Any], None]:
    def take(value: Any) -> None:
        received.append(value)

    take.__name__ = f"take_{cls.__name__}"
    take.__annotations__ = {"value": cls, "return": None}
    return take


for _cls in (*STRUCTURED, Tensor):
    service.endpoint(_taking(_cls))


def documented() -> dict[str, dict[str, str]]:
    """Return the cells of the table, by row and column."""
    page = (Path(__file__).parents[2] / "docs" / "values.md").read_text()
    lines = iter(page[page.index("| value |") :].split("\n\n")[0].splitlines())
    columns = [each.strip() for each in next(lines).strip("|").split("|")][1:]
    next(lines)
    rows = ([each.strip() for each in line.strip("|").split("|")] for line in lines)
    return {first: dict(zip(columns, cells, strict=True)) for first, *cells in rows}


TABLE = documented()


def test_the_table_has_all_samples() -> None:
    assert list(TABLE) == list(SAMPLES)
    assert {tuple(cells) for cells in TABLE.values()} == {tuple(COLUMNS)}
    assert {cell for cells in TABLE.values() for cell in cells.values()} == {"same", "refused", "structure", "declared"}


#: Sends a value, and gives what arrives.
Send = Callable[..., Any]


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _enter(stack: contextlib.AsyncExitStack) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Return the functions that send a value by each way in an event loop."""
    await stack.enter_async_context(shmrpc.serve(service))
    client = await stack.enter_async_context(shmrpc.connect(service))
    queue = await stack.enter_async_context(shmrpc.queue(f"by-way-q-{OURS}"))
    subscription = await stack.enter_async_context(shmrpc.subscribe(f"by-way-t-{OURS}"))
    topic = await stack.enter_async_context(shmrpc.topic(f"by-way-t-{OURS}"))
    store = await stack.enter_async_context(shmrpc.store(f"by-way-s-{OURS}"))
    pool = await stack.enter_async_context(shmrpc.pool(1))

    async def by_stream(value: Any) -> Any:
        async def items() -> AsyncIterator[Any]:
            yield value

        (got,) = [each async for each in client.stream(items())]
        return got

    async def by_queue(value: Any) -> Any:
        await queue.put(value)
        return await queue.get()

    async def by_topic(value: Any) -> Any:
        await topic.publish(value)
        return (await subscription.get()).value

    async def by_store(value: Any) -> Any:
        store["x"] = value
        return store.pop("x")

    async def by_pool(value: Any) -> Any:
        return await pool.run(pool_tasks.same, value)

    ways = {"call": client.echo, "stream": by_stream, "queue": by_queue, "topic": by_topic}
    return {**ways, "store": by_store, "pool": by_pool, "client": client.call}


def _enter_threads(stack: contextlib.ExitStack) -> dict[str, Send]:
    """Open the same in threads."""
    client = stack.enter_context(shmrpc.sync.connect(f"values-by-way-{OURS}"))
    queue = stack.enter_context(shmrpc.sync.queue(f"by-way-sq-{OURS}"))
    subscription = stack.enter_context(shmrpc.sync.subscribe(f"by-way-st-{OURS}"))
    topic = stack.enter_context(shmrpc.sync.topic(f"by-way-st-{OURS}"))
    store = stack.enter_context(shmrpc.sync.store(f"by-way-ss-{OURS}"))
    pool = stack.enter_context(shmrpc.sync.pool(1))

    def by_queue(value: Any) -> Any:
        queue.put(value)
        return queue.get()

    def by_topic(value: Any) -> Any:
        topic.publish(value)
        return subscription.get().value

    def by_store(value: Any) -> Any:
        store["x"] = value
        return store.pop("x")

    def by_stream(value: Any) -> Any:
        (got,) = client.stream(iter([value]))
        return got

    def by_pool(value: Any) -> Any:
        return pool.submit(pool_tasks.same, value).result()

    ways: dict[str, Send] = {"call": client.echo, "stream": by_stream, "queue": by_queue, "topic": by_topic}
    return {**ways, "store": by_store, "pool": by_pool, "client": client.call}


@pytest.fixture(scope="module")
def forms() -> Iterator[dict[str, dict[str, Send]]]:
    """Return the functions that send a value, by form and way."""
    loop = Loop()
    handles = contextlib.AsyncExitStack()
    try:
        in_loop = loop.run(_enter(handles))

        def waiting(send: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
            async def work(*args: Any) -> Any:
                return await send(*args)

            return lambda *args: loop.run(work(*args))

        with contextlib.ExitStack() as stack:
            threads = _enter_threads(stack)
            yield {"loop": {way: waiting(send) for way, send in in_loop.items()}, "threads": threads}
    finally:
        loop.run(handles.aclose())
        loop.close()


def _short(row: str) -> str:
    return row.replace("`", "")[:40]


def samples_of(row: str) -> list[Any]:
    make, library = SAMPLES[row]
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return make()


def cell_of(row: str, way: str) -> str:
    return next(TABLE[row][column] for column, ways in COLUMNS.items() if way in ways)


@pytest.mark.parametrize("form", ["loop", "threads"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", SAMPLES, ids=_short)
def test_a_value_arrives_as_documented(forms: dict[str, dict[str, Send]], row: str, way: str, form: str) -> None:
    send, cell = forms[form][way], cell_of(row, way)
    for sample in samples_of(row):
        for wrap in (lambda value: value, lambda value: [value], lambda value: {"k": (value,)}):
            value = wrap(sample)
            if cell == "refused":
                with pytest.raises(shmrpc.EncodeError):
                    send(value)
                continue
            if cell == "declared":
                with pytest.raises(shmrpc.CallError, match="arrived where its class is not declared"):
                    send(value)
                forms[form]["client"](f"take_{type(sample).__name__}", sample)
                assert is_same(received.pop(), sample)
                continue
            got = send(value)
            if cell == "same":
                assert is_same(got, value), (value, got)
            else:
                assert type(wrap_inside(got)) in (dict, tuple, str, int), (value, got)
                forms[form]["client"](f"take_{type(sample).__name__}", sample)
                assert is_same(received.pop(), sample)


def wrap_inside(value: Any) -> Any:
    """Return the value that the test above has wrapped."""
    if type(value) is list:
        return value[0]
    return value["k"][0] if type(value) is dict and "k" in value else value


@pytest.mark.parametrize("form", ["loop", "threads"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", SAMPLES, ids=_short)
def test_keys_and_members_of_sets_arrive_as_documented(
    forms: dict[str, dict[str, Send]], row: str, way: str, form: str
) -> None:
    send, cell = forms[form][way], cell_of(row, way)
    for sample in samples_of(row):
        try:
            hash(sample)
        except (TypeError, ValueError):
            continue
        for value in ({sample: 1}, {sample}, frozenset([sample])):
            if way == "store":  # A store takes fewer types as keys.
                with contextlib.suppress(shmrpc.EncodeError, TypeError):
                    assert is_same(list(send(value)), list(value)), value
            elif cell == "refused":
                with pytest.raises(shmrpc.EncodeError):
                    send(value)
            elif cell == "same":
                assert is_same(list(send(value)), list(value)), value
