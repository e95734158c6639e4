"""A service that several users call, importable by a server in another process; and a client that uses all of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shmrpc

NAME = "tested.shared"
service = shmrpc.Service(NAME)

Numbers = NDArray[np.int64]


@service.endpoint
def caller() -> int:
    """Return the user who calls."""
    return shmrpc.current_call().uid


@service.endpoint
def doubled(numbers: Numbers) -> Numbers:
    return numbers * 2


@service.endpoint
async def numbers_to(end: int) -> AsyncIterator[int]:
    for number in range(end):
        yield number


@service.endpoint
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


async def use_it(**options: Any) -> tuple[int, float]:
    """Use every endpoint; return our user as the server knows it, and the seconds that connecting took."""
    began = time.perf_counter()
    async with shmrpc.connect(service, **options) as client:
        took = time.perf_counter() - began
        placed = client.empty(200_000, "int64")
        placed[:] = 7
        for numbers in (placed, np.arange(200_000), np.arange(3)):
            assert (await client.doubled(numbers) == numbers * 2).all()
        assert [number async for number in client.numbers_to(3000)] == list(range(3000))
        assert await client.total(range(3000)) == sum(range(3000))
        return await client.caller(), took


def use_it_in_threads(**options: Any) -> int:
    """Use every endpoint from a client without a loop; return our user as the server knows it."""
    with shmrpc.sync.connect(service, **options) as client:
        placed = client.empty(200_000, "int64")
        placed[:] = 7
        for numbers in (placed, np.arange(200_000), np.arange(3)):
            assert (client.doubled(numbers) == numbers * 2).all()
        assert list(client.numbers_to(3000)) == list(range(3000))
        assert client.total(range(3000)) == sum(range(3000))
        user: int = client.caller()
        return user
