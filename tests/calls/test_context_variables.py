"""Context variables of handlers: no call sees what another one set, such as the user of the call."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import shmrpc
import shmrpc.testing
from shmrpc.service.call import Call

_user: ContextVar[str] = ContextVar("user", default="nobody")
_basket: ContextVar[list[str] | None] = ContextVar("basket", default=None)
_opened: ContextVar[str] = ContextVar("opened", default="nothing")


@contextlib.asynccontextmanager
async def lifespan(service: shmrpc.Service) -> AsyncIterator[None]:
    token = _opened.set("by the lifespan")
    _basket.set([])
    yield
    _opened.reset(token)


service = shmrpc.Service("tested.variables", lifespan=lifespan)


def enter(user: str) -> str:
    """Set the user and return the one before."""
    before = _user.get()
    _user.set(user)
    return before


@service.endpoint
def plain(user: str) -> str:
    return enter(user)


@service.endpoint
async def at_once(user: str) -> str:
    return enter(user)


@service.endpoint
async def later(user: str) -> str:
    before = enter(user)
    await asyncio.sleep(0)
    assert _user.get() == user, "it stays set in its own call"
    return before


@service.endpoint(run_in="thread")
def in_thread(user: str) -> str:
    return enter(user)


@service.endpoint(run_in="process")
def in_process(user: str) -> tuple[str, int]:
    return enter(user), os.getpid()


@service.endpoint
def generated(user: str) -> Iterator[str]:
    yield enter(user)
    yield _user.get()


@service.endpoint
async def async_generated(user: str) -> AsyncIterator[str]:
    yield enter(user)
    await asyncio.sleep(0)
    yield _user.get()


@service.endpoint(run_in="thread")
def generated_in_thread(user: str) -> Iterator[str]:
    yield enter(user)
    yield _user.get()


@service.endpoint
async def summed(user: str, items: AsyncIterator[int]) -> str:
    before = enter(user)
    async for _ in items:
        assert _user.get() == user
    return before


@service.endpoint
def fails(user: str) -> None:
    enter(user)
    raise ValueError(user)


@service.endpoint
def set_and_reset(user: str) -> str:
    token = _user.set(user)
    _user.reset(token)
    return _user.get()


@service.endpoint
def refill(item: str) -> None:
    """Replace the basket by an equal one."""
    basket: list[str] = []
    _basket.set(basket)
    asyncio.get_running_loop().call_soon(basket.append, item)


@service.endpoint
async def refill_at_once(item: str) -> None:
    refill(item)


@service.endpoint
def basket() -> list[str] | None:
    return _basket.get()


@service.endpoint
async def basket_at_once() -> list[str] | None:
    return _basket.get()


@service.endpoint
def who() -> tuple[str, str, str]:
    return _user.get(), _opened.get(), shmrpc.current_call().endpoint


@service.endpoint
async def who_at_once() -> tuple[str, str, str]:
    return _user.get(), _opened.get(), shmrpc.current_call().endpoint


@contextlib.contextmanager
def intercepting(call: Call) -> Iterator[None]:
    """Set the user without a reset: the next call does not see the change."""
    assert _user.get() == "nobody", call.endpoint
    if call.metadata.get("user"):
        _user.set("somebody")
    yield


@contextlib.asynccontextmanager
async def over_shared_memory(**options: Any) -> AsyncIterator[list[shmrpc.Client]]:
    """Yield three clients of a server."""
    async with shmrpc.serve(service, **options), contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(shmrpc.connect(service.name)) for _ in range(3)]


@contextlib.asynccontextmanager
async def in_memory(**options: Any) -> AsyncIterator[list[shmrpc.Client]]:
    """Yield three clients of a server in memory, which has no connections."""
    network = shmrpc.testing.Network()
    async with network.serve(service, **options), contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(network.connect(service.name)) for _ in range(3)]


async def every_form(client: shmrpc.Client, user: str) -> None:
    """Set the user in each kind of call, and check that no call sees the user of another."""
    for call in (client.plain, client.at_once, client.later, client.in_thread):
        assert await call(user) == "nobody"
        assert await call(user=user) == "nobody"
    for options in ({"timeout": 60.0}, {"metadata": {"a": "b"}}):
        other = client.with_options(**options)
        for call in (other.plain, other.at_once, other.later):
            assert await call(user) == "nobody"
            assert await call(user=user) == "nobody"
    for stream in (client.generated, client.async_generated, client.generated_in_thread):
        assert [item async for item in stream(user)] == ["nobody", user], "one context for all of its items"
    assert await client.summed(user, iter(range(3))) == "nobody"
    with pytest.raises(ValueError, match=user):
        await client.fails(user)
    await client.notify("plain", user)
    await client.notify("later", user)
    for name in ("plain", "at_once", "later", "in_thread"):
        assert [before async for before in client.map(name, [user] * 40)] == ["nobody"] * 40
    async with client.batch() as batch:
        befores = [batch.call(name, user) for name in ("plain", "plain", "at_once", "later", "in_thread")]
    assert [await each for each in befores] == ["nobody"] * 5
    async with client.batch() as batch:
        befores = [batch.call(name, user) for name in ("plain", "set_and_reset", "plain", "plain")]
    assert [await each for each in befores] == ["nobody"] * 4


@pytest.mark.parametrize("interceptors", [(), (intercepting,)], ids=["plain", "intercepted"])
@pytest.mark.parametrize("meeting", [over_shared_memory, in_memory])
async def test_a_context_variable_is_of_its_call_alone(
    meeting: Callable[..., contextlib.AbstractAsyncContextManager[list[shmrpc.Client]]], interceptors: tuple[Any, ...]
) -> None:
    _user.set("the one who serves")
    token = _user.set("nobody")
    async with meeting(interceptors=interceptors) as (alice, bob, third):
        _user.set("the one who calls")
        for client, user in ((alice, "alice"), (bob, "bob")):
            await every_form(client, user)
            assert await third.who() == ("nobody", "by the lifespan", "who")
            assert await third.who_at_once() == ("nobody", "by the lifespan", "who_at_once")
            if interceptors:
                seen = await third.with_options(metadata={"user": "yes"}).who()
                assert seen == ("somebody", "by the lifespan", "who"), "an interceptor sets it for the handler"
        assert _user.get() == "the one who calls", "a call changes nothing for who makes it"
        for refill in (alice.refill, alice.refill_at_once):
            await refill("alice's")
            await asyncio.sleep(0)
            assert await third.basket() == await third.basket_at_once() == []
    _user.reset(token)


async def test_a_process_keeps_none_either() -> None:
    async with over_shared_memory() as (client, *_):
        pids = set()
        for _ in range(8):
            before, pid = await client.in_process("alice")
            assert before == "nobody"
            pids.add(pid)
        assert len(pids) < 8, "one was there again"


async def test_each_call_of_a_batch_knows_itself() -> None:
    async with over_shared_memory() as (client, *_):
        for names in (("who", "who"), ("who", "who_at_once")):
            async with client.batch() as batch:
                calls = [batch.call(name) for name in names]
            assert [(await call)[2] for call in calls] == list(names)
