"""A call that has failed keeps nothing of what it was given, on neither side.

Its shared memory is free at once, and not when the garbage collector next comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shmrpc
from shmrpc import access_log
from shmrpc.server import failure_log
from tests.helpers.loops import one_loop
from tests.helpers.server_process import eventually, eventually_in_loop

Bytes = NDArray[np.uint8]
service = shmrpc.Service("failing")
#: Arguments that endpoints were given.
given: list[weakref.ref[Bytes]] = []


def fail(value: Bytes) -> None:
    given.append(weakref.ref(value))
    raise ValueError("no")


@service.endpoint
def fails(value: Bytes) -> None:
    fail(value)


@service.endpoint
async def fails_later(value: Bytes) -> None:
    await asyncio.sleep(0)
    fail(value)


@service.endpoint(run_in="thread")
def fails_in_thread(value: Bytes) -> None:
    fail(value)


@service.endpoint
async def fails_streaming(value: Bytes) -> AsyncIterator[int]:
    yield 1
    fail(value)


@service.endpoint
async def returns_what_cannot_be_sent(value: Bytes) -> Any:
    given.append(weakref.ref(value))
    return [value, threading.Lock()]


@service.endpoint
async def hangs(value: Bytes) -> None:
    given.append(weakref.ref(value))
    await asyncio.Event().wait()


@service.endpoint
async def fails_with_input(value: Bytes, numbers: AsyncIterator[int]) -> None:
    async for _ in numbers:
        fail(value)


class Source(Exception):
    """Raised by the source of a stream."""


UNSENDABLE = threading.Lock()


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(failure_log.logger, "disabled", True)  # Pytest keeps what is logged, tracebacks and all.
    gc.collect()
    given.clear()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["plain", "intercepted"])
def interceptors(request: pytest.FixtureRequest) -> list[Any]:
    return [access_log.interceptor()] if request.param == "intercepted" else []


@pytest.fixture
async def server(interceptors: list[Any]) -> AsyncIterator[shmrpc.Server]:
    async with shmrpc.serve(service, interceptors=interceptors, max_frame=100_000) as server:
        yield server


#: Calls that fail by themselves, of either kind of client. Each returns the result or an awaitable.
AT_ONCE: dict[str, Callable[[Any, Bytes], Any]] = {
    "raises": lambda client, value: client.fails(value),
    "raises, by keyword": lambda client, value: client.fails(value=value),
    "raises, with metadata": lambda client, value: client.with_options(metadata={"a": "b"}).fails(value),
    "raises, with a deadline": lambda client, value: client.with_options(timeout=30).fails(value),
    "raises later": lambda client, value: client.fails_later(value),
    "raises in a thread": lambda client, value: client.fails_in_thread(value),
    "its result cannot be sent": lambda client, value: client.returns_what_cannot_be_sent(value),
    "an argument cannot be sent": lambda client, value: client.fails(value, UNSENDABLE),
    "a keyword argument cannot be sent": lambda client, value: client.fails(value, other=UNSENDABLE),
    "an argument with metadata cannot be sent": (
        lambda client, value: client.with_options(metadata={"a": "b"}).fails(value, UNSENDABLE)
    ),
    "an argument with a deadline cannot be sent": (
        lambda client, value: client.with_options(timeout=30).fails(value, UNSENDABLE)
    ),
    "is one way and cannot be sent": lambda client, value: client.notify("fails", value, UNSENDABLE),
    "is too large": lambda client, value: client.fails(value, "x" * 200_000),
    "has too many arguments": lambda client, value: client.fails(value, 1),
    "has an argument of the wrong type": lambda client, value: client.fails([value]),
    "is unknown": lambda client, value: client.call("unknown", value),
    "expires": lambda client, value: client.with_options(timeout=0.01).hangs(value),
}


def by_itself(call: Callable[[Any, Bytes], Any], client: Any, value: Bytes, _: object) -> Any:
    """Make a call of AT_ONCE, without the last argument: other calls need the server, or the way to stop it."""
    return call(client, value)


async def is_cancelled(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    task = asyncio.ensure_future(client.hangs(value))
    assert await eventually_in_loop(lambda: bool(given))
    task.cancel()
    try:
        await task
    finally:
        del task


async def loses_its_server(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    call = asyncio.ensure_future(client.hangs(value))
    assert await eventually_in_loop(lambda: bool(given))
    await server.close()
    try:
        await call
    finally:
        del call


async def comes_too_late(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    await server.close()
    with contextlib.suppress(shmrpc.ShmrpcError):
        await client.fails(value)
    await client.fails(value)


async def has_a_result_that_raises(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async for _ in client.fails_streaming(value):
        pass


async def has_a_source_that_raises(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async def numbers() -> AsyncIterator[int]:
        raise Source
        yield 1

    await client.fails_with_input(value, numbers())


async def has_an_item_that_cannot_be_sent(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async def numbers() -> AsyncIterator[Any]:
        yield UNSENDABLE

    await client.fails_with_input(value, numbers())


async def takes_a_stream_and_raises(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    await client.fails_with_input(value, numbers())


async def is_in_a_batch(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async with client.batch() as batch:
        failed = batch.fails(value)
    try:
        await failed
    finally:
        del failed


async def is_in_a_batch_and_asked_for_at_its_end(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async with client.batch() as batch:
        failed = batch.fails(value)
    try:
        failed.result()
    finally:
        del failed


async def is_one_of_many(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async for _ in client.map("fails", [value]):
        pass


async def is_in_a_batch_and_cannot_be_sent(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async with client.batch() as batch:
        failed = batch.fails(value, UNSENDABLE)
    try:
        failed.result()
    finally:
        del failed


async def is_in_a_batch_that_cannot_be_sent(client: shmrpc.Client, value: Bytes, server: shmrpc.Server) -> None:
    async with client.batch() as batch:
        batch.fails(value)
        batch.fails(value, "long" * 30_000)


WAYS: dict[str, Callable[[shmrpc.Client, Bytes, shmrpc.Server], Awaitable[Any]]] = {
    **{way: functools.partial(by_itself, call) for way, call in AT_ONCE.items()},
    **{
        way.__name__.replace("_", " "): way
        for way in (
            is_cancelled,
            loses_its_server,
            comes_too_late,
            has_a_result_that_raises,
            has_a_source_that_raises,
            has_an_item_that_cannot_be_sent,
            takes_a_stream_and_raises,
            is_in_a_batch,
            is_in_a_batch_and_asked_for_at_its_end,
            is_one_of_many,
            is_in_a_batch_and_cannot_be_sent,
            is_in_a_batch_that_cannot_be_sent,
        )
    },
}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_kept_of_a_call_in_a_loop_that(
    way: str, server: shmrpc.Server, interceptors: list[Any]
) -> None:
    async with shmrpc.connect("failing", max_frame=100_000, interceptors=interceptors) as client:
        value = np.zeros(5000, np.uint8)
        kept = weakref.ref(value)
        try:
            await WAYS[way](client, value, server)
        except (Exception, asyncio.CancelledError):
            pass
        else:
            pytest.fail("the call has not failed")
        del value
        await asyncio.sleep(0)  # The callback that the loop runs at this moment has the failed future.
        assert kept() is None, "the caller has it"
    assert await eventually_in_loop(lambda: all(ref() is None for ref in given), 2), "the server has it"


def hangs_until(client: shmrpc.sync.Client, value: Bytes, calls: int, end: Callable[[], None]) -> None:
    """Make a call that hangs until another thread ends it, when so many calls have begun."""

    def end_it() -> None:
        assert eventually(lambda: len(given) == calls)
        end()

    ending = threading.Thread(target=end_it)
    ending.start()
    try:
        client.hangs(value)
    finally:
        ending.join()


def is_stopped(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    hangs_until(client, value, 1, client.stop)


def loses_its_server_in_a_thread(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    hangs_until(client, value, 1, stop)


def loses_its_server_behind_another(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    """Lose the server while the other thread receives for both."""

    def hang() -> None:
        with contextlib.suppress(shmrpc.ConnectionLost):
            client.hangs(np.zeros(5000, np.uint8))

    leading = threading.Thread(target=hang)
    leading.start()
    assert eventually(lambda: len(given) == 1)
    try:
        hangs_until(client, value, 2, stop)
    finally:
        leading.join()


def comes_too_late_in_a_thread(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    stop()
    with contextlib.suppress(shmrpc.ShmrpcError):
        client.fails(value)
    client.fails(value)


def has_a_result_in_a_thread_that_raises(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    list(client.fails_streaming(value))


def has_a_source_in_a_thread_that_raises(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    def numbers() -> Iterator[int]:
        raise Source
        yield 1

    client.fails_with_input(value, numbers())


def has_an_item_in_a_thread_that_cannot_be_sent(
    client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]
) -> None:
    client.fails_with_input(value, [UNSENDABLE])


def takes_a_stream_from_a_thread_and_raises(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    client.fails_with_input(value, [1])


def is_in_a_batch_of_a_thread(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    with client.batch() as batch:
        failed = batch.fails(value)
    try:
        failed.result()
    finally:
        del failed


def is_one_of_many_of_a_thread(client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]) -> None:
    list(client.map("fails", [value]))


def is_in_a_batch_of_a_thread_and_cannot_be_sent(
    client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]
) -> None:
    with client.batch() as batch:
        failed = batch.fails(value, UNSENDABLE)
    try:
        failed.result()
    finally:
        del failed


def is_in_a_batch_of_a_thread_that_cannot_be_sent(
    client: shmrpc.sync.Client, value: Bytes, stop: Callable[[], None]
) -> None:
    with client.batch() as batch:
        batch.fails(value)
        batch.fails(value, "long" * 30_000)


THREAD_WAYS: dict[str, Callable[[shmrpc.sync.Client, Bytes, Callable[[], None]], Any]] = {
    **{way: functools.partial(by_itself, call) for way, call in AT_ONCE.items()},
    **{
        way.__name__.replace("_", " "): way
        for way in (
            is_stopped,
            loses_its_server_in_a_thread,
            loses_its_server_behind_another,
            comes_too_late_in_a_thread,
            has_a_result_in_a_thread_that_raises,
            has_a_source_in_a_thread_that_raises,
            has_an_item_in_a_thread_that_cannot_be_sent,
            takes_a_stream_from_a_thread_and_raises,
            is_in_a_batch_of_a_thread,
            is_one_of_many_of_a_thread,
            is_in_a_batch_of_a_thread_and_cannot_be_sent,
            is_in_a_batch_of_a_thread_that_cannot_be_sent,
        )
    },
}


@one_loop
@pytest.mark.parametrize("way", THREAD_WAYS)
async def test_nothing_is_kept_of_a_call_in_a_thread_that(
    way: str, server: shmrpc.Server, interceptors: list[Any]
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()

    def fail() -> str:
        with shmrpc.sync.connect("failing", max_frame=100_000, interceptors=interceptors) as client:
            value = np.zeros(5000, np.uint8)
            kept = weakref.ref(value)
            try:
                THREAD_WAYS[way](client, value, stop)
            except Exception:
                pass
            else:
                return "it has not failed"
            del value
            return "" if kept() is None else "the caller has it"

    assert not await asyncio.to_thread(fail)
    assert await eventually_in_loop(lambda: all(ref() is None for ref in given), 2), "the server has it"
