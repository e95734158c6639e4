"""Faults that users tell a client to have: each comes when and as often as told, and to no other call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import shmrpc
from shmrpc.testing import Faults, connect
from tests.helpers import stream_service
from tests.helpers.noting_service import NotingService, until
from tests.helpers.server_process import timeouts


async def test_a_delayed_call_arrives_later_and_with_all_that_belongs_to_it() -> None:
    faults = Faults()
    async with connect(stream_service.service, faults=faults) as client:
        faults.delay(0.05, endpoint="total")
        total = asyncio.create_task(client.total(range(1000)))
        assert await client.add(1, 2) == 3
        assert not total.done()
        assert await total == sum(range(1000))
        faults.delay(0, endpoint="total")
        assert await client.total(range(10)) == 45


async def test_a_delay_makes_a_deadline_fire() -> None:
    faults = Faults()
    async with connect(service := NotingService(), faults=faults, call_timeout=0.02) as client:
        faults.delay(60)
        with pytest.raises(shmrpc.DeadlineExceeded, match="note"):
            await client.note("late")
        faults.clear()
        assert await client.with_options(timeout=60).note("in time") == ["in time"]
    assert service.done == ["in time"]


async def test_a_call_cancelled_while_it_is_held_back_never_begins() -> None:
    faults = Faults()
    async with connect(NotingService(), faults=faults) as client:
        faults.delay(0.02)
        held = asyncio.create_task(client.note("held"))
        await asyncio.sleep(0)  # The call is delayed. A timer might expire at the same time as the delay.
        held.cancel()
        assert await client.note("next") == ["next"]


async def test_a_dropped_answer_is_never_there_though_the_call_was_executed() -> None:
    faults = Faults()
    async with connect(service := NotingService(), faults=faults) as client:
        faults.drop(times=2, endpoint="note")
        for text in ("first", "second"):
            for timeout in timeouts():
                with pytest.raises(shmrpc.DeadlineExceeded):
                    await client.with_options(timeout=timeout).note(text)
                if text in service.done:
                    break
                faults.drop(endpoint="note")  # One was used up by a call that had expired before it began.
        assert await client.note("third") == ["first", "second", "third"]
    assert service.done == ["first", "second", "third"]


async def test_a_dropped_stream_ends_at_its_deadline() -> None:
    faults = Faults()
    async with connect(NotingService(), faults=faults) as client:
        faults.drop(endpoint="ticks")
        with pytest.raises(shmrpc.DeadlineExceeded):
            async for _ in client.with_options(timeout=0.05).ticks(3):
                pytest.fail("an item came")
        assert [item async for item in client.ticks(3)] == [0, 1, 2]


async def test_a_call_that_is_to_fail_does_so_as_often_as_told() -> None:
    faults = Faults()
    async with connect(service := NotingService(), faults=faults) as client:
        faults.fail(ValueError("as an endpoint would"))
        faults.fail(shmrpc.Overloaded("no room"), times=2, endpoint="note")
        with pytest.raises(ValueError, match="as an endpoint would") as caught:
            await client.note("fails")
        assert isinstance(caught.value, shmrpc.RemoteError)
        assert [item async for item in client.ticks(2)] == [0, 1]
        errors = await asyncio.gather(client.note("fails"), client.note("fails"), return_exceptions=True)
        assert [type(error) for error in errors] == [shmrpc.Overloaded] * 2
        assert errors[0] is not errors[1]
        faults.fail(shmrpc.ConnectionLost("cut", maybe_executed=True))
        with pytest.raises(shmrpc.ConnectionLost) as lost:
            async for _ in client.ticks(2):
                pytest.fail("an item came")
        assert lost.value.maybe_executed
        assert await client.note("works") == ["works"]
    assert service.done == ["works"]


async def test_faults_of_all_other_kinds_of_calls() -> None:
    faults = Faults()
    async with connect(stream_service.service, faults=faults, call_timeout=60) as client:
        ways: list[Callable[[], Awaitable[int]]] = [
            lambda: client.with_options(metadata={"k": "v"}).add(1, 2),
            lambda: client.add(a=1, b=2),
            lambda: client.total([1, 2]),
        ]
        for call in ways:
            faults.fail(ValueError("told so"))
            with pytest.raises(ValueError, match="told so"):
                await call()
            assert await call() == 3
        faults.fail(ValueError("told so"), endpoint="add")
        with pytest.raises(ValueError, match="told so"):
            async for _ in client.map("add", [1], [2]):
                pytest.fail("a result came")
        faults.fail(ValueError("told so"), endpoint="add")  # A batch of many is of no particular endpoint.
        async with client.batch() as batch:
            sum_ = batch.add(1, 2)
        assert await sum_ == 3


async def test_with_reconnect_a_call_that_was_surely_not_begun_is_made_again() -> None:
    faults = Faults()
    async with connect(service := NotingService(), faults=faults, reconnect=True) as client:
        faults.fail(shmrpc.ServiceUnavailable("going"))
        assert await client.note("again") == ["again"]
        faults.fail(shmrpc.ConnectionLost("cut", maybe_executed=True))
        with pytest.raises(shmrpc.ConnectionLost):
            await client.note("not again")
    assert service.done == ["again"]


async def test_a_broken_connection_fails_calls_and_streams_under_way() -> None:
    faults = Faults()
    async with connect(service := NotingService(), faults=faults) as client:
        call = asyncio.create_task(client.wait())
        stream = client.ticks(1_000_000)
        assert await anext(stream) == 0
        faults.disconnect()
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            await call
        assert caught.value.maybe_executed
        with pytest.raises(shmrpc.ConnectionLost):
            async for _ in stream:
                pass
        assert await until(lambda: service.done == ["cancelled"])
        with pytest.raises(shmrpc.ConnectionLost):
            await client.note("after")
        faults.disconnect()


async def test_a_broken_connection_is_followed_by_another_with_reconnect() -> None:
    faults = Faults()
    async with connect(NotingService(), faults=faults, reconnect=True) as client:
        for _ in range(3):
            call = asyncio.create_task(client.wait())
            await asyncio.sleep(0)
            await client.note("behind it")  # A call that was certainly not begun would be made again.
            faults.disconnect()
            with pytest.raises(shmrpc.ConnectionLost):
                await call
            assert (await client.note("back"))[-1] == "back"
        faults.drop(endpoint="note")  # They hold for the new connection as well.
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.with_options(timeout=0.05).note("dropped")


async def test_a_fault_that_would_never_come_is_refused() -> None:
    faults = Faults()
    faults.drop(endpoint="nite")
    with pytest.raises(shmrpc.EndpointNotFound, match="did you mean 'note'"):
        async with connect(NotingService(), faults=faults):
            pass
    faults.clear()
    async with connect(NotingService(), faults=faults):
        with pytest.raises(shmrpc.EndpointNotFound, match="did you mean 'wait'"):
            faults.delay(1, endpoint="wayt")
    with pytest.raises(ValueError, match="times: expected 1 or more, got 0"):
        faults.drop(0)
    for add in (faults.drop, lambda times: faults.fail(ValueError(), times)):
        with pytest.raises(TypeError, match="times: expected a whole number, got 1.5"):
            add(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delay: expected seconds"):
        faults.delay(-1)
    with pytest.raises(TypeError, match="expected an exception"):
        faults.fail("text")  # type: ignore[arg-type]


async def test_arguments_that_are_too_large_use_no_fault_up() -> None:
    faults = Faults()
    async with connect(NotingService(), faults=faults, max_frame=2000) as client:
        faults.fail(ValueError("told so"))
        with pytest.raises(shmrpc.FrameTooLarge):
            await client.note("x" * 3000)
        with pytest.raises(ValueError, match="told so"):
            await client.note("x")
