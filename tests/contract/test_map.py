"""A map() whose frames have deadlines or interceptors of their own, or that goes on after its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import shmrpc
from tests.contract.conftest import Connect, Harness


async def test_the_deadline_of_a_map_is_of_the_whole_map(client: Any, harness: Harness) -> None:
    timed = client.with_options(timeout=600)
    deadlines = [each async for each in timed.map("deadline", range(12), chunk=2)]
    assert len(deadlines) == 12
    assert None not in deadlines
    if harness.has_one_clock:
        assert len(set(deadlines)) == 1
    else:  # Each frame carries the time that was left when it was sent, and frames take different times, all short.
        assert max(deadlines) - min(deadlines) < 100e9


async def test_a_map_that_takes_too_long_is_a_timeout(client: Any) -> None:
    with pytest.raises(shmrpc.DeadlineExceeded, match="forever"):
        [_ async for _ in client.with_options(timeout=0.05).map("forever", range(3), chunk=1)]
    assert await client.add(1, 2) == 3


async def test_one_interceptor_stands_around_the_whole_map(connect: Connect) -> None:
    around = []

    @contextlib.contextmanager
    def intercept(call: shmrpc.Call) -> Iterator[None]:
        around.append(call.endpoint)
        call.metadata["seen"] = "yes"
        yield
        around.append("left")

    async with connect(interceptors=[intercept]) as client:
        assert [sum async for sum in client.map("add", range(9), range(9), chunk=2)] == list(range(0, 18, 2))
        assert around == ["add", "left"]


async def test_a_map_that_is_left_ends_its_calls(client: Any) -> None:
    results = client.map("add", range(1000), range(1000), chunk=2)
    async for result in results:
        assert result == 0
        break
    assert await client.add(1, 2) == 3
