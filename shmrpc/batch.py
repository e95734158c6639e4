"""Calls collected by a client, to be sent in one frame."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

import msgspec

from shmrpc.errors import ShmrpcError
from shmrpc.protocol import frames
from shmrpc.protocol.codec import UNREADABLE, Codec
from shmrpc.protocol.frames import Failure
from shmrpc.requests import outcomes_decoder, result_of, undecodable

_R = TypeVar("_R")

#: Name of the endpoint, positional and keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]


class _Sender(Protocol):
    _codec: Codec

    def _name_of(self, endpoint: Any) -> str: ...

    async def send_batch(self, name: str | None, calls: Sequence[Any], decode: Callable[[bytes], Any]) -> Any: ...


class Batch:
    """Calls to be sent in one frame; made by :meth:`Client.batch`. Used outside of its block it collects nothing."""

    def __init__(self, client: _Sender) -> None:
        self._client = client
        self._calls: list[_Entry] = []
        self._futures: list[tuple[asyncio.Future[Any], Any]] = []

    def __getattr__(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    @overload
    def call(self, endpoint: Callable[..., _R], /, *args: Any, **kwargs: Any) -> asyncio.Future[_R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.append((self._client._name_of(endpoint), args, kwargs))
        self._futures.append((future, result_of(endpoint)))
        return future

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        futures, self._futures = self._futures, []
        calls, self._calls = self._calls, []
        try:
            if error is None and calls:
                decode = outcomes_decoder(self._client._codec, Any)
                results, failures = await self._client.send_batch(None, calls, decode)
                for index, (future, kind_of) in enumerate(futures):
                    _settle(future, kind_of, results[index], failures.get(index))
        finally:
            for future, _ in futures:
                future.cancel()


def _settle(future: asyncio.Future[Any], kind: Any, result: Any, failure: Failure | None) -> None:
    if future.done():
        return
    if failure is not None:
        error: ShmrpcError = frames.failure_error(failure)
        future.set_exception(error)
        return
    try:
        future.set_result(result if kind is Any else msgspec.convert(result, kind))
    except UNREADABLE as unreadable:
        future.set_exception(undecodable("batch", unreadable))


def chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """The items of the iterables side by side, so many at a time."""
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = zip(*iterables, strict=False)
    while calls := list(itertools.islice(source, size)):
        yield calls
