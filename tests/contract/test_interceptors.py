"""Interceptors of clients of every kind: their order, what they refuse and add, and how they are left."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import shmrpc
from shmrpc.service.interceptors import Interceptor
from tests.contract.conftest import Harness
from tests.helpers.intercepted_service import ONE_RESULT, STREAMS, Log, call, make_service, no_manager, refuse
from tests.helpers.server_process import eventually_in_loop, forever_expires


@contextlib.asynccontextmanager
async def connected(
    harness: Harness,
    server: Sequence[Interceptor],
    client: Sequence[Interceptor],
    steps: list[str] | None = None,
) -> AsyncIterator[Any]:
    """Yield a client of the service, with these interceptors at both sides; a client of threads gets plain ones."""
    service = make_service(steps)
    async with (
        harness.serve(service, interceptors=server),
        harness.connect(service.name, interceptors=client) as client_,
    ):
        yield client_


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_the_first_interceptor_is_the_outermost(harness: Harness, endpoint: str) -> None:
    log = Log()
    server, client = [log.plain("s1"), log.suspending("s2")], [log.plain("c1"), log.plain("c2")]
    async with connected(harness, server, client, log.steps) as caller:
        await call(caller, endpoint)
    assert log.steps == ["c1 in", "c2 in", "s1 in", "s2 in", "handler", "s2 out", "s1 out", "c2 out", "c1 out"]


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_a_call_that_the_client_refuses_is_not_sent(harness: Harness, endpoint: str) -> None:
    log = Log()
    async with connected(harness, [log.plain("server")], [log.plain("outer"), refuse, log.plain("inner")]) as client:
        with pytest.raises(PermissionError) as caught:
            await call(client, endpoint)
    assert not isinstance(caught.value, shmrpc.RemoteError)
    assert log.steps == ["outer in", "outer PermissionError"]


async def test_metadata_that_an_interceptor_adds_reaches_the_handler_and_its_reply_comes_back(harness: Harness) -> None:
    calls: list[shmrpc.Call] = []

    @contextlib.contextmanager
    def ask(call: shmrpc.Call) -> Iterator[None]:
        calls.append(call)
        call.metadata["question"] = "6*7"
        yield
        call.metadata["answered"] = call.reply_metadata["answer"]

    async with connected(harness, [], [ask]) as client:
        assert await client.exchange_metadata() == "6*7"
        assert await client.with_options(metadata={"question": "other"}).exchange_metadata() == "6*7"
        assert await client.exchange_metadata() == "6*7"
    assert [call.metadata["answered"] for call in calls] == [b"\x00"] * 3


async def test_reply_metadata_of_a_server_interceptor_comes_back_with_results_failures_and_streams(
    harness: Harness,
) -> None:
    seen: list[Any] = []

    @contextlib.contextmanager
    def stamp(call: shmrpc.Call) -> Iterator[None]:
        try:
            yield
        finally:
            call.reply_metadata["stamp"] = call.endpoint

    @contextlib.contextmanager
    def read(call: shmrpc.Call) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append(call.reply_metadata.get("stamp"))

    async with connected(harness, [stamp], [read]) as client:
        for endpoint in (*ONE_RESULT, *STREAMS):
            await call(client, endpoint)
        with pytest.raises(KeyError):
            await client.fails()
        assert await client.total(iter([1, 2])) == 3
    assert seen == [*ONE_RESULT, *STREAMS, "fails", "total"]


async def test_exceptions_go_through_every_interceptor_of_both_sides(harness: Harness) -> None:
    log = Log()
    server, client = [log.suspending("s1"), log.plain("s2")], [log.plain("c1"), log.plain("c2")]
    async with connected(harness, server, client) as caller:
        with pytest.raises(KeyError):
            await caller.fails()
        with pytest.raises(KeyError):
            [item async for item in caller.fails_midway()]
    one = ["c1 in", "c2 in", "s1 in", "s2 in", "s2 KeyError", "s1 KeyError", "c2 RemoteKeyError", "c1 RemoteKeyError"]
    assert log.steps == one * 2


@pytest.mark.parametrize("side", ["server", "client"])
async def test_an_interceptor_may_give_another_exception_in_the_place_of_one(harness: Harness, side: str) -> None:
    @contextlib.contextmanager
    def translate(call: shmrpc.Call) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise LookupError("translated") from error

    server, client = ([translate], []) if side == "server" else ([], [translate])
    async with connected(harness, server, client) as caller:
        for attempt in (caller.fails, lambda: anext(_past_one(caller.fails_midway()))):
            with pytest.raises(LookupError, match="translated") as caught:
                await attempt()
            assert not isinstance(caught.value, KeyError)


async def _past_one(items: Any) -> AsyncIterator[Any]:
    """All but the first."""
    first = True
    async for item in items:
        if not first:
            yield item
        first = False


async def test_an_interceptor_may_give_a_failure_away(harness: Harness) -> None:
    log = Log()

    @contextlib.contextmanager
    def forgive(call: shmrpc.Call) -> Iterator[None]:
        with contextlib.suppress(KeyError):
            yield

    async with connected(harness, [], [log.plain("outer"), forgive]) as client:
        assert await client.fails() is None
        assert [item async for item in client.fails_midway()] == [1]
    assert log.steps == ["outer in", "outer out"] * 2


async def test_a_call_that_cannot_be_opened_raises_although_an_interceptor_gives_its_failure_away(
    harness: Harness,
) -> None:
    """A block that has begun needs an open call."""
    log = Log()

    @contextlib.contextmanager
    def forgive(call: shmrpc.Call) -> Iterator[None]:
        with contextlib.suppress(shmrpc.InvalidArguments):
            yield

    async with connected(harness, [], [log.plain("outer"), forgive]) as client:
        opened = client.open("total", numbers=[1])
        with pytest.raises(shmrpc.LocalProtocolError, match="total: it failed, and an interceptor swallowed"):
            async with opened:
                pytest.fail("the block was entered")
    assert log.steps == ["outer in", "outer out"]


async def test_a_stream_that_is_left_early_leaves_the_interceptors_of_both_sides(harness: Harness) -> None:
    log = Log()
    async with connected(harness, [log.plain("server")], [log.plain("client")]) as client:
        items = aiter(client.endless())
        await anext(items)
        await items.aclose()
        assert [step for step in log.steps if "client" in step] == ["client in", "client GeneratorExit"]
        assert await eventually_in_loop(lambda: len(log.steps) == 4)
    assert [step for step in log.steps if "server" in step] == ["server in", "server CancelledError"]


async def test_a_call_with_a_stream_to_the_server_is_inside_the_interceptors(harness: Harness) -> None:
    log = Log()
    async with connected(harness, [log.plain("server")], [log.plain("client")], log.steps) as client:
        assert await client.total(iter([1, 2])) == 3
    assert log.steps == ["client in", "server in", "handler", "server out", "client out"]


async def test_a_stream_that_is_written_by_hand_is_inside_the_interceptors(harness: Harness) -> None:
    log = Log()
    async with connected(harness, [log.plain("server")], [log.plain("client")], log.steps) as client:
        async with client.open("total") as call:
            log.steps.append("written")
            await call.write(1)
            await call.done_writing()
            assert await call.result() == 1
        log.steps.append("left")
    assert log.steps[0] == "client in" and "handler" in log.steps
    assert log.steps[-3:] == ["server out", "client out", "left"]


async def test_a_deadline_goes_through_the_interceptors_of_both_sides(harness: Harness) -> None:
    log = Log()
    async with connected(harness, [log.plain("server")], [log.plain("client")]) as client:
        await forever_expires(client, lambda: "server in" in log.steps, log.steps.clear)
        assert await eventually_in_loop(lambda: len(log.steps) == 4)
    assert set(log.steps[2:]) == {"client DeadlineExceeded", "server CancelledError"}


async def test_a_call_one_way_is_inside_the_interceptors_of_both_sides(harness: Harness) -> None:
    log = Log()
    questions: list[Any] = []

    @contextlib.contextmanager
    def hear(call: shmrpc.Call) -> Iterator[None]:
        questions.append(call.metadata.get("question"))
        yield

    @contextlib.contextmanager
    def ask_only(call: shmrpc.Call) -> Iterator[None]:
        call.metadata["question"] = "6*7"
        yield

    async with connected(harness, [hear], [log.plain("client"), ask_only]) as client:
        await client.notify("plain")
        assert await eventually_in_loop(lambda: len(questions) == 1)
    assert questions == ["6*7"]
    assert log.steps == ["client in", "client out"]


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_an_interceptor_that_gives_no_context_manager_is_named(harness: Harness, endpoint: str) -> None:
    async with connected(harness, [], [no_manager]) as client:
        with pytest.raises(TypeError, match=r"no_manager.*expected a (plain )?context manager"):
            await call(client, endpoint)
