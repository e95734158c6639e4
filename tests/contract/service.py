"""The service that the clients of the contract call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import shmrpc

service = shmrpc.Service("tested.contract")


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
def deadline(_: int) -> int | None:
    """Return the deadline of the call, in nanoseconds."""
    return shmrpc.current_call().deadline


@service.endpoint
async def forever(_: int = 0) -> None:
    await asyncio.Event().wait()


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@service.endpoint
async def count_and_fail(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i
    raise ValueError("no more")


@service.endpoint
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


@service.endpoint
async def doubled(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    async for number in numbers:
        yield 2 * number


@service.endpoint
async def first(numbers: AsyncIterator[int]) -> int:
    """Return the first number, and receive no more."""
    async for number in numbers:
        return number
    raise ValueError("none")
