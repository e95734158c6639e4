"""Interceptors of a server, plain and asynchronous ones; tests/contract has the tests for every client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

import shmrpc
from shmrpc.service.interceptors import Interceptor
from shmrpc.wire import frames
from tests.helpers.intercepted_service import (
    ONE_RESULT,
    STREAMS,
    Log,
    as_ada,
    as_ada_later,
    call,
    make_service,
    no_manager,
    refuse,
    user,
)
from tests.helpers.server_process import eventually_in_loop


@contextlib.asynccontextmanager
async def connected(
    service: shmrpc.Service, server: Sequence[Interceptor], client: Sequence[Interceptor]
) -> AsyncIterator[shmrpc.Client]:
    """Yield a client of a server in the same loop."""
    async with shmrpc.serve(service, interceptors=server), shmrpc.connect("tested", interceptors=client) as near:
        yield near


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_the_first_interceptor_is_the_outermost(endpoint: str) -> None:
    log = Log()
    server, client = [log.plain("s1"), log.suspending("s2")], [log.suspending("c1"), log.plain("c2")]
    async with connected(make_service(log.steps), server, client) as near:
        await call(near, endpoint)
    assert log.steps == ["c1 in", "c2 in", "s1 in", "s2 in", "handler", "s2 out", "s1 out", "c2 out", "c1 out"]


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_a_call_that_the_server_refuses_does_not_run(endpoint: str) -> None:
    log = Log()
    async with connected(make_service(log.steps), [log.suspending("outer"), refuse, log.plain("inner")], []) as near:
        with pytest.raises(shmrpc.RemoteError, match=f"{endpoint} is not for") as caught:
            await call(near, endpoint)
    assert isinstance(caught.value, PermissionError)
    assert log.steps == ["outer in", "outer PermissionError"]


@pytest.mark.parametrize("interceptor", [as_ada, as_ada_later])
@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_a_handler_sees_the_context_variables_that_an_interceptor_sets(
    endpoint: str, interceptor: Interceptor
) -> None:
    async with connected(make_service(), [interceptor], []) as near:
        for _ in range(3):
            assert await call(near, endpoint) == (["Ada", "Ada"] if endpoint in STREAMS else "Ada")


async def test_a_context_variable_that_an_interceptor_leaves_set_does_not_reach_the_next_call() -> None:
    @contextlib.contextmanager
    def careless(call: shmrpc.Call) -> Iterator[None]:
        if call.metadata:
            user.set("Ada")
        yield

    async with connected(make_service(), [careless], []) as near:
        for endpoint in ONE_RESULT:
            assert await call(near.with_options(metadata={"set": ""}), endpoint) == "Ada"
            assert await call(near, endpoint) == "nobody"


@pytest.mark.parametrize("closes", [True, False])
async def test_a_stream_that_is_left_early_leaves_the_interceptors_of_both_sides(closes: bool) -> None:
    log = Log()
    async with connected(make_service(), [log.suspending("server")], [log.plain("client")]) as near:
        if closes:
            async with contextlib.aclosing(near.endless()) as items:
                async for _ in items:
                    break
        else:
            async for _ in near.endless():
                break
        assert await eventually_in_loop(lambda: len(log.steps) == 4)
    assert log.steps == ["client in", "server in", "client GeneratorExit", "server CancelledError"]


async def test_a_call_with_a_stream_to_the_server_is_inside_the_interceptors() -> None:
    log = Log()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async with connected(make_service(log.steps), [log.plain("server")], [log.suspending("client")]) as near:
        assert await near.total(numbers()) == 3
    assert log.steps == ["client in", "server in", "handler", "server out", "client out"]


async def test_a_cancellation_goes_through_the_interceptors_of_both_sides() -> None:
    log = Log()
    server, client = [log.suspending("s1"), log.plain("s2")], [log.plain("client")]
    async with connected(make_service(log.steps), server, client) as near:
        task = asyncio.create_task(near.forever())
        assert await eventually_in_loop(lambda: "handler" in log.steps)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await eventually_in_loop(lambda: len(log.steps) == 7)
    assert log.steps[4:] == ["client CancelledError", "s2 CancelledError", "s1 CancelledError"]


async def test_a_server_that_stops_leaves_the_interceptors() -> None:
    log = Log()
    async with shmrpc.serve(make_service(log.steps), interceptors=[log.suspending("server")]) as server:
        async with shmrpc.connect("tested") as client:
            task = asyncio.create_task(client.forever())
            assert await eventually_in_loop(lambda: "handler" in log.steps)
            await server.close()
            assert log.steps[2:] == ["server CancelledError"]
            with pytest.raises(shmrpc.ConnectionLost):
                await task


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_an_interceptor_that_gives_no_context_manager_is_named(endpoint: str) -> None:
    async with connected(make_service(), [no_manager], []) as near:
        with pytest.raises(TypeError, match=r"no_manager.*expected a context manager, got None") as caught:
            await call(near, endpoint)
        assert isinstance(caught.value, shmrpc.RemoteError)


async def test_a_client_without_a_loop_says_that_it_takes_no_async_interceptor() -> None:
    def work() -> None:
        for wrong in (no_manager, as_ada_later):
            with shmrpc.sync.connect("tested", interceptors=[wrong]) as client:  # type: ignore[list-item]
                for endpoint in ("plain", "generated"):
                    with pytest.raises(TypeError, match=rf"{wrong.__name__}.*expected a plain context manager"):
                        list(client.call(endpoint)) if endpoint in STREAMS else client.call(endpoint)

    async with shmrpc.serve(make_service()):
        await asyncio.to_thread(work)


async def test_each_call_of_a_batch_is_inside_the_interceptors_of_the_server() -> None:
    log = Log()
    async with connected(make_service(log.steps), [log.plain("server")], []) as near:
        async with near.batch() as batch:
            results = [batch.plain(), batch.coroutine()]
        assert [await result for result in results] == ["nobody", "nobody"]
    assert sorted(log.steps) == ["handler"] * 2 + ["server in"] * 2 + ["server out"] * 2


def runner(service: shmrpc.Service, server: shmrpc.Server, endpoint: str) -> str:
    """Which way a call of the endpoint with positional arguments goes at the server."""
    run = server._dispatchers[0]._serving.plain(frames.opcode(frames.CALL, list(service.endpoints).index(endpoint)))
    return getattr(run, "__qualname__", "")


async def test_without_interceptors_a_call_takes_the_short_way() -> None:
    service = make_service()
    async with shmrpc.serve(service) as server, shmrpc.connect("tested") as client:
        assert runner(service, server, "plain") == "_run_function.<locals>.run"
        assert runner(service, server, "coroutine") == "_run_coroutine.<locals>.run"
        assert not isinstance(client.plain, functools.partial)
    async with shmrpc.serve(service, interceptors=[as_ada]) as server:
        async with shmrpc.connect("tested", interceptors=[as_ada]) as client:
            assert runner(service, server, "plain") == "_run.<locals>.run"
            assert isinstance(client.plain, functools.partial)
