"""Calls collected by a client, to be sent in one frame.

Their futures are done at the end of the block. Whoever waits for one within the block would wait for ever, and is told
so: by ``await``, ``result()`` and ``exception()``, and by what asyncio has for waiting (``gather``, ``wait_for``,
``wait``, ``shield``). Another task or thread may wait. What nobody can see is the block itself waiting for such a task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from shmrpc.client.blocking import run
from shmrpc.client.engine import CallEngine
from shmrpc.client.many_calls import OpenResult
from shmrpc.client.requests import result_of, undecodable
from shmrpc.errors import LocalProtocolError
from shmrpc.wire.codec import UNREADABLE, settle

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Name of the endpoint, positional and keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]


class BatchBlock:
    """The block in which calls are collected; ``here`` says which task or thread runs."""

    def __init__(self, here: Callable[[], object], with_statement: str) -> None:
        self._here = here
        self._with = with_statement
        #: Which task or thread is in the block; None once it has ended.
        self._inside: object = here()

    def enter(self) -> None:
        """Notes where the block runs, wherever it was made."""
        self._inside = self._here()

    def leave(self) -> None:
        """Notes that the block has ended: from now on anyone may wait."""
        self._inside = None

    def check(self, endpoint: str) -> None:
        """Raises LocalProtocolError for a caller that waits within the block."""
        if self._inside is not None and self._inside == self._here():
            raise self.unsent(endpoint)

    def check_result(self, endpoint: str) -> None:
        """Raises LocalProtocolError for a caller that asks for a result before the block has ended."""
        if self._inside is not None:
            raise self.unsent(endpoint)

    def unsent(self, endpoint: str) -> LocalProtocolError:
        """The error for asking for a result before the calls were sent."""
        return LocalProtocolError(
            f"{endpoint}() is part of a batch, which is sent at the end of its block: wait for it after the "
            f"`{self._with}`, not within"
        )


class BatchFuture(asyncio.Future[Any]):
    """The result of one call of a :class:`Batch`."""

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
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

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
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


_F = TypeVar("_F", asyncio.Future[Any], concurrent.futures.Future[Any])


class _Collected(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(self, client: CallEngine[Any], block: BatchBlock, future: Callable[[BatchBlock, str], _F]) -> None:
        self._client = client
        self._block = block
        self._make_future: Callable[[BatchBlock, str], _F] = future
        self._entries: list[_Entry] = []
        self._futures: list[tuple[_F, Any]] = []

    def adder(self, endpoint: Any) -> Callable[..., _F]:
        """What adds a call of an endpoint, given by name or by function. Raises EndpointNotFound, InvalidArguments."""
        name = self._client._name_of(endpoint)
        self._client._check_batched(name)
        return functools.partial(self._add, name, result_of(endpoint))

    def _add(self, name: str, kind: Any, /, *args: Any, **kwargs: Any) -> _F:
        future = self._make_future(self._block, name)
        self._entries.append((name, args, kwargs))
        self._futures.append((future, kind))
        return future

    async def leave(self, error: BaseException | None) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        self._block.leave()
        try:
            if error is None and self._entries:
                self._settle(*await self._client._send_batch(self._entries))
        finally:  # Those that have no outcome will have none. We keep nothing: an error's traceback may have us.
            for future, _ in self._futures:
                future.cancel()
            self._futures.clear()
            self._entries.clear()

    def _settle(self, results: list[Any], errors: Mapping[int, Exception]) -> None:
        """Each call has its own outcome."""
        for index, (future, kind) in enumerate(self._futures):
            if future.done():
                continue
            if index in errors:
                future.set_exception(errors[index])
                continue
            try:
                result = results[index]
                if type(result) is OpenResult:
                    result = settle(self._client._codec.convert(result.value, kind))
                elif kind is not Any:
                    result = self._client._codec.convert(result, kind)
                future.set_result(result)
            except UNREADABLE as error:
                future.set_exception(undecodable(self._entries[index][0], error))


class _Batch(Generic[_F]):
    """Calls by the names of their endpoints."""

    def __init__(
        self, client: CallEngine[Any], here: Callable[[], object], how: str, future: Callable[[BatchBlock, str], _F]
    ) -> None:
        block = BatchBlock(here, f"{how} client.batch()")
        # First what has the client, which says why it cannot be pickled.
        self._collected: _Collected[_F] = _Collected(client, block, future)
        self._block = block

    def __getattr__(self, name: str) -> Callable[..., _F]:
        if name.startswith("_"):
            raise AttributeError(name)
        add = self.__dict__[name] = self._collected.adder(name)  # The next time it is found without us.
        return add


class Batch(_Batch[asyncio.Future[Any]]):
    """Calls to be sent in one frame; made by :meth:`Client.batch`."""

    def __init__(self, client: CallEngine[Any]) -> None:
        super().__init__(client, asyncio.current_task, "async with", BatchFuture)

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

        Raises EndpointNotFound, InvalidArguments for an endpoint with streams, LocalProtocolError if there is no
        connection. Arguments that cannot be sent are an EncodeError of this future alone. Within the block to wait
        for it, or to ask for its result, raises LocalProtocolError.
        """
        return self._collected.adder(endpoint)(*args, **kwargs)

    async def __aenter__(self) -> Self:
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._collected.leave(error)


class SyncBatch(_Batch[concurrent.futures.Future[Any]]):
    """Calls to be sent in one frame; made by :meth:`shmrpc.sync.Client.batch`."""

    def __init__(self, client: CallEngine[Any]) -> None:
        super().__init__(client, threading.get_ident, "with", SyncBatchFuture)

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
        """Adds a call of an endpoint, given by name or by function; see :meth:`Batch.call`."""
        return self._collected.adder(endpoint)(*args, **kwargs)

    def __enter__(self) -> Self:
        self._block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(lambda: self._collected.leave(error))
