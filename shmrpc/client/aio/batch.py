"""Batches of calls in an event loop. The calls of a batch are sent in one frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from shmrpc.client.common.batch import BaseBatch, BatchBlock
from shmrpc.client.common.call_engine import CallEngine

_P = ParamSpec("_P")
_R = TypeVar("_R")


class BatchFuture(asyncio.Future[Any]):
    """The future result of one call of a :class:`Batch`."""

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result. Raises LocalProtocolError in the task of the block before the end of the block."""
        if not self.done():
            self._block.check_not_inside(self._endpoint)
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, **context: Any) -> None:
        """Add a callback.

        In the task of the block, before the end of the block, raises LocalProtocolError for a callback by which asyncio
        waits.
        """
        if not self.done() and _is_asyncio_callback(fn):
            self._block.check_not_inside(self._endpoint)
        super().add_done_callback(fn, **context)

    def result(self) -> Any:
        """Return the result of the call or raise its error. Does not wait.

        Raises LocalProtocolError before the end of the block, then InvalidStateError until the reply has come, and
        CancelledError if the block or the whole frame has failed.
        """
        if not self.done():
            self._block.check_sent(self._endpoint)
        try:
            return super().result()
        finally:
            del self  # The traceback of the raised error refers to this frame, and the future keeps the error.

    def exception(self) -> BaseException | None:
        """Return the exception of the call, or None. Raises as :meth:`result` for a call without outcome."""
        if not self.done():
            self._block.check_sent(self._endpoint)
        return super().exception()


def _is_asyncio_callback(callback: Any) -> bool:
    """Return True if asyncio has made a callback, to wait for the future."""
    module = getattr(getattr(callback, "func", callback), "__module__", None)
    return isinstance(module, str) and module.startswith("asyncio.")


class Batch(BaseBatch[asyncio.Future[Any]]):
    """A block that collects calls and sends them in one frame at its end; made by :meth:`Client.batch`."""

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
        """Add a call of an endpoint, given by name or by function. Its future is done at the end of the block.

        Raises EndpointNotFound, TypeError if ``endpoint`` is neither, InvalidArguments for an endpoint with streams,
        and LocalProtocolError if the client was never connected or the block has ended. The arguments are encoded at
        the end of the block; those that cannot be sent raise EncodeError in this future only. Waiting for the future
        within the block, or asking for its result, raises LocalProtocolError. As in calls, the result is of the
        declared type of the function, or of the endpoint in the Service given to connect(); it is not converted if
        only names are given.
        """
        return self._collected.make_adder(endpoint)(*args, **kwargs)

    async def __aenter__(self) -> Self:
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._collected.send(error)
