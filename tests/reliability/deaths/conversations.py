"""A service and conversations of all kinds with it, during which one of the two sides dies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

import numpy as np

import shmrpc
from tests.helpers.array_service import Bytes, numbered, sum_of

NAME: Final = "tested.dying"
service = shmrpc.Service(NAME)

#: Bytes that either side may lend. Bytes of an array, which is lent. Characters of a text, which exceeds the loans, so
#: that it travels through the ring in pieces.
MEMORY: Final = 1 << 20
ARRAY: Final = 100_000
TEXT: Final = 1_100_000
_SUM: Final = sum_of(numbered(1, ARRAY))
#: Seconds of a call that lasts until a side dies: longer than a series of deaths on a busy machine.
LONG: Final = 3600.0


def serve() -> shmrpc.Server:
    """Return a server of the service with little memory."""
    return shmrpc.serve(service, max_memory=MEMORY)


def connect(timeout: float = 5.0) -> shmrpc.Client:
    """Return a client of the service with little memory."""
    return shmrpc.connect(NAME, timeout=timeout, max_memory=MEMORY)


def connect_in_threads(timeout: float = 5.0) -> shmrpc.sync.Client:
    """Return a client without a loop, with little memory."""
    return shmrpc.sync.connect(NAME, timeout=timeout, max_memory=MEMORY)


#: Callbacks that receive how a client wants the server to end.
leaving: list[Callable[[str], None]] = []
#: Times at which handlers were cancelled.
cancelled: list[float] = []


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
async def later(value: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return value


@service.endpoint(run_in="thread")
def in_thread(value: int) -> int:
    return value


@service.endpoint
async def sleep(seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(time.monotonic())
        raise


@service.endpoint
def fail(text: str) -> None:
    raise ValueError(text)


@service.endpoint
def echo(text: str) -> str:
    return text


@service.endpoint
def array(seed: int, size: int) -> Bytes:
    return numbered(seed, size)


@service.endpoint
def built(seed: int, size: int) -> Bytes:
    """Return an array that is built in shared memory."""
    made: Bytes = shmrpc.current_call().empty(size, "uint8")
    made[:] = numbered(seed, size)
    return made


@service.endpoint
def checksum(value: Bytes) -> int:
    return sum_of(value)


@service.endpoint
def back(value: Bytes) -> Bytes:
    return value


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@service.endpoint(run_in="thread")
def count_in_thread(n: int) -> Iterator[int]:
    yield from range(n)


@service.endpoint
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


@service.endpoint
async def doubled(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    async for number in numbers:
        yield 2 * number


@service.endpoint
def leave(how: str) -> None:
    for hear in leaving:
        hear(how)


async def _nothing(client: shmrpc.Client) -> None:
    """Make no call after the handshake."""


async def _small(client: shmrpc.Client) -> None:
    for i in range(3):
        assert await client.add(i, 1) == i + 1
    assert await asyncio.gather(*(client.later(i, i / 1000) for i in range(4))) == [0, 1, 2, 3]
    assert await client.in_thread(7) == 7
    text = ""
    try:
        await client.fail("as asked")
    except ValueError as error:
        text = str(error)
    assert text == "as asked"
    given_up = asyncio.create_task(client.sleep(LONG))
    await asyncio.sleep(0.001)
    given_up.cancel()
    await asyncio.wait([given_up])
    limited = client.with_options(timeout=30.0)
    assert [await limited.add(1, 1), await limited.later(3), await client.add(a=1, b=2)] == [2, 3, 3]
    with_metadata = limited.with_options(metadata={"asked": "so"})
    assert [await with_metadata.later(3), await with_metadata.add(1, 1)] == [3, 2]
    assert [each async for each in client.map("add", range(9), range(9), chunk=3)] == list(range(0, 18, 2))
    async with client.batch() as batch:
        sums = [batch.add(1, 2), batch.later(4)]
    assert [await each for each in sums] == [3, 4]
    await client.notify("add", 1, 2)


async def _large(client: shmrpc.Client) -> None:
    texts = ["a" * TEXT, "b" * TEXT]
    assert await asyncio.gather(*map(client.echo, texts)) == texts
    assert await client.echo("c" * TEXT) == "c" * TEXT


async def _arrays(client: shmrpc.Client) -> None:
    ours = client.empty(ARRAY, "uint8")
    ours[:] = numbered(1, ARRAY)
    held = [await client.built(1, ARRAY), await client.array(1, ARRAY)]
    assert [sum_of(each) for each in held] == [_SUM] * 2
    assert await client.checksum(ours) == _SUM
    assert await client.checksum(numbered(1, ARRAY)) == _SUM
    assert sum_of(await client.back(ours)) == _SUM
    assert sum_of(await client.back(held[0])) == _SUM
    assert np.array_equal(*await asyncio.gather(*(client.back(each) for each in held)))
    del held, ours
    await client.later(0, 0.05)  # Long enough for both sides to return idle memory.
    assert await client.add(1, 2) == 3


async def _sleeping(client: shmrpc.Client) -> None:
    for i in range(4):
        assert await client.later(i, 0.002) == i
        await asyncio.sleep(0.002)
        assert await client.add(i, 1) == i + 1


async def _streams(client: shmrpc.Client) -> None:
    assert [item async for item in client.count(5000)] == list(range(5000))
    assert [item async for item in client.count_in_thread(3)] == [0, 1, 2]
    assert await client.total(range(3000)) == sum(range(3000))
    assert [item async for item in client.doubled(range(50))] == list(range(0, 100, 2))
    broken_off = client.count(10_000)
    assert await anext(broken_off) == 0
    await broken_off.aclose()


#: Conversations of a client in a loop, by kind.
CONVERSATIONS: Final[dict[str, Callable[[shmrpc.Client], Coroutine[Any, Any, None]]]] = {
    "handshake": _nothing,
    "small": _small,
    "large": _large,
    "arrays": _arrays,
    "sleeping": _sleeping,
    "streams": _streams,
    "drain": _small,
    "shutdown": _nothing,
}


def _nothing_in_threads(client: shmrpc.sync.Client) -> None:
    """Make no call after the handshake."""


def _small_in_threads(client: shmrpc.sync.Client) -> None:
    for i in range(3):
        assert client.add(i, 1) == i + 1
    results: list[int] = []
    threads = [
        threading.Thread(target=_quietly, args=(lambda i=i: results.append(client.later(i, i / 1000)),))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.in_thread(7) == 7
    assert sorted(results) == [0, 1, 2]
    text = ""
    try:
        client.fail("as asked")
    except ValueError as error:
        text = str(error)
    assert text == "as asked"
    limited = client.with_options(timeout=30.0)
    assert [limited.add(1, 1), limited.later(3), client.add(a=1, b=2)] == [2, 3, 3]
    with_metadata = limited.with_options(metadata={"asked": "so"})
    assert [with_metadata.later(3), with_metadata.add(1, 1)] == [3, 2]
    assert list(client.map("add", range(9), range(9), chunk=3)) == list(range(0, 18, 2))
    with client.batch() as batch:
        sums = [batch.add(1, 2), batch.later(4)]
    assert [each.result(30) for each in sums] == [3, 4]
    client.notify("add", 1, 2)


def _quietly(call: Callable[[], object]) -> None:
    """Make a call beside the thread that reports errors: the end of the connection reaches that thread, too."""
    with contextlib.suppress(shmrpc.ConnectionLost):
        call()


def _large_in_threads(client: shmrpc.sync.Client) -> None:
    assert client.echo("a" * TEXT) == "a" * TEXT
    assert client.echo("b" * TEXT) == "b" * TEXT


def _arrays_in_threads(client: shmrpc.sync.Client) -> None:
    ours = client.empty(ARRAY, "uint8")
    ours[:] = numbered(1, ARRAY)
    held = [client.built(1, ARRAY), client.array(1, ARRAY)]
    assert [sum_of(each) for each in held] == [_SUM] * 2
    assert client.checksum(ours) == _SUM
    assert client.checksum(numbered(1, ARRAY)) == _SUM
    assert sum_of(client.back(ours)) == _SUM
    assert sum_of(client.back(held[0])) == _SUM
    del held, ours
    client.later(0, 0.05)  # Long enough for both sides to return idle memory.
    assert client.add(1, 2) == 3


def _sleeping_in_threads(client: shmrpc.sync.Client) -> None:
    for i in range(4):
        assert client.later(i, 0.002) == i
        time.sleep(0.002)
        assert client.add(i, 1) == i + 1


def _streams_in_threads(client: shmrpc.sync.Client) -> None:
    assert list(client.count(5000)) == list(range(5000))
    assert client.total(range(3000)) == sum(range(3000))
    assert list(client.doubled(range(50))) == list(range(0, 100, 2))
    broken_off = client.count(10_000)
    assert next(broken_off) == 0
    broken_off.close()


#: Conversations of a client without a loop, by kind.
CONVERSATIONS_IN_THREADS: Final[dict[str, Callable[[shmrpc.sync.Client], None]]] = {
    "handshake": _nothing_in_threads,
    "small": _small_in_threads,
    "large": _large_in_threads,
    "arrays": _arrays_in_threads,
    "sleeping": _sleeping_in_threads,
    "streams": _streams_in_threads,
    "drain": _small_in_threads,
    "shutdown": _nothing_in_threads,
}
