"""Batches of calls in threads. The calls of a batch are sent in one frame."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from shmrpc.client.common.batch import BaseBatch, BatchBlock
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.threads.coroutine_runner import run

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ThreadBatchFuture(concurrent.futures.Future[Any]):
    """The future result of one call of a :class:`ThreadBatch`."""

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result of the call; return it or raise the error of the call.

        Raises LocalProtocolError in the thread of the block before the end of the block.
        """
        if not self.done():
            self._block.check_not_inside(self._endpoint)
        try:
            return super().result(timeout)
        finally:
            del self  # The traceback refers to this frame; see BatchFuture.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call; return its exception or None. Raises LocalProtocolError as :meth:`result` does."""
        if not self.done():
            self._block.check_not_inside(self._endpoint)
        return super().exception(timeout)


class ThreadBatch(BaseBatch[concurrent.futures.Future[Any]]):
    """A block that collects calls and sends them in one frame at its end; made by :meth:`shmrpc.sync.Client.batch`."""

    def __init__(self, client: CallEngine[Any]) -> None:
        super().__init__(client, threading.get_ident, "with", ThreadBatchFuture)

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
        """Add a call of an endpoint, given by name or by function; see :meth:`Batch.call`."""
        return self._collected.make_adder(endpoint)(*args, **kwargs)

    def __enter__(self) -> Self:
        self._block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(lambda: self._collected.send(error))
