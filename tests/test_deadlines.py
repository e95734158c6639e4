"""Deadlines: they travel, are inherited, begin nothing that is too late, and end what takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from pathlib import Path

import pytest

import shmrpc
from shmrpc.basics.deadlines import Deadlines
from tests.helpers.server_process import ServerProcess, eventually, eventually_in_loop, eventually_seen, timeouts

TARGET = "tests.helpers.stream_service:service"
LASTING = True


@pytest.mark.own_server
async def test_a_call_that_takes_too_long_is_a_timeout_and_its_handler_is_cancelled(client: shmrpc.Client) -> None:
    for timeout in timeouts():
        with pytest.raises(TimeoutError, match="sleep") as caught:
            await client.with_options(timeout=timeout).sleep(60)
        assert isinstance(caught.value, shmrpc.DeadlineExceeded)
        if "sleep:began" in await client.seen():
            break
    assert await eventually_seen(client, "sleep:cancelled")
    assert await client.with_options(timeout=60).sleep(0.01, "in time") == "in time"
    assert await client.sleep(0.01, "without") == "without"


async def test_one_timeout_for_all_calls(server: ServerProcess) -> None:
    async with shmrpc.connect("tested.flows", call_timeout=0.05) as client:
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.sleep(60)
        assert await client.with_options(timeout=60).sleep(0.1, "longer") == "longer"
        assert await client.with_options(timeout=math.inf).sleep(0.1, "as long as it takes") == "as long as it takes"
    async with shmrpc.connect("tested.flows", call_timeout=60) as client:
        assert await client.add(1, b=2) == 3
        assert await client.sleep(0.1, "in time") == "in time"


async def test_the_handler_knows_what_remains(client: shmrpc.Client) -> None:
    timed = client.with_options(timeout=600)
    for endpoint in ("remaining", "remaining_plainly"):
        assert await client.call(endpoint) is None
        assert 500 < await timed.call(endpoint) <= 600
    assert 200 < await timed.with_options(timeout=300).remaining() <= 300


@pytest.mark.parametrize("form", ["positional", "keyword", "metadata"])
async def test_an_expired_call_is_not_started(client: shmrpc.Client, form: str) -> None:
    late = client.with_options(timeout=0)
    if form == "metadata":
        late = late.with_options(metadata={"a": "b"})
    with pytest.raises(shmrpc.DeadlineExceeded):
        if form == "keyword":
            await late.sleep(seconds=0, tag="late")
        else:
            await late.sleep(0, "late")
    assert await client.add(1, 2) == 3
    assert "late:began" not in await client.seen()


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


async def test_nested_calls_inherit_the_deadline(client: shmrpc.Client) -> None:
    assert await client.remaining_nested("tested.flows") == [None, None]
    left = await client.with_options(timeout=600).remaining_nested("tested.flows")
    assert all(500 < each < 600 for each in left), left
    assert await client.remaining_nested("tested.flows") == [None, None], "and only of the call that is handled"


async def test_the_nearer_deadline_counts(client: shmrpc.Client) -> None:
    service = shmrpc.Service("tested.middle")

    @service.endpoint
    async def ask(timeout: float) -> float:
        return await client.with_options(timeout=timeout).remaining()  # type: ignore[no-any-return]

    async with shmrpc.serve(service), shmrpc.connect("tested.middle") as middle:
        timed = middle.with_options(timeout=600)
        assert 500 < await timed.ask(6000) <= 600
        assert 200 < await timed.ask(300) <= 300


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


async def test_options_are_checked(client: shmrpc.Client) -> None:
    with pytest.raises(ValueError, match="timeout of a call: expected 0 to"):
        client.with_options(timeout=-1)
    with pytest.raises(ValueError, match="timeout of a call"):
        shmrpc.connect("tested.flows", call_timeout=float("nan"))
    with pytest.raises(TypeError, match="metadata: expected str to str or bytes, got 'a': 1"):
        client.with_options(metadata={"a": 1})  # type: ignore[dict-item]
    assert client.with_options(timeout=1) is client.with_options(timeout=1), "it is made once"


@pytest.mark.own_server
def test_sync_deadlines(sync_client: shmrpc.sync.Client) -> None:
    for timeout in timeouts():
        with pytest.raises(shmrpc.DeadlineExceeded, match="sleep"):
            sync_client.with_options(timeout=timeout).sleep(60)
        if "sleep:began" in sync_client.seen():
            break
    assert eventually(lambda: "sleep:cancelled" in sync_client.seen())
    assert sync_client.with_options(timeout=60).add(1, 2) == 3
    with pytest.raises(shmrpc.DeadlineExceeded):
        sync_client.with_options(timeout=0).sleep(0, "late")
    assert "late:began" not in sync_client.seen()
    assert 500 < sync_client.with_options(timeout=600).remaining() <= 600
    with shmrpc.sync.connect("tested.flows", call_timeout=0.05) as other, pytest.raises(shmrpc.DeadlineExceeded):
        other.sleep(60)


def test_a_sync_handler_passes_its_deadline_on(server: ServerProcess) -> None:
    async def main() -> None:
        service = shmrpc.Service("tested.middle")
        with shmrpc.sync.connect("tested.flows") as inner:

            @service.endpoint(run_in="thread")
            def ask() -> float | None:
                return inner.remaining()  # type: ignore[no-any-return]

            async with shmrpc.serve(service), shmrpc.connect("tested.middle") as middle:
                assert await middle.ask() is None
                assert 500 < await middle.with_options(timeout=600).ask() <= 600

    asyncio.run(main())


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


async def test_a_handlers_deadline_does_not_bind_what_outlives_it() -> None:
    service = shmrpc.Service("tested.left")
    over = asyncio.Event()
    left: list[asyncio.Task[object]] = []

    async def call_later() -> object:
        inherited = await client.remaining()
        await over.wait()
        return inherited, await client.remaining(), await client.add(1, b=2)

    @service.endpoint
    async def leave_at_once() -> None:
        left.append(asyncio.create_task(call_later()))

    @service.endpoint
    async def leave_later() -> None:
        left.append(asyncio.create_task(call_later()))
        await asyncio.sleep(0.02)

    @service.endpoint
    def leave_plainly() -> None:
        left.append(asyncio.create_task(call_later()))

    @service.endpoint
    async def leave_and_fail() -> None:
        left.append(asyncio.create_task(call_later()))
        raise ValueError("left")

    @service.endpoint
    async def remaining() -> float | None:
        return shmrpc.current_call().remaining()

    @service.endpoint
    def add(a: int, b: int) -> int:
        return a + b

    async with shmrpc.serve(service), shmrpc.connect("tested.left") as client:
        for timeout in timeouts():
            left.clear()
            over.clear()
            timed = client.with_options(timeout=timeout)
            with contextlib.suppress(shmrpc.DeadlineExceeded):
                await timed.leave_at_once()
                await timed.leave_later()
                await timed.with_options(metadata={"a": "b"}).leave_plainly()
                with pytest.raises(ValueError, match="left"):
                    await timed.leave_and_fail()
                for others in (["leave_at_once", "leave_plainly"], ["leave_plainly", "remaining"]):
                    async with timed.batch() as batch:
                        for other in others:
                            batch.call(other)
            await asyncio.sleep(timeout)
            over.set()
            outcomes = await asyncio.gather(*left, return_exceptions=True)
            if len(outcomes) == 7 and not isinstance(outcomes[1], shmrpc.DeadlineExceeded):
                break
        for outcome in outcomes:
            assert isinstance(outcome, tuple), outcome
            assert outcome[1:] == (None, 3)
        assert outcomes[1][0] is not None, "as long as the handler runs, it does"  # type: ignore[index]


async def test_no_deadline_is_none_in_a_handler_too() -> None:
    service = shmrpc.Service("tested.unbound")

    @service.endpoint
    async def outer() -> list[object]:
        free = client.with_options(timeout=math.inf)
        async with shmrpc.connect("tested.unbound", call_timeout=math.inf) as other:
            calls = [client.remaining(), free.remaining(), free.with_options(metadata={"a": "b"}).remaining()]
            return [await call for call in [*calls, other.remaining(), other.with_options(timeout=5).remaining()]]

    @service.endpoint(run_in="thread")
    def outer_in_thread() -> list[object]:
        with shmrpc.sync.connect("tested.unbound", call_timeout=math.inf) as other:
            with shmrpc.sync.connect("tested.unbound") as bound:
                free = bound.with_options(timeout=math.inf)
                calls = [bound, free, free.with_options(metadata={"a": "b"}), other, other.with_options(timeout=5)]
                return [each.remaining() for each in calls]

    @service.endpoint
    async def remaining() -> float | None:
        return shmrpc.current_call().remaining()

    async with shmrpc.serve(service), shmrpc.connect("tested.unbound") as client:
        for endpoint in ("outer", "outer_in_thread"):
            bound, *free, timed = await client.with_options(timeout=600).call(endpoint)
            assert 5 < bound <= 600 and free == [None] * 3 and 0 < timed <= 5
