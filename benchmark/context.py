"""Context for calls to another process: a plain await, and our server in another thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvloop

from benchmark import ours
from benchmark.processes import Rendezvous, run
from benchmark.subjects import Loop


class _Direct:
    """No client at all: the same calls as plain awaits."""

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def echo(self, value: Any) -> Any:
        return value


@contextlib.asynccontextmanager
async def connect_direct(place: Rendezvous) -> AsyncIterator[_Direct]:
    """Nothing is connected."""
    yield _Direct()


@contextlib.asynccontextmanager
async def connect_thread(place: Rendezvous) -> AsyncIterator[Any]:
    """Our client, with our server in another thread of its process."""
    # The same loop as the client's.
    loop: Loop = "uvloop" if isinstance(asyncio.get_running_loop(), uvloop.Loop) else "asyncio"
    with _server_thread(loop, place):
        async with ours.connect(place) as client:
            yield client


@contextlib.contextmanager
def _server_thread(kind: Loop, place: Rendezvous) -> Iterator[None]:
    ready, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        async with ours.serve(place):
            loops.append(asyncio.get_running_loop())
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=run, args=(kind, main()))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()
