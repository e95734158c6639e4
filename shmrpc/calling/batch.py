"""Calls collected by a client, to be sent in one frame.

Their futures are done at the end of the block. Who waits for one within the block would wait for ever, and is told so:
by ``await``, ``result()`` and ``exception()``, and by what asyncio has for waiting (``gather``, ``wait_for``, ``wait``,
``shield``). Another task or thread may wait. What nobody can see is the block itself waiting for such a task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from shmrpc.calling.requests import result_of, undecodable
from shmrpc.errors import LocalProtocolError
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


class Block:
    """The block in which calls are collected; ``here`` says which task or thread runs."""

    def __init__(self, here: Callable[[], object], with_statement: str) -> None:
        self._here = here
        self._with = with_statement
        #: Which task or thread is in the block; None once it has ended.
        self._inside: object = here()

    def enter(self) -> None:
        """The block is run here, wherever it was made."""
        self._inside = self._here()

    def leave(self) -> None:
        """It has ended: from now on anybody may wait."""
        self._inside = None

    def check(self, endpoint: str) -> None:
        """Raises LocalProtocolError for who waits within the block."""
        if self._inside is not None and self._inside == self._here():
            raise self.unsent(endpoint)

    def check_result(self, endpoint: str) -> None:
        """Raises LocalProtocolError for who asks for a result within the block, or elsewhere before its end."""
        if self._inside is not None:
            raise self.unsent(endpoint)

    def unsent(self, endpoint: str) -> LocalProtocolError:
        """The error for who wants a result before the calls were sent."""
        return LocalProtocolError(
            f"{endpoint}() is part of a batch, which is sent at the end of its block: wait for it after the "
            f"`{self._with}`, not within"
        )


class BatchFuture(asyncio.Future[Any]):
    """The result of one call of a :class:`Batch`."""

    def __init__(self, block: Block, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._block.check(self._endpoint)
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, **context: Any) -> None:
        """As of any future; what waits by it raises LocalProtocolError within the block."""
        if not self.done() and _is_asyncios(fn):
            self._block.check(self._endpoint)
        super().add_done_callback(fn, **context)

    def result(self) -> Any:
        """The call's result; LocalProtocolError before the end of the block."""
        if not self.done():
            self._block.check_result(self._endpoint)
        try:
            return super().result()
        finally:
            del self  # What it raises has this frame in its traceback, and is kept by the future.

    def exception(self) -> BaseException | None:
        """What the call raised, or None; LocalProtocolError before the end of the block."""
        if not self.done():
            self._block.check_result(self._endpoint)
        return super().exception()


def _is_asyncios(callback: Any) -> bool:
    """Whether a callback is one by which asyncio waits."""
    module = getattr(getattr(callback, "func", callback), "__module__", None)
    return isinstance(module, str) and module.startswith("asyncio.")


class SyncBatchFuture(concurrent.futures.Future[Any]):
    """The result of one call of a :class:`SyncBatch`."""

    def __init__(self, block: Block, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def result(self, timeout: float | None = None) -> Any:
        """The call's result; LocalProtocolError within the block."""
        if not self.done():
            self._block.check(self._endpoint)
        try:
            return super().result(timeout)
        finally:
            del self  # As in BatchFuture.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; LocalProtocolError within the block."""
        if not self.done():
            self._block.check(self._endpoint)
        return super().exception(timeout)


class Collected(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(self, make_future: Callable[[Block, str], _F], block: Block, convert: Convert) -> None:
        self._make_future = make_future
        self.block = block
        self._convert = convert
        self.entries: list[_Entry] = []
        self._futures: list[tuple[_F, Any]] = []

    def add(self, name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _F:
        """One more call, whose result has this type."""
        future = self._make_future(self.block, name)
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
        block = Block(asyncio.current_task, "async with client.batch()")
        self._collected: Collected[BatchFuture] = Collected(BatchFuture, block, convert)

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
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block.

        Within the block to wait for it, or to ask for its result, raises LocalProtocolError.
        """
        return self._collected.add(self._client._name_of(endpoint), result_of(endpoint), args, kwargs)

    async def __aenter__(self) -> Batch:
        self._collected.block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        collected.block.leave()
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
        block = Block(threading.get_ident, "with client.batch()")
        self._collected: Collected[SyncBatchFuture] = Collected(SyncBatchFuture, block, convert)

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
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block.

        Within the block to wait for it, or to ask for its result, raises LocalProtocolError.
        """
        return self._collected.add(self._client._name_of(endpoint), result_of(endpoint), args, kwargs)

    def __enter__(self) -> SyncBatch:
        self._collected.block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        collected.block.leave()
        try:
            if error is None and collected.entries:
                collected.settle(*self._client.send_batch(collected.entries))
        finally:
            collected.close()


def chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The items of the iterables side by side, so many at a time."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"chunk: expected a number of calls in a frame, got {size!r}")
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = map(list, zip(*iterables, strict=False))
    while calls := list(itertools.islice(source, size)):
        yield calls
