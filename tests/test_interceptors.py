"""What stands around each call: its order, what it can refuse and add, and how it is left, on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

import shmrpc
from shmrpc.service.interceptors import Interceptor
from shmrpc.wire import frames
from tests.helpers.server_process import eventually_in_loop, forever_expires

_user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


class Log:
    """What happened, in order; and interceptors that write it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def plain(self, name: str) -> Callable[[shmrpc.Call], contextlib.AbstractContextManager[None]]:
        """An interceptor that notes when it is entered, and with what it is left."""

        @contextlib.contextmanager
        def intercept(call: shmrpc.Call) -> Iterator[None]:
            self.steps.append(f"{name} in")
            try:
                yield
            except BaseException as error:
                self.steps.append(f"{name} {type(error).__name__}")
                raise
            self.steps.append(f"{name} out")

        return intercept

    def suspending(self, name: str) -> Interceptor:
        """The same, one that awaits on its way in and out."""

        @contextlib.asynccontextmanager
        async def intercept(call: shmrpc.Call) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            with self.plain(name)(call):
                yield
            await asyncio.sleep(0)

        return intercept


def make_service(steps: list[str] | None = None) -> shmrpc.Service:
    """Endpoints of each kind; they note that they ran."""
    service = shmrpc.Service("tested")
    ran = steps if steps is not None else []

    @service.endpoint
    def plain() -> str:
        ran.append("handler")
        return _user.get()

    @service.endpoint
    async def coroutine() -> str:
        ran.append("handler")
        await asyncio.sleep(0)
        return _user.get()

    @service.endpoint(run_in="thread")
    def threaded() -> str:
        ran.append("handler")
        return _user.get()

    @service.endpoint
    def generated() -> Iterator[str]:
        ran.append("handler")
        yield _user.get()
        yield _user.get()

    @service.endpoint
    async def async_generated() -> AsyncIterator[str]:
        ran.append("handler")
        yield _user.get()
        await asyncio.sleep(0)
        yield _user.get()

    @service.endpoint(run_in="thread")
    def thread_generated() -> Iterator[str]:
        ran.append("handler")
        yield _user.get()
        yield _user.get()

    @service.endpoint
    async def fails() -> None:
        raise KeyError("missing")

    @service.endpoint
    async def fails_midway() -> AsyncIterator[int]:
        yield 1
        raise KeyError("missing")

    @service.endpoint
    async def forever() -> None:
        ran.append("handler")
        await asyncio.Event().wait()

    @service.endpoint
    async def endless() -> AsyncIterator[int]:
        ran.append("handler")
        while True:
            yield 1
            await asyncio.sleep(0)

    @service.endpoint
    async def total(numbers: AsyncIterator[int]) -> int:
        ran.append("handler")
        return sum([number async for number in numbers])

    @service.endpoint
    def exchange_metadata() -> str:
        call = shmrpc.current_call()
        call.reply_metadata["answer"] = b"\x00"
        return str(call.metadata.get("question"))

    return service


ONE_RESULT = ["plain", "coroutine", "threaded"]
STREAMS = ["generated", "async_generated", "thread_generated"]


async def call(client: shmrpc.Client, endpoint: str) -> Any:
    """The result, or the list of the items."""
    if endpoint in STREAMS:
        return [item async for item in client.call(endpoint)]
    return await client.call(endpoint)


def call_blocking(client: shmrpc.sync.Client, endpoint: str) -> Any:
    """The same without a loop."""
    return list(client.call(endpoint)) if endpoint in STREAMS else client.call(endpoint)


