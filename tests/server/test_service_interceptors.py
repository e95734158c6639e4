"""Interceptors that a service brings along, and the access log of ``shmrpc serve``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.testing
from tests.helpers.server_process import ServerProcess

#: Interceptors that have been entered and left, in order.
seen: list[str] = []


def noting(name: str) -> Any:
    @contextlib.contextmanager
    def noted(call: shmrpc.Call) -> Iterator[None]:
        seen.append(f"{name}:{call.endpoint}")
        try:
            yield
        finally:
            seen.append(f"{name} left")

    return noted


@contextlib.asynccontextmanager
async def counted(call: shmrpc.Call) -> AsyncIterator[None]:
    call.reply_metadata["seen"] = "yes"
    yield


service = shmrpc.Service("tested.intercepted", interceptors=[noting("service"), counted])
other = shmrpc.Service("tested.other")


@service.endpoint
@other.endpoint
def add(a: int, b: int) -> int:
    seen.append("add")
    return a + b


@service.endpoint
async def add_later(a: int, b: int) -> int:
    return add(a, b)


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


ORDER = ["server:add", "service:add", "add", "service left", "server left"]


async def test_they_run_for_each_call_of_that_service_within_the_servers() -> None:
    async with shmrpc.serve(service, other, interceptors=[noting("server")]):
        async with shmrpc.connect("tested.intercepted") as client:
            assert await client.add(1, 2) == 3
            assert seen == ORDER
            seen.clear()
            assert await client.add_later(1, b=2) == 3
            assert seen[:2] == ["server:add_later", "service:add_later"]
            seen.clear()
            assert [i async for i in client.count(2)] == [0, 1]
            assert seen == ["server:count", "service:count", "service left", "server left"]
            seen.clear()
            assert [r async for r in client.map("add", [1], [2])] == [3]
            async with client.batch() as batch:
                total = batch.add(1, 2)
            assert total.result() == 3
            assert seen == ORDER * 2
        seen.clear()
        async with shmrpc.connect("tested.other") as client:
            assert await client.add(1, 2) == 3
        assert seen == ["server:add", "add", "server left"]


async def test_they_run_in_memory_too() -> None:
    reply: dict[str, Any] = {}
    async with shmrpc.testing.connect(service) as client:
        assert await client.with_options(reply_metadata=reply).add(1, 2) == 3
    assert reply == {"seen": "yes"}
    assert seen == ORDER[1:-1]


async def test_a_service_that_is_included_keeps_its_own() -> None:
    outer = shmrpc.Service("tested.outer", interceptors=[noting("outer")])
    outer.include(service, prefix="inner")
    outer.endpoint(add)
    twice = shmrpc.Service("tested.twice")
    twice.include(outer)
    for offered in (outer, twice):
        async with shmrpc.testing.connect(offered) as client:
            seen.clear()
            assert await client.call("inner.add", 1, 2) == 3
            assert seen == ["outer:inner.add", "service:inner.add", "add", "service left", "outer left"]
            seen.clear()
            assert await client.call("add", 1, 2) == 3
            assert seen == ["outer:add", "add", "outer left"]


def test_interceptors_must_be_a_list_of_functions() -> None:
    with pytest.raises(TypeError, match="interceptors: expected a list"):
        shmrpc.Service("wrong", interceptors=counted)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a function of the call"):
        shmrpc.Service("wrong", interceptors=[5])  # type: ignore[list-item]


@pytest.mark.parametrize("options", [(), ("--workers", "1"), ("--reload", "--app-dir", "tests")])
def test_serve_has_an_access_log_and_services_their_interceptors(options: tuple[str, ...]) -> None:
    if "--reload" in options:
        pytest.importorskip("watchfiles")
    with ServerProcess("tests.server.test_service_interceptors:service", "--access-log", *options) as server:
        reply: dict[str, Any] = {}
        with shmrpc.sync.connect(server.name, timeout=30) as client:
            assert client.with_options(reply_metadata=reply).add(1, 2) == 3
            assert reply == {"seen": "yes"}
            with pytest.raises(shmrpc.InvalidArguments):
                client.add(1, "x")
        said = server.stop()
    assert said.count("shmrpc.access: tested.intercepted.add() pid=") == 1, said
    assert " ms ok" in said
