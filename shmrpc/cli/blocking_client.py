"""A blocking client for services that only an asyncio client can reach."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

from shmrpc.client.aio.client import Client
from shmrpc.client.aio.factory import connect
from shmrpc.introspection.describe import Description


class BlockingClient:
    """An asyncio client whose calls block, with the methods of :class:`shmrpc.sync.Client` that commands use."""

    def __init__(self, runner: asyncio.Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    def with_options(self, *, timeout: float) -> BlockingClient:
        """Return a copy of the client, on the same connection, whose calls may take this many seconds each."""
        return BlockingClient(self._runner, self._client.with_options(timeout=timeout))

    def describe(self) -> Description:
        """Return the description of the live service."""
        return self._runner.run(self._client.describe())

    def call(self, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        """Call an endpoint and wait; return the result, or a generator of the items of a stream, which must be closed.

        Raises as ``Client.call()`` does.
        """

        async def start() -> Any:
            called = self._client.call(endpoint, *args, **kwargs)
            return await called if inspect.isawaitable(called) else called

        result = self._runner.run(start())
        return self._iterate(result) if isinstance(result, AsyncGenerator) else result

    def _iterate(self, items: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
        """Yield the items of an async generator; close it at the end."""

        async def next_item() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._runner.run(next_item())
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(items.aclose())


@contextlib.contextmanager
def connect_blocking(service: str, *, timeout: float, **options: Any) -> Iterator[BlockingClient]:
    """Connect as :func:`shmrpc.connect` does; yield a blocking client, and close it at the end.

    Runs an event loop of its own: call this in a thread without a running one.
    """
    client = connect(service, timeout=timeout, **options)
    with asyncio.Runner() as runner:

        async def enter() -> Client:
            return await client

        entered = runner.run(enter())
        try:
            yield BlockingClient(runner, entered)
        finally:
            runner.run(client.close())