@contextlib.asynccontextmanager
async def connected(
    service: shmrpc.Service, server: Sequence[Interceptor], client: Sequence[Interceptor]
) -> AsyncIterator[shmrpc.Client]:
    """A client of a server in the same loop."""
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
async def test_interceptors_without_a_loop_stand_in_the_same_order(endpoint: str) -> None:
    log = Log()

    def work() -> None:
        with shmrpc.sync.connect("tested", interceptors=[log.plain("c1"), log.plain("c2")]) as client:
            call_blocking(client, endpoint)

    async with shmrpc.serve(make_service(log.steps), interceptors=[log.suspending("s1"), log.plain("s2")]):
        await asyncio.to_thread(work)
    assert log.steps == ["c1 in", "c2 in", "s1 in", "s2 in", "handler", "s2 out", "s1 out", "c2 out", "c1 out"]


@contextlib.contextmanager
def refuse(call: shmrpc.Call) -> Iterator[None]:
    raise PermissionError(f"{call.endpoint} is not for process {call.pid}")
    yield


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_a_call_that_the_server_refuses_does_not_run(endpoint: str) -> None:
    log = Log()
    async with connected(make_service(log.steps), [log.suspending("outer"), refuse, log.plain("inner")], []) as near:
        with pytest.raises(shmrpc.RemoteError, match=f"{endpoint} is not for") as caught:
            await call(near, endpoint)
    assert isinstance(caught.value, PermissionError)
    assert log.steps == ["outer in", "outer PermissionError"]


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_a_call_that_the_client_refuses_is_not_sent(endpoint: str) -> None:
    log = Log()
    async with connected(make_service(log.steps), [log.plain("server")], [refuse]) as near:
        with pytest.raises(PermissionError) as caught:
            await call(near, endpoint)
    assert not isinstance(caught.value, shmrpc.RemoteError)
    assert log.steps == []


@contextlib.contextmanager
def as_ada(call: shmrpc.Call) -> Iterator[None]:
    token = _user.set("Ada")
    try:
        yield
    finally:
        _user.reset(token)


@contextlib.asynccontextmanager
async def as_ada_later(call: shmrpc.Call) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    with as_ada(call):
        yield


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
            _user.set("Ada")
        yield

    async with connected(make_service(), [careless], []) as near:
        for endpoint in ONE_RESULT:
            assert await call(near.with_options(metadata={"set": ""}), endpoint) == "Ada"
            assert await call(near, endpoint) == "nobody"


@contextlib.contextmanager
def ask(call: shmrpc.Call) -> Iterator[None]:
    call.metadata["question"] = "6*7"
    yield
    call.metadata["answered"] = call.reply_metadata["answer"]


async def test_metadata_of_a_client_interceptor_reaches_the_handler_and_its_reply_comes_back() -> None:
    calls: list[shmrpc.Call] = []

    @contextlib.contextmanager
    def keep(call: shmrpc.Call) -> Iterator[None]:
        calls.append(call)
        yield

    def work() -> Any:
        with shmrpc.sync.connect("tested", interceptors=[keep, ask]) as client:
            return client.exchange_metadata()

    async with connected(make_service(), [], [keep, ask]) as near:
        assert await near.exchange_metadata() == "6*7"
        assert await near.with_options(metadata={"question": "other"}).exchange_metadata() == "6*7"
        assert await asyncio.to_thread(work) == "6*7"
    assert [call.metadata["answered"] for call in calls] == [b"\x00"] * 3


async def test_reply_metadata_of_a_server_interceptor_comes_back_with_results_failures_and_streams() -> None:
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

    async with connected(make_service(), [stamp], [read]) as near:
        for endpoint in (*ONE_RESULT, *STREAMS):
            await call(near, endpoint)
        with pytest.raises(KeyError):
            await near.fails()
    assert seen == [*ONE_RESULT, *STREAMS, "fails"]


async def test_exceptions_go_through_every_interceptor_of_both_sides() -> None:
    log = Log()
    server, client = [log.suspending("s1"), log.plain("s2")], [log.plain("c1"), log.suspending("c2")]

    def work() -> None:
        with shmrpc.sync.connect("tested", interceptors=[log.plain("c1"), log.plain("c2")]) as blocking:
            with pytest.raises(KeyError):
                blocking.fails()
            with pytest.raises(KeyError):
                list(blocking.fails_midway())

    async with connected(make_service(), server, client) as near:
        with pytest.raises(KeyError):
            await near.fails()
        with pytest.raises(KeyError):
            [item async for item in near.fails_midway()]
        await asyncio.to_thread(work)
    one = ["c1 in", "c2 in", "s1 in", "s2 in", "s2 KeyError", "s1 KeyError", "c2 RemoteKeyError", "c1 RemoteKeyError"]
    assert log.steps == one * 4


