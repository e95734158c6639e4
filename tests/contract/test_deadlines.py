"""Deadlines: kept, visible to the handler, inherited by the calls of the handler, and valid for a whole stream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import shmrpc
from tests.contract.conftest import Connect, Harness
from tests.helpers import stream_service
from tests.helpers.server_process import eventually_seen, timeouts

SERVICE = stream_service.service


@pytest.fixture(autouse=True)
def forget_seen() -> None:
    """Forget what earlier tests have done: the service is in this process."""
    stream_service._seen.clear()


async def test_a_call_that_takes_too_long_is_a_timeout_and_its_handler_is_cancelled(client: Any) -> None:
    for timeout in timeouts():
        with pytest.raises(TimeoutError, match="sleep") as caught:
            await client.with_options(timeout=timeout).sleep(60)
        assert isinstance(caught.value, shmrpc.DeadlineExceeded)
        if "sleep:began" in await client.seen():
            break
    assert await eventually_seen(client, "sleep:cancelled")
    assert await client.with_options(timeout=60).sleep(0.01, "in time") == "in time"
    assert await client.sleep(0.01, "without") == "without"


async def test_one_timeout_for_all_calls(connect: Connect) -> None:
    async with connect(call_timeout=0.05) as client:
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.sleep(60)
        assert await client.with_options(timeout=60).sleep(0.1, "longer") == "longer"
        assert await client.with_options(timeout=math.inf).sleep(0.1, "as long as it takes") == "as long as it takes"
    async with connect(call_timeout=60) as client:
        assert await client.add(1, b=2) == 3
        assert await client.sleep(0.1, "in time") == "in time"


async def test_the_handler_knows_what_remains(client: Any) -> None:
    timed = client.with_options(timeout=600)
    for endpoint in ("remaining", "remaining_plainly"):
        assert await client.call(endpoint) is None
        assert 500 < await timed.call(endpoint) <= 600
        assert 500 < await timed.with_options(metadata={"a": "b"}).call(endpoint) <= 600
    assert 200 < await timed.with_options(timeout=300).remaining() <= 300


@pytest.mark.parametrize("form", ["positional", "keyword", "metadata"])
async def test_an_expired_call_is_not_started(client: Any, form: str) -> None:
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


async def test_an_expired_stream_is_not_started(client: Any) -> None:
    late = client.with_options(timeout=0)
    with pytest.raises(shmrpc.DeadlineExceeded):
        [_ async for _ in late.ticks(60)]
    with pytest.raises(shmrpc.DeadlineExceeded):
        await late.total(iter(range(3)))
    assert await client.add(1, 2) == 3
    assert not {"ticks:began", "total:began"} & set(await client.seen())


async def test_options_are_checked(client: Any, connect: Connect) -> None:
    with pytest.raises(ValueError, match="timeout of a call: expected 0 to"):
        client.with_options(timeout=-1)
    with pytest.raises(ValueError, match="timeout of a call"):
        connect(call_timeout=float("nan"))
    with pytest.raises(TypeError, match="metadata: expected str to str or bytes, got 'a': 1"):
        client.with_options(metadata={"a": 1})


async def test_a_streams_deadline_is_of_the_whole_stream(client: Any) -> None:
    for timeout in timeouts():
        with pytest.raises(shmrpc.DeadlineExceeded, match="ticks"):
            async for _ in client.with_options(timeout=timeout).ticks(timeout / 5):
                pass
        if "ticks:began" in await client.seen():
            break
    assert await eventually_seen(client, "ticks:left")


async def test_a_deadline_ends_a_stream_to_the_server_and_closes_its_source(client: Any) -> None:
    for timeout in timeouts():
        closed: list[bool] = []

        def source(closed: list[bool] = closed) -> Iterator[bytes]:
            try:
                yield from itertools.repeat(bytes(10_000))
            finally:
                closed.append(True)

        with pytest.raises(shmrpc.DeadlineExceeded, match="idle"):
            await client.with_options(timeout=timeout).idle(source())
        # The beginning may be that of an earlier attempt, whose deadline passed before its source began.
        if "idle:began" in await client.seen() and closed:
            break
    assert closed == [True]
    assert await eventually_seen(client, "idle:cancelled")


async def test_calls_of_a_handler_inherit_its_deadline_and_the_nearer_one_counts(harness: Harness) -> None:
    middle = shmrpc.Service("tested.middle")

    @middle.endpoint
    async def ask(timeout: float | None) -> list[float | None]:
        inner = client if timeout is None else client.with_options(timeout=timeout)
        here = await inner.remaining()
        return [here, *await asyncio.gather(inner.remaining(), inner.remaining_plainly())]

    async with harness.serve(SERVICE), harness.serve(middle):
        async with harness.connect(SERVICE.name) as client, harness.connect(middle.name) as outer:
            assert await outer.ask(None) == [None] * 3
            timed = outer.with_options(timeout=600)
            for inner, least, most in ((None, 500, 600), (6000, 500, 600), (300, 200, 300)):
                left = await timed.ask(inner)
                assert len(left) == 3 and all(least < each <= most for each in left), left
            assert await outer.ask(None) == [None] * 3, "and only of the call that is handled"
            assert all(200 < each <= 300 for each in await outer.ask(300))


async def test_streams_and_maps_that_a_handler_makes_inherit_its_deadline(harness: Harness) -> None:
    inner = shmrpc.Service("tested.inner")

    @inner.endpoint
    async def remains(_: int = 0) -> float | None:
        return shmrpc.current_call().remaining()

    @inner.endpoint
    async def each_remains(numbers: AsyncIterator[int]) -> AsyncIterator[float | None]:
        async for _ in numbers:
            yield shmrpc.current_call().remaining()

    middle = shmrpc.Service("tested.middle")

    @middle.endpoint
    async def ask() -> list[float | None]:
        streamed = [each async for each in client.each_remains(iter(range(3)))]
        mapped = [each async for each in client.map("remains", range(3), chunk=2)]
        async with client.batch() as batch:
            batched = batch.remains()
        async with client.open("each_remains") as call:
            await call.write(1)
            by_hand = await call.read()
        return [*streamed, *mapped, batched.result(), by_hand]

    async with harness.serve(inner), harness.serve(middle):
        async with harness.connect(inner.name) as client, harness.connect(middle.name) as outer:
            assert await outer.ask() == [None] * 8
            left = await outer.with_options(timeout=600).ask()
            assert len(left) == 8 and all(each is not None and 500 < each <= 600 for each in left), left


async def test_no_deadline_is_none_in_a_handler_too(harness: Harness) -> None:
    service = shmrpc.Service("tested.unbound")

    @service.endpoint
    async def outer() -> list[object]:
        free = client.with_options(timeout=math.inf)
        async with harness.connect("tested.unbound", call_timeout=math.inf) as other:
            calls = [client.remaining(), free.remaining(), free.with_options(metadata={"a": "b"}).remaining()]
            return [await call for call in [*calls, other.remaining(), other.with_options(timeout=5).remaining()]]

    @service.endpoint
    async def remaining() -> float | None:
        return shmrpc.current_call().remaining()

    async with harness.serve(service), harness.connect("tested.unbound") as client:
        bound, *free, timed = await client.with_options(timeout=600).outer()
        assert 5 < bound <= 600 and free == [None] * 3 and 0 < timed <= 5


async def test_a_handlers_deadline_does_not_bind_what_outlives_it(harness: Harness) -> None:
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

    async with harness.serve(service), harness.connect("tested.left") as client:
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
