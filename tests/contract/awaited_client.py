"""A client of threads, driven from a loop: its methods run in a thread and are awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import shmrpc

_END = object()


class ThreadedCall:
    """A call that runs in a thread once it is awaited, iterated over, or entered."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._entered: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.to_thread(self._make).__await__()

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        items = await self
        try:
            while (held := [await asyncio.to_thread(next, items, _END)])[0] is not _END:
                yield held.pop()  # Refers to no item that the test has.
        finally:
            await asyncio.to_thread(items.close)

    async def __aenter__(self) -> Any:
        block = await self
        self._entered = block
        return AwaitedMethods(await asyncio.to_thread(block.__enter__))

    async def __aexit__(self, *exception: Any) -> bool | None:
        return await asyncio.to_thread(self._entered.__exit__, *exception)


class AwaitedMethods:
    """An object of ``shmrpc.sync`` whose methods are awaited, like those of its counterpart for loops."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._wrapped, name)
        if name == "with_options":
            return lambda **options: AwaitedMethods(member(**options))
        if name == "batch":
            return lambda: AwaitedBatch(member())
        if not callable(member) or inspect.isclass(member):
            return member
        return lambda *args, **kwargs: ThreadedCall(lambda: member(*args, **kwargs))

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        items = iter(self._wrapped)
        while (item := await asyncio.to_thread(next, items, _END)) is not _END:
            yield item


class AwaitedBatch:
    """A batch of ``shmrpc.sync``: collecting its calls does not wait, sending them does."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    async def __aenter__(self) -> Any:
        return await asyncio.to_thread(self._batch.__enter__)

    async def __aexit__(self, *exception: Any) -> bool | None:
        return await asyncio.to_thread(self._batch.__exit__, *exception)


class AwaitedClient(AwaitedMethods):
    """A client of threads as one of loops: ``async with AwaitedClient(shmrpc.sync.connect(name)) as client``."""

    _wrapped: shmrpc.sync.Client

    async def __aenter__(self) -> AwaitedClient:
        await asyncio.to_thread(self._wrapped.__enter__)
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await asyncio.to_thread(self._wrapped.close)
