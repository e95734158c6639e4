"""Calls collected by a client, to be sent in one frame."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from shmrpc.calling.requests import result_of, undecodable
from shmrpc.protocol import frames
from shmrpc.protocol.codec import UNREADABLE
from shmrpc.protocol.frames import Failure

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Name of the endpoint, positional and keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]

#: Validates a value that has been decoded, for a type.
Convert = Callable[[Any, Any], Any]


class _Future(Protocol):
    """What asyncio's futures and those of threads have in common."""

    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...


_F = TypeVar("_F", bound=_Future)


class Collected(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(self, make_future: Callable[[], _F], convert: Convert) -> None:
        self._make_future = make_future
        self._convert = convert
        self.entries: list[_Entry] = []
        self._futures: list[tuple[_F, Any]] = []

    def add(self, name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _F:
        """One more call, whose result has this type."""
        future = self._make_future()
        self.entries.append((name, args, kwargs))
        self._futures.append((future, kind))
        return future

    def settle(self, results: list[Any], failures: Mapping[int, Failure]) -> None:
        """Each call has its own outcome."""
        for index, (future, kind) in enumerate(self._futures):
            if future.done():
                continue
            if index in failures:
                future.set_exception(frames.failure_error(failures[index]))
                continue
            try:
                future.set_result(results[index] if kind is Any else self._convert(results[index], kind))
            except (*UNREADABLE, IndexError) as error:
                future.set_exception(undecodable(self.entries[index][0], error))

    def close(self) -> None:
        """Those that have no outcome will have none. We keep nothing: an error's traceback may have us."""
        for future, _ in self._futures:
            future.cancel()
        self._futures.clear()
        self.entries.clear()


class _Sender(Protocol):
    def _name_of(self, endpoint: Any) -> str: ...

    async def send_batch(self, name: str | None, calls: Sequence[Any], kind: Any) -> Any: ...


class Batch:
    """Calls to be sent in one frame; made by :meth:`Client.batch`."""

    def __init__(self, client: _Sender, convert: Convert) -> None:
        self._client = client
        make_future = asyncio.get_running_loop().create_future
        self._collected: Collected[asyncio.Future[Any]] = Collected(make_future, convert)

    def __getattr__(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_R]: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block."""
        return self._collected.add(self._client._name_of(endpoint), result_of(endpoint), args, kwargs)

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        try:
            if error is None and collected.entries:
                collected.settle(*await self._client.send_batch(None, collected.entries, Any))
        finally:
            collected.close()


class _SyncSender(Protocol):
    def _name_of(self, endpoint: Any) -> str: ...

    def send_batch(self, calls: Sequence[Any]) -> Any: ...


class SyncBatch:
    """Calls to be sent in one frame; made by :meth:`shmrpc.sync.Client.batch`."""

    def __init__(self, client: _SyncSender, convert: Convert) -> None:
        self._client = client
        self._collected: Collected[concurrent.futures.Future[Any]] = Collected(concurrent.futures.Future, convert)

    def __getattr__(self, name: str) -> Callable[..., concurrent.futures.Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_R]: ...
    @overload
    def call(
        self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block."""
        return self._collected.add(self._client._name_of(endpoint), result_of(endpoint), args, kwargs)

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        try:
            if error is None and collected.entries:
                collected.settle(*self._client.send_batch(collected.entries))
        finally:
            collected.close()


def chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The items of the iterables side by side, so many at a time."""
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = map(list, zip(*iterables, strict=False))
    while calls := list(itertools.islice(source, size)):
        yield calls
