"""One-way calls of plain functions, which the core makes and runs by itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import shmrpc
from shmrpc.server import call_runner, slow_path
from shmrpc.wire.failure import encode_failure
from tests.helpers.server_process import PATIENCE, eventually_in_loop

service = shmrpc.Service("tested.one.way")
heard: list[Any] = []


@service.endpoint
def hear(value: int, loud: bool = False) -> None:
    heard.append((value, loud, shmrpc.current_call().endpoint))


@service.endpoint
def refuse(value: int) -> None:
    raise ValueError(value)


@service.endpoint
async def hear_later(value: int) -> None:
    await asyncio.sleep(0)
    heard.append(value)


@service.endpoint
def done() -> int:
    return len(heard)


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


async def test_plain_ones_need_nothing_of_python_but_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError(args)

    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        monkeypatch.setattr(type(client), "_notify", fail)
        monkeypatch.setattr(slow_path, "_call_one_way", fail)
        for i in range(300):
            await client.notify(hear, i)
            await client.notify("hear", i, True)
        assert await client.done() == 600
    assert heard == [(i, loud, "hear") for i in range(300) for loud in (False, True)]


async def test_others_go_the_general_way() -> None:
    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        await client.notify(hear, 1, loud=True)
        await client.notify(hear, value=2)
        await client.with_options(timeout=PATIENCE).notify(hear, 3)
        await client.with_options(metadata={"who": "Ada"}).notify(hear, 4)
        assert await client.done() == 4
        await client.notify(hear_later, 5)
        while await client.done() < 5:
            await asyncio.sleep(0.001)
    assert heard == [(1, True, "hear"), (2, False, "hear"), (3, False, "hear"), (4, False, "hear"), 5]


async def test_a_one_way_call_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        with caplog.at_level(logging.ERROR):
            await client.notify(refuse, 7)
            await client.notify("hear", "no number")
            await client.notify(hear, 8)
            assert await client.done() == 1
    assert "tested.one.way.refuse(), called one way, failed" in caplog.text
    assert "hear(): parameter 'value': expected `int`" in caplog.text
    assert heard == [(8, False, "hear")]


async def test_a_one_way_call_that_is_rejected_before_it_begins_is_logged_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def encode(*arguments: Any) -> Any:
        sent.append(arguments)
        return encode_failure(*arguments)

    monkeypatch.setattr(call_runner, "encode_failure", encode)
    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        with caplog.at_level(logging.ERROR), monkeypatch.context() as patched:
            patched.setattr(call_runner, "host_nanoseconds", lambda: 1 << 62)  # Past all deadlines.
            await client.with_options(timeout=PATIENCE).notify(hear, 1)
            assert await eventually_in_loop(lambda: "hear() had not ended by its deadline" in caplog.text)
            patched.undo()
            patched.setattr(call_runner, "check_metadata", _refuse_metadata)
            await client.with_options(metadata={"who": "Ada"}).notify(hear, 2)
            assert await eventually_in_loop(lambda: "hear(): metadata: wrong" in caplog.text)
    assert heard == [] and sent == []


def _refuse_metadata(metadata: object) -> None:
    raise TypeError("metadata: wrong")


async def test_a_one_way_call_that_cannot_be_sent_raises() -> None:
    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        with pytest.raises(shmrpc.EncodeError, match="hear"):
            await client.notify(hear, object())  # type: ignore[call-overload]
        with pytest.raises(shmrpc.EndpointNotFound, match="heer"):
            await client.notify("heer", 1)
        with pytest.raises(TypeError, match="expected the name or the function"):
            await client.notify(3, 1)  # type: ignore[call-overload]
    with pytest.raises(shmrpc.ConnectionLost):
        await client.notify(hear, 1)
    assert heard == []


async def test_they_wait_for_room_in_their_order() -> None:
    async with shmrpc.serve(service), shmrpc.connect(service, timeout=PATIENCE) as client:
        for i in range(5_000):  # In this loop, so that the server reads nothing until one waits.
            await client.notify(hear, i)
        assert await client.done() == 5_000
    assert [value for value, *_ in heard] == [*range(5_000)]
