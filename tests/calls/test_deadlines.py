"""Deadlines of calls that wait for a server or for their turn; what holds for every client is in tests/contract."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest

import shmrpc
from shmrpc.basics.deadlines import Deadlines
from tests.helpers.server_process import eventually_in_loop, eventually_seen, timeouts

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


async def test_a_call_that_expires_while_it_waits_for_the_server_is_not_started(
    client: shmrpc.Client, tmp_path: Path
) -> None:
    holds = tmp_path / "holds"
    holds.touch()
    async with shmrpc.connect("tested.flows") as other:
        held = asyncio.create_task(other.hold_while(str(holds)))
        try:
            assert await eventually_in_loop(Path(f"{holds}.held").exists)
            with pytest.raises(shmrpc.DeadlineExceeded):
                await client.with_options(timeout=0.05).sleep(0, "late")
        finally:
            holds.unlink()
        await held
    assert "late:began" not in await client.seen()


@pytest.mark.own_server
async def test_the_server_ends_it_even_if_the_client_cannot(client: shmrpc.Client) -> None:
    async with shmrpc.connect("tested.flows") as other:
        session = other._reconnector.session
        assert session is not None
        session._expire = lambda call_id: None  # type: ignore[method-assign]
        session.cancel = lambda call_id: False  # type: ignore[method-assign]
        session._deadlines._expire = lambda call_id: None
        for timeout in timeouts():
            with pytest.raises(shmrpc.DeadlineExceeded, match="had not ended"):
                await other.with_options(timeout=timeout).sleep(60)
            if "sleep:began" in await client.seen():
                break
        assert await eventually_seen(client, "sleep:cancelled")


async def test_a_deadline_on_many_calls_at_a_time(client: shmrpc.Client) -> None:
    soon, later = client.with_options(timeout=0.1), client.with_options(timeout=120)
    calls = [(soon if i % 2 else later).sleep(1, f"{i}") for i in range(100)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[::2] == [f"{i}" for i in range(0, 100, 2)]
    assert all(isinstance(result, shmrpc.DeadlineExceeded) for result in results[1::2])


async def test_a_timeout_of_a_call_under_asyncios(client: shmrpc.Client) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.with_options(timeout=0.05).sleep(60)


async def test_one_timer_for_all_deadlines_fires_for_each_once() -> None:
    expired: list[str] = []
    deadlines: Deadlines[str] = Deadlines(expired.append)
    now = time.monotonic_ns()
    deadlines.add("far", now + 60_000_000_000)
    deadlines.add("later", now + 40_000_000)
    deadlines.add("soon", now + 20_000_000)
    deadlines.add("gone", now + 20_000_000)
    deadlines.discard("gone")
    deadlines.discard("gone")
    assert await eventually_in_loop(lambda: len(expired) >= 2)
    assert sorted(expired) == ["later", "soon"], "in any order if the loop was late for both"
    deadlines.close()
    await asyncio.sleep(0)
    assert len(expired) == 2


async def test_a_handler_in_a_thread_passes_its_deadline_on() -> None:
    service = shmrpc.Service("tested.threaded")

    @service.endpoint(run_in="thread")
    def outer() -> list[float | None]:
        with shmrpc.sync.connect("tested.threaded", call_timeout=math.inf) as other:
            with shmrpc.sync.connect("tested.threaded") as bound:
                free = bound.with_options(timeout=math.inf)
                calls = [bound, free, free.with_options(metadata={"a": "b"}), other, other.with_options(timeout=5)]
                return [each.remaining() for each in calls]

    @service.endpoint
    async def remaining() -> float | None:
        return shmrpc.current_call().remaining()

    async with shmrpc.serve(service), shmrpc.connect("tested.threaded") as client:
        assert (await client.outer())[:4] == [None] * 4
        bound, *free, timed = await client.with_options(timeout=600).outer()
        assert 500 < bound <= 600 and free == [None] * 3 and 0 < timed <= 5


async def test_options_of_one_timeout_are_made_once(client: shmrpc.Client) -> None:
    assert client.with_options(timeout=1) is client.with_options(timeout=1)
