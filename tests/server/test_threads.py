"""Handlers in threads: the number of threads, the warning when they are too few, and generators that are left there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

import shmrpc
from shmrpc.server import thread_pool
from tests.helpers.server_process import PATIENCE, eventually_in_loop


class Blocking:
    """A service whose endpoints wait in threads until they are let go."""

    def __init__(self, threads: int) -> None:
        self.go = threading.Event()
        self.inside: list[str] = []
        self.closed = False
        self.service = service = shmrpc.Service("tested.threads", threads=threads)

        @service.endpoint(run_in="thread")
        def shared() -> str:
            return self.block("shared")

        @service.endpoint(run_in="thread", threads=1)
        def alone() -> str:
            return self.block("alone")

        @service.endpoint(run_in="thread")
        def items() -> Iterator[str]:
            try:
                yield "first"
                yield self.block("items")
            finally:
                self.closed = True

        @service.endpoint(run_in="thread")
        def nested(depth: int) -> int:
            """Call this endpoint again, like services that call each other."""
            if not depth:
                return 0
            with shmrpc.sync.connect("tested.threads", timeout=PATIENCE) as client:
                return 1 + int(client.nested(depth - 1))

        @service.endpoint
        def add(a: int, b: int) -> int:
            return a + b

    def block(self, name: str) -> str:
        self.inside.append(name)
        assert self.go.wait(PATIENCE)
        return name


async def test_a_service_and_an_endpoint_have_so_many_threads() -> None:
    blocking = Blocking(2)
    async with shmrpc.serve(blocking.service) as server, shmrpc.connect("tested.threads") as client:
        calls = [asyncio.create_task(client.call(name)) for name in ["shared"] * 3 + ["alone"] * 2]
        assert await eventually_in_loop(lambda: server.in_flight == 5 and len(blocking.inside) == 3)
        assert sorted(blocking.inside) == ["alone", "shared", "shared"]
        blocking.go.set()
        assert await asyncio.gather(*calls) == ["shared"] * 3 + ["alone"] * 2


async def test_calls_within_calls_20_deep() -> None:
    async with shmrpc.serve(Blocking(40).service), shmrpc.connect("tested.threads") as client:
        assert await client.nested(20) == 20


async def test_too_few_threads_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "WARN_AFTER", 0.02)
    with caplog.at_level(logging.WARNING, "shmrpc.server"):
        blocking = Blocking(2)
        async with shmrpc.serve(blocking.service), shmrpc.connect("tested.threads") as client:
            for episode in (1, 2):
                blocking.go.clear()
                calls = [asyncio.create_task(client.shared()) for _ in range(3)]
                assert await eventually_in_loop(lambda episode=episode: len(caplog.records) == episode)  # type: ignore[misc]
                calls.append(asyncio.create_task(client.shared()))
                await asyncio.sleep(0.05)
                assert len(caplog.records) == episode
                blocking.go.set()
                await asyncio.gather(*calls)
            said = caplog.records[0].getMessage()
            assert "all 2 threads of service 'tested.threads' are busy" in said
            assert "shared() (3)" in said and "shmrpc.Service('tested.threads', threads=N)" in said
            assert "calls that their handlers have made" not in said
            caplog.clear()
            blocking.go.clear()
            calls = [asyncio.create_task(client.alone()) for _ in range(2)]
            assert await eventually_in_loop(lambda: len(caplog.records) == 1)
            said = caplog.records[0].getMessage()
            assert "all 1 threads of endpoint tested.threads.alone() are busy" in said
            assert "@service.endpoint(run_in='thread', threads=N)" in said
            blocking.go.set()
            await asyncio.gather(*calls)


async def test_threads_that_wait_for_each_other_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "WARN_AFTER", 0.2)
    with caplog.at_level(logging.WARNING, "shmrpc.server"):
        async with shmrpc.serve(Blocking(2).service), shmrpc.connect("tested.threads") as client:
            waiting = asyncio.create_task(client.nested(3))
            assert await eventually_in_loop(lambda: len(caplog.records) == 1)
            assert "2 of the threads wait for calls that their handlers have made" in caplog.records[0].getMessage()
            assert await client.add(1, 2) == 3
            waiting.cancel()


async def test_a_generator_that_is_left_within_a_step_is_closed_after_it() -> None:
    blocking = Blocking(2)
    async with shmrpc.serve(blocking.service) as server, shmrpc.connect("tested.threads") as client:

        async def read() -> None:
            async for _ in client.items():
                pass

        reading = asyncio.create_task(read())
        assert await eventually_in_loop(lambda: blocking.inside == ["items"])
        reading.cancel()
        await asyncio.wait([reading])
        assert await client.add(1, 2) == 3
        assert not blocking.closed
        blocking.go.set()
        assert await eventually_in_loop(lambda: blocking.closed and server.in_flight == 0)


def test_a_wrong_number_of_threads_is_refused() -> None:
    for wrong, kind in (("4", TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)):
        with pytest.raises(kind, match="threads: expected"):
            shmrpc.Service("tested.threads", threads=wrong)  # type: ignore[arg-type]
        with pytest.raises(kind, match="threads: expected"):
            shmrpc.Service("tested.threads").endpoint(name="f", run_in="thread", threads=wrong)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="threads= is for run_in='thread'"):
        shmrpc.Service("tested.threads").endpoint(name="looped", threads=2)(lambda: None)


async def test_a_server_that_closes_has_the_generators_of_its_streams_closed_in_threads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = shmrpc.Service("tested.threads")
    closed_in: list[str] = []

    @service.endpoint(run_in="thread")
    def count() -> Iterator[int]:
        try:
            yield 0
            yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    async with shmrpc.serve(service) as server, shmrpc.connect("tested.threads") as client:
        assert await anext(client.count()) == 0
        await server.close()
        assert len(closed_in) == 1 and closed_in[0].startswith("shmrpc-handler")
    assert not caplog.records


async def test_a_closed_pool_of_threads_begins_no_iterator_and_closes_those_that_are_open() -> None:
    pool = thread_pool.ThreadPool(1, "the test", "more", [])
    closed: list[None] = []

    def count() -> Iterator[int]:
        try:
            yield 0
            yield 1
        finally:
            closed.append(None)

    items = pool.iterate(count())
    assert await anext(items) == 0
    pool.close()
    for refused in (anext(items), anext(pool.iterate(count())), pool.call(abs, (-1,), {})):
        with pytest.raises(RuntimeError, match="the server is closed"):
            await refused
    assert closed == [None]
    assert pool._executor._shutdown


async def test_a_call_in_a_thread_is_counted_once() -> None:
    blocking = Blocking(1)
    async with shmrpc.serve(blocking.service) as server, shmrpc.connect("tested.threads") as client:
        calls = [asyncio.create_task(client.shared()) for _ in range(3)]
        assert await eventually_in_loop(lambda: server.in_flight == 3 and len(blocking.inside) == 1)
        assert server.still_running() == ["3 calls: tested.threads.shared (3)"]
        blocking.go.set()
        await asyncio.gather(*calls)
