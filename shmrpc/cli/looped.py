"""A client of a loop, for a command that waits for each answer: of a service that threads cannot be clients of."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

from shmrpc.client.aio.client import Client, connect
from shmrpc.introspection.describe import Description


class LoopedClient:
    """What a command uses of :class:`shmrpc.sync.Client`."""

    def __init__(self, runner: asyncio.Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    def with_options(self, *, timeout: float) -> LoopedClient:
        """The same client, whose calls may take this many seconds."""
        return LoopedClient(self._runner, self._client.with_options(timeout=timeout))

    def describe(self) -> Description:
        """What the live service offers."""
        return self._runner.run(self._client.describe())

    def call(self, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        """Calls an endpoint: the result, or a generator of the items."""

        async def begin() -> Any:
            called = self._client.call(endpoint, *args, **kwargs)
            return await called if inspect.isawaitable(called) else called

        begun = self._runner.run(begin())
        return self._items(begun) if isinstance(begun, AsyncGenerator) else begun

    def _items(self, items: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
        async def following() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._runner.run(following())
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(items.aclose())


@contextlib.contextmanager
def looped(service: str, *, timeout: float, **options: Any) -> Iterator[LoopedClient]:
    """A client that is connected as :func:`shmrpc.connect` does it."""
    client = connect(service, timeout=timeout, **options)
    with asyncio.Runner() as runner:

        async def enter() -> Client:
            return await client

        entered = runner.run(enter())
        try:
            yield LoopedClient(runner, entered)
        finally:
            runner.run(client.close())
