"""Waiting before a batch is sent, and adding calls afterwards: a wait that would never end raises at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
import threading
import types
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import shmrpc
from shmrpc.testing import connect
from tests.helpers import services

SHARED_SERVER = True

WAYS: dict[str, Callable[[asyncio.Future[Any]], Awaitable[Any]]] = {
    "await": lambda future: future,
    "wait_for": lambda future: asyncio.wait_for(future, 60),
    "gather": lambda future: asyncio.gather(future),
    "wait": lambda future: asyncio.wait([future]),
    "shield": lambda future: asyncio.shield(future),
}


@pytest.mark.parametrize("way", WAYS)
async def test_waiting_within_the_block_raises_and_nothing_is_sent(way: str) -> None:
    async with connect(services.service) as client:
        with pytest.raises(shmrpc.LocalProtocolError, match=r"add\(\) is part of a batch.*async with client.batch"):
            async with client.batch() as batch:
                future = batch.add(1, 2)
                await WAYS[way](future)
        assert future.cancelled()
        assert await client.add(1, 2) == 3


@pytest.mark.parametrize("way", WAYS)
async def test_after_the_block_any_way_of_waiting_will_do(way: str) -> None:
    async with connect(services.service) as client:
        async with client.batch() as batch:
            future = batch.add(1, 2)
        await WAYS[way](future)
        assert future.result() == 3


async def test_the_result_is_asked_for_within_the_block() -> None:
    async with connect(services.service) as client, client.batch() as batch:
        future = batch.add(1, 2)
        for ask in (future.result, future.exception):
            with pytest.raises(shmrpc.LocalProtocolError, match="part of a batch"):
                ask()
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future  # A cancelled future is done and can be awaited.


async def test_another_task_may_wait_while_the_block_goes_on() -> None:
    async def doubled(future: asyncio.Future[int]) -> int:
        return 2 * await future

    called: list[int] = []
    async with connect(services.service) as client:
        async with client.batch() as batch:
            future = batch.add(1, 2)
            future.add_done_callback(lambda done: called.append(done.result()))
            task = asyncio.create_task(doubled(future))
            await asyncio.sleep(0)  # The task waits now.
        assert await task == 6
        assert called == [3]


async def test_a_batch_that_is_never_entered_is_never_sent() -> None:
    async with connect(services.service) as client:
        with pytest.raises(shmrpc.LocalProtocolError, match="part of a batch"):
            await client.batch().add(1, 2)


async def test_a_call_cannot_be_added_to_a_batch_that_was_sent() -> None:
    """The future of such a call would never be done."""
    async with connect(services.service) as client:
        async with client.batch() as batch:
            first = batch.add(1, 2)
        for add in (batch.add, functools.partial(batch.call, "add")):
            with pytest.raises(shmrpc.LocalProtocolError, match=r"batch has ended.*`async with client\.batch"):
                add(3, 4)
        assert first.result() == 3


async def test_a_call_cannot_be_added_while_the_batch_is_sent() -> None:
    async def add_later(batch: Any) -> Any:
        return batch.add(3, 4)

    async with connect(services.service) as client:
        async with client.batch() as batch:
            first = batch.add(1, 2)
            task = asyncio.create_task(add_later(batch))  # Runs once the end of the block waits for the reply.
        assert first.result() == 3
        with pytest.raises(shmrpc.LocalProtocolError, match="batch has ended"):
            await task


async def test_a_call_cannot_be_added_after_a_block_that_has_raised() -> None:
    async with connect(services.service) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.batch() as batch:
                raise ZeroDivisionError
        with pytest.raises(shmrpc.LocalProtocolError, match="batch has ended"):
            batch.add(1, 2)


def test_a_thread_cannot_add_a_call_to_a_batch_that_was_sent(sync_client: shmrpc.sync.Client) -> None:
    with sync_client.batch() as batch:
        first = batch.add(1, 2)
    for add in (batch.add, functools.partial(batch.call, "add")):
        with pytest.raises(shmrpc.LocalProtocolError, match=r"batch has ended.*`with client\.batch"):
            add(3, 4)
    assert first.result() == 3


def test_a_thread_that_waits_within_its_own_block_raises(sync_client: shmrpc.sync.Client) -> None:
    with sync_client.batch() as batch:
        future = batch.add(1, 2)
        for ask in (future.result, future.exception):
            for timeout in (None, 60):
                with pytest.raises(shmrpc.LocalProtocolError, match=r"part of a batch.*`with client.batch"):
                    ask(timeout)
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(future.result()))
        thread.start()
    thread.join()
    assert (got, future.result()) == ([3], 3)


def test_a_call_that_is_added_amid_another_one_gets_its_own_result(sync_client: shmrpc.sync.Client) -> None:
    """Another thread or a signal handler may add a call between any two lines of the batch."""
    added: list[tuple[int, concurrent.futures.Future[int]]] = []

    def trace(frame: types.FrameType, event: str, value: object) -> Any:
        if not frame.f_code.co_filename.endswith("client/common/batch.py"):
            return None
        if event == "line":
            added.append((len(added), batch.add(len(added), 0)))
        return trace

    with sync_client.batch() as batch:
        add = batch.add
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            future = add(1000, 0)
        finally:
            sys.settrace(before)
    assert len(added) > 3
    assert future.result() == 1000
    assert [(expected, each.result()) for expected, each in added if each.result() != expected] == []