async def test_an_interceptor_may_give_another_exception_in_the_place_of_one() -> None:
    @contextlib.contextmanager
    def translate(call: shmrpc.Call) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise LookupError("translated") from error

    async with connected(make_service(), [translate], []) as near:
        with pytest.raises(LookupError, match="translated"):
            await near.fails()
    async with connected(make_service(), [], [translate]) as near:
        with pytest.raises(LookupError, match="translated"):
            await near.fails()


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


async def test_a_stream_that_is_left_early_without_a_loop_leaves_the_interceptors_of_both_sides() -> None:
    log = Log()

    def work() -> None:
        with shmrpc.sync.connect("tested", interceptors=[log.plain("client")]) as client:
            items = client.endless()
            next(items)
            items.close()
            log.steps.append("closed")

    async with shmrpc.serve(make_service(), interceptors=[log.plain("server")]):
        await asyncio.to_thread(work)
        assert await eventually_in_loop(lambda: len(log.steps) == 5)
    assert [step for step in log.steps if "server" not in step] == ["client in", "client GeneratorExit", "closed"]
    assert [step for step in log.steps if "server" in step] == ["server in", "server CancelledError"]


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


async def test_a_deadline_goes_through_the_interceptors_of_both_sides() -> None:
    log = Log()
    async with connected(make_service(), [log.plain("server")], [log.plain("client")]) as near:
        await forever_expires(near, lambda: "server in" in log.steps, log.steps.clear)
        assert await eventually_in_loop(lambda: len(log.steps) == 4)
    assert set(log.steps[2:]) == {"client DeadlineExceeded", "server CancelledError"}


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


def no_manager(call: shmrpc.Call) -> Any:
    """What somebody writes who forgets the decorator."""


@pytest.mark.parametrize("endpoint", [*ONE_RESULT, *STREAMS])
async def test_an_interceptor_that_gives_no_context_manager_is_named(endpoint: str) -> None:
    async with connected(make_service(), [no_manager], []) as near:
        with pytest.raises(TypeError, match=r"no_manager.*expected a context manager, got None") as caught:
            await call(near, endpoint)
        assert isinstance(caught.value, shmrpc.RemoteError)
    async with connected(make_service(), [], [no_manager]) as near:
        with pytest.raises(TypeError, match=r"no_manager.*expected a context manager, got None"):
            await call(near, endpoint)


async def test_a_client_without_a_loop_says_that_it_takes_no_async_interceptor() -> None:
    def work() -> None:
        for wrong in (no_manager, as_ada_later):
            with shmrpc.sync.connect("tested", interceptors=[wrong]) as client:  # type: ignore[list-item]
                for endpoint in ("plain", "generated"):
                    with pytest.raises(TypeError, match=rf"{wrong.__name__}.*expected a plain context manager"):
                        call_blocking(client, endpoint)

    async with shmrpc.serve(make_service()):
        await asyncio.to_thread(work)


async def test_a_call_one_way_is_inside_the_interceptors_of_both_sides() -> None:
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

    def work() -> None:
        with shmrpc.sync.connect("tested", interceptors=[log.plain("sync client"), ask_only]) as client:
            client.notify("plain")

    async with connected(make_service(), [hear], [log.suspending("client"), ask_only]) as near:
        await near.notify("plain")
        await asyncio.to_thread(work)
        assert await eventually_in_loop(lambda: len(questions) == 2)
    assert questions == ["6*7", "6*7"]
    assert log.steps == ["client in", "client out", "sync client in", "sync client out"]


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
