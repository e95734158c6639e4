"""The way between client and server within one loop: nothing but the way is another than over shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import os
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
from shmrpc.testing import Faults, Network, connect
from shmrpc.testing.options import ConnectOptions, NetworkConnectOptions, NetworkServeOptions, SyncConnectOptions
from tests.helpers import services, stream_service
from tests.helpers.noting_service import NotingService, until
from tests.helpers.server_process import PATIENCE


def _held(runtime: Path, service: str) -> set[str]:
    """Return the resources of the system that this process has, or any process for the service."""
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "/dev/shm" in line}
    opened = set(os.listdir("/proc/self/fd"))
    named = {name for name in os.listdir("/dev/shm") if service in name}
    return mapped | opened | named | ({str(runtime)} if runtime.exists() else set())


async def test_nothing_is_mapped_opened_or_left_anywhere(runtime: Path) -> None:
    service = NotingService(f"tested.near.{os.getpid()}")
    gc.collect()  # Resources of earlier tests may still be freed: at the end there must be no more than before.
    before = _held(runtime, service.name)
    async with connect(service) as client:
        assert await client.note("a call") == ["a call"]
        assert [item async for item in client.ticks(3)] == [0, 1, 2]
        assert _held(runtime, service.name) <= before
    assert _held(runtime, service.name) <= before


async def test_arguments_are_encoded_and_not_handed_over() -> None:
    value = {"list": [1]}
    service = NotingService()
    kept: list[Any] = []

    @service.endpoint
    def keep(value: Any) -> Any:
        kept.append(value)
        return value

    async with connect(service) as client:
        back = await client.keep(value)
        kept[0]["list"].append(2)
        assert (value, back) == ({"list": [1]}, {"list": [1]})
        with pytest.raises(shmrpc.EncodeError):
            await client.keep(object())


async def test_a_typed_client_for_a_service() -> None:
    async with connect(services.service) as client:
        assert await client.move(services.Point(1, 2)) == services.Point(2, 3)


async def test_interceptors_metadata_and_lifespan_of_both_sides() -> None:
    seen: list[str] = []

    def side(name: str) -> Callable[[shmrpc.Call], contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def around(call: shmrpc.Call) -> Iterator[None]:
            call.metadata.setdefault(name, "was here")
            seen.append(f"{name} {call.endpoint}")
            yield

        return around

    network, reply = Network(), dict[str, str | bytes]()
    async with (
        network.serve(stream_service.service, interceptors=[side("server")]),
        network.connect("tested.flows", interceptors=[side("client")]) as client,
    ):
        metadata = await client.with_options(metadata={"a": b"1"}, reply_metadata=reply).metadata()
        assert metadata == {"a": "b'1'", "client": "'was here'", "server": "'was here'"}
        assert reply["pid"] == str(os.getpid())
        assert await client.who() == (os.getpid(), os.geteuid(), "who", "tested.flows")
    assert seen == ["client metadata", "server metadata", "client who", "server who"]


async def test_a_handler_does_not_see_its_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    service = NotingService()

    @service.endpoint
    def plain() -> str:
        return variable.get()

    @service.endpoint
    async def later() -> str:
        await asyncio.sleep(0)
        return variable.get()

    async with connect(service) as client:
        variable.set("the caller's")
        assert [await client.plain(), await client.later()] == ["unset", "unset"]


_LIMIT = 100_000


@contextlib.asynccontextmanager
async def _over(way: str, service: shmrpc.Service) -> AsyncIterator[shmrpc.Client]:
    """Yield a client of a service over each transport, with a small limit for frames."""
    if way != "shared memory":
        faults = Faults() if way == "memory with faults" else None
        async with connect(service, max_frame=_LIMIT, faults=faults) as client:
            yield client
    else:
        async with (
            shmrpc.serve(service, max_frame=_LIMIT),
            shmrpc.connect(service.name, max_frame=_LIMIT, timeout=PATIENCE) as client,
        ):
            yield client


@pytest.mark.parametrize("way", ["shared memory", "memory", "memory with faults"])
async def test_the_limit_for_frames_is_none_for_what_lies_beside_them(way: str) -> None:
    service = NotingService(f"tested.near.{os.getpid()}")

    @service.endpoint
    def echo(value: Any) -> Any:
        return value

    @service.endpoint
    async def all_of(values: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for value in values:
            yield value

    array = np.arange(250_000, dtype="float64")  # A sixteenth of it is over the limit, which is not asked.
    async with _over(way, service) as client:
        assert np.array_equal(await client.echo(array), array)
        assert await client.echo(bytes(2_000_000)) == bytes(2_000_000)
        assert [np.array_equal(item, array) async for item in client.all_of([array, array])] == [True, True]
        for large in ("x" * _LIMIT, [array, "x" * _LIMIT]):
            with pytest.raises(shmrpc.FrameTooLarge, match=rf"echo\(\): .*limit is {_LIMIT}"):
                await client.echo(large)
        assert await client.echo(1) == 1


async def test_a_server_hears_that_it_broke_the_rules(caplog: pytest.LogCaptureFixture) -> None:
    network, service = Network(), NotingService()
    async with network.serve(service) as server, network.connect(service.name) as client:
        session = client._reconnector.session
        assert session is not None
        session.connection.fault(ValueError("it sent nonsense"))
        with pytest.raises(shmrpc.RemoteProtocolError, match="nonsense"):
            await client.note("a call")
        assert await until(lambda: server.connections == 0)
    assert "found a fault of ours: it sent nonsense" in caplog.text


def test_a_client_whose_loop_was_closed_has_an_error() -> None:
    network, service = Network(), NotingService()

    async def connected() -> tuple[shmrpc.Server, shmrpc.Client]:
        return await network.serve(service).__aenter__(), await network.connect(service.name)

    _, client = asyncio.run(connected())
    with pytest.raises(shmrpc.LocalProtocolError, match="was closed; connect again"):
        asyncio.run(client.note("a call"))
    asyncio.run(client.close())


async def test_limits_hold() -> None:
    network, service = Network(), NotingService()
    async with (
        network.serve(service, max_in_flight=1, max_waiting=1) as server,
        network.connect("tested.near") as client,
    ):
        calls = [asyncio.create_task(client.wait()) for _ in range(2)]
        assert await until(lambda: (server.in_flight, server.waiting) == (1, 1))
        with pytest.raises(shmrpc.Overloaded):
            await client.wait()
        for call in calls:
            call.cancel()
        assert await until(lambda: server.in_flight == 0)
    wrong: tuple[dict[str, Any], ...] = ({"max_in_flight": 0}, {"max_frame": 1}, {"max_waiting": -1})
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            network.serve(service, **options)


async def test_the_smaller_max_frame_holds_for_requests_and_results() -> None:
    network = Network()
    async with network.serve(services.service), network.connect("tested", max_frame=10_000) as client:
        with pytest.raises(shmrpc.FrameTooLarge, match=r"echo\(\).*limit is 10000"):
            await client.echo(bytes(10_000))
        with pytest.raises(shmrpc.FrameTooLarge, match=r"result.*limit is 10000"):
            await client.zeros(10_000)
        assert len(await client.zeros(9_900)) == 9_900


async def test_one_way_calls_keep_their_order_and_let_the_server_run() -> None:
    async with connect(service := NotingService()) as client:
        for i in range(3000):
            await client.notify("note", str(i) * 10)
        assert len(service.done) > 1000  # The server has read some calls, although the client waited for nothing else.
        assert (await client.note("last"))[:-1] == [str(i) * 10 for i in range(3000)]


async def test_one_way_calls_before_a_client_closes_are_executed() -> None:
    network, service = Network(), NotingService()
    async with network.serve(service) as server:
        async with network.connect("tested.near") as client:
            await client.notify("note", "last words")
        assert await until(lambda: server.connections == 0)
    assert service.done == ["last words"]


async def test_a_client_that_closes_cancels_its_handlers_and_no_others() -> None:
    network, service = Network(), NotingService()
    async with network.serve(service) as server, network.connect("tested.near") as other:
        kept = asyncio.create_task(other.wait())
        async with network.connect("tested.near") as client:
            lost = asyncio.create_task(client.wait())
            assert await until(lambda: server.in_flight == 2)
        with pytest.raises(shmrpc.ConnectionLost):
            await lost
        assert await until(lambda: server.in_flight == 1)
        assert (service.done, kept.done(), server.connections) == (["cancelled"], False, 1)
        kept.cancel()


async def test_a_server_that_closes_says_which_calls_it_never_took() -> None:
    network, service = Network(), NotingService()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(network.serve(service))
        client = await stack.enter_async_context(network.connect("tested.near"))
        begun = asyncio.create_task(client.wait())
        assert await until(lambda: server.in_flight == 1)
        late = asyncio.create_task(client.note("never"))
        await asyncio.sleep(0)  # The call is on its way; the server ends before it reads the call.
        await server.close()
        for call, maybe in ((begun, True), (late, False)):
            with pytest.raises(shmrpc.ConnectionLost, match="the server stopped") as caught:
                await call
            assert caught.value.maybe_executed is maybe
        with pytest.raises(shmrpc.ConnectionLost):
            await client.note("after")
    assert "never" not in service.done


async def test_a_drain_loses_no_call() -> None:
    network, service = Network(), NotingService()
    release = asyncio.Event()

    @service.endpoint
    async def held() -> str:
        await release.wait()
        return "answered"

    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(network.serve(service))
        client = await stack.enter_async_context(network.connect("tested.near", reconnect=True))
        under_way = asyncio.create_task(client.held())
        assert await until(lambda: old.in_flight == 1)
        draining = asyncio.create_task(old.drain(60))
        assert await until(lambda: old.health == "draining")
        waiting = asyncio.create_task(client.note("for the next server"))
        await asyncio.sleep(0.01)
        release.set()
        assert await under_way == "answered"
        await draining
        await stack.enter_async_context(network.serve(service))
        assert await waiting == ["for the next server"]


async def test_a_client_waits_for_its_server_and_not_for_ever() -> None:
    network, service = Network(), NotingService()
    with pytest.raises(shmrpc.ServiceUnavailable, match=r"no server of 'tested\.near' here \(waited 0\.01 s\)"):
        async with network.connect("tested.near", timeout=0.01):
            pass

    async def call() -> list[str]:
        async with network.connect("tested.near") as client:
            return await client.note("came later")  # type: ignore[no-any-return]

    calling = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    async with network.serve(service):
        assert await calling == ["came later"]


async def test_a_name_has_one_server_at_a_time_and_networks_are_apart() -> None:
    network, service = Network(), NotingService()
    async with network.serve(service), Network().serve(service):
        with pytest.raises(shmrpc.ServiceInUse) as caught:
            async with network.serve(service):
                pass
        assert caught.value.pid == os.getpid()
    async with network.serve(service):
        pass


async def test_a_handler_that_calls_its_own_service() -> None:
    network, service = Network(), NotingService()

    @service.endpoint
    async def relay(text: str) -> list[str]:
        return await client.note(text)  # type: ignore[no-any-return]

    async with network.serve(service), network.connect("tested.near") as client:
        assert await client.relay("inner") == ["inner"]


async def test_a_client_that_breaks_the_rules_is_the_only_one_cut_off() -> None:
    network, service = Network(), NotingService()
    async with network.serve(service) as server, network.connect("tested.near") as good:
        async with network.connect("tested.near", call_timeout=60) as bad:
            session = bad._reconnector.current_session()
            assert session is not None
            session.send(0, 1, b"\xc0")  # A result, which no client sends.
            with pytest.raises(shmrpc.RemoteProtocolError, match="found a fault of ours"):
                await bad.wait()
        assert await good.note("goes on") == ["goes on"]
        assert server.connections == 1


async def test_calls_that_make_calls_let_the_loop_go_on() -> None:
    network, service, made = Network(), NotingService(), 0

    @service.endpoint
    async def again() -> None:
        nonlocal made
        made += 1
        if made < 100_000:  # Should it run on and on, the test ends all the same.
            await client.notify("again")

    async with network.serve(service), network.connect("tested.near") as client:
        await client.notify("again")
        for _ in range(10):
            await asyncio.sleep(0)
        assert 1 <= made <= 10


async def test_a_forked_child_is_refused() -> None:
    async with connect(service := NotingService()) as client:
        child = os.fork()
        if child == 0:
            try:
                client.note("in the child").send(None)
            except shmrpc.LocalProtocolError:
                os._exit(0)
            finally:
                os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await client.note("here") == ["here"]
    assert service.done == ["here"]


def test_another_loop_is_refused() -> None:
    network = Network()

    async def elsewhere() -> None:
        with pytest.raises(shmrpc.LocalProtocolError, match="another event loop"):
            await network.connect("tested.near")

    async def main() -> None:
        async with network.serve(NotingService()):
            await asyncio.to_thread(asyncio.run, elsewhere())

    asyncio.run(main())


async def test_connect_refuses_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"expected a shmrpc\.Service"):
        async with connect("tested"):  # type: ignore[arg-type]
            pass
    with pytest.raises(ValueError, match="call"):
        async with connect(NotingService(), call_timeout=-1):
            pass


@pytest.mark.parametrize(
    ("options", "function", "elsewhere"),
    [
        (NetworkConnectOptions, shmrpc.connect, {"max_memory", "spin", "allow_uids", "at"}),
        (ConnectOptions, shmrpc.connect, {"at"}),
        (SyncConnectOptions, shmrpc.sync.connect, {"at"}),
        (NetworkServeOptions, shmrpc.serve, {"max_memory", "spin", "allow_uids", "at", "adopting"}),
    ],
)
def test_the_options_are_typed_as_those_of_shmrpc(
    options: type, function: Callable[..., Any], elsewhere: set[str]
) -> None:
    """``elsewhere``: those that have no meaning there."""
    types = typing.get_type_hints(function)
    named = [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert typing.get_type_hints(options) == {name: types[name] for name in named if name not in elsewhere}
