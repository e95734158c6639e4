"""A client that takes as much as the server gives it. Prints a line when it begins.

``python -m tests.reliability.hostile.greedy_client KIND``
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

import shmrpc


async def computes(client: shmrpc.Client) -> None:
    """Make no call: the effect of eight busy processes alone."""
    while True:
        pass


async def calls(client: shmrpc.Client) -> None:
    """Make 64 small calls at a time."""

    async def one() -> None:
        while True:
            await client.add(1, 2)

    await asyncio.gather(*(one() for _ in range(64)))


async def suspended(client: shmrpc.Client) -> None:
    """Start as many handlers as the server allows, and as many waiting calls."""

    async def one() -> None:
        while True:
            with contextlib.suppress(shmrpc.Overloaded):
                await client.sleep(0.05, "slept")

    await asyncio.gather(*(one() for _ in range(2000)))


async def bodies(client: shmrpc.Client) -> None:
    """Send lists of 20,000 numbers, each encoded and decoded on both sides."""
    while True:
        await client.echo([1] * 20_000)


async def arrays(client: shmrpc.Client) -> None:
    """Send megabytes."""
    array = np.zeros(1 << 20, np.uint8)
    while True:
        await client.echo(array)


async def notifications(client: shmrpc.Client) -> None:
    """Send one-way calls without end."""
    while True:
        await client.notify("add", 1, 2)


async def batches(client: shmrpc.Client) -> None:
    """Send a thousand calls in a frame."""

    async def numbers() -> AsyncIterator[tuple[int, int]]:
        while True:
            yield 1, 2

    while True:
        async with client.batch() as batch:
            for _ in range(1000):
                batch.add(1, 2)


KINDS: dict[str, Callable[[shmrpc.Client], Awaitable[None]]] = {
    each.__name__: each for each in (computes, calls, suspended, bodies, arrays, notifications, batches)
}


async def main(kind: str) -> None:
    async with shmrpc.connect("tested") as client:
        assert await client.add(1, 2) == 3
        print("begun", flush=True)  # noqa: T201 - the test waits for it
        await KINDS[kind](client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
