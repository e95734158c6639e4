"""Batches: calls that a client collects and sends in one frame.

The futures of the calls are done at the end of the block. A task or thread that waited for one within the block would
wait forever, so waiting raises LocalProtocolError: ``await``, ``result()``, ``exception()``, and asyncio's ``gather``,
``wait_for``, ``wait`` and ``shield``. Other tasks and threads may wait. A block that waits for such a task is not
detected.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from shmrpc.client.common.batch_request import UnconvertedResult
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.call_errors import decode_error
from shmrpc.errors import LocalProtocolError
from shmrpc.wire.codec import UNREADABLE, require_converted

_F = TypeVar("_F", asyncio.Future[Any], concurrent.futures.Future[Any])

#: Name of the endpoint, positional arguments, keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]


class BatchBlock:
    """The block of a batch. ``current`` returns the current task or thread; ``with_statement`` is for messages."""

    def __init__(self, current: Callable[[], object], with_statement: str) -> None:
        self._current = current
        self._with_statement = with_statement
        #: Task or thread that is in the block; None once the block has ended.
        self._owner: object = current()

    def enter(self) -> None:
        """Record the task or thread that enters the block."""
        self._owner = self._current()

    def finish(self) -> None:
        """Record the end of the block, after which waiting is allowed, and adding is not."""
        self._owner = None

    def check_not_inside(self, endpoint: str) -> None:
        """Raise LocalProtocolError in the task or thread of the block before the end of the block.

        Does nothing in other tasks and threads. ``endpoint`` is for the message.
        """
        if self._owner is not None and self._owner == self._current():
            raise self.not_sent_error(endpoint)

    def check_sent(self, endpoint: str) -> None:
        """Raise LocalProtocolError before the end of the block, in every task and thread."""
        if self._owner is not None:
            raise self.not_sent_error(endpoint)

    def check_not_ended(self, endpoint: str) -> None:
        """Raise LocalProtocolError after the end of the block, when a call can no longer be added."""
        if self._owner is None:
            raise LocalProtocolError(
                f"{endpoint}() cannot be added, because the batch has ended: collect further calls in another "
                f"`{self._with_statement}`"
            )

    def not_sent_error(self, endpoint: str) -> LocalProtocolError:
        """Return the error for a caller that needs a result before the calls were sent."""
        return LocalProtocolError(
            f"{endpoint}() is part of a batch, which is sent at the end of its block: wait for it after the "
            f"`{self._with_statement}`, not within"
        )


class _CollectedCalls(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(self, client: CallEngine[Any], block: BatchBlock, future: Callable[[BatchBlock, str], _F]) -> None:
        self._client = client
        self._block = block
        self._make_future: Callable[[BatchBlock, str], _F] = future
        #: The calls, their futures and the types of their results.
        self._calls: list[tuple[_Entry, _F, Any]] = []

    def make_adder(self, endpoint: Any) -> Callable[..., _F]:
        """Return a function that adds a call of an endpoint and returns its future.

        Raises TypeError if ``endpoint`` is neither a name nor a function, EndpointNotFound, InvalidArguments for an
        endpoint with streams, and LocalProtocolError if the client was never connected.
        """
        name, kind = self._client._endpoint_name_and_type(endpoint)
        self._client._check_batchable(name)
        return functools.partial(self._add, name, kind)

    def _add(self, name: str, kind: Any, /, *args: Any, **kwargs: Any) -> _F:
        """Add a call of an endpoint with results of type ``kind``; return its future.

        Keeps the arguments without a copy; :meth:`send` encodes them. Raises LocalProtocolError after the end of the
        block, because the future would never be done.
        """
        self._block.check_not_ended(name)
        future = self._make_future(self._block, name)
        self._calls.append(((name, args, kwargs), future, kind))  # In one step: several threads may add calls.
        return future

    async def send(self, error: BaseException | None) -> None:
        """Send the calls and wait for the replies; cancel the futures instead if the block raised ``error``.

        Without calls, sends nothing and enters no interceptors. Raises the error of the frame as a whole, and then
        cancels the futures, too. The error of one call goes to its future only.
        """
        self._block.finish()
        entries = [entry for entry, _, _ in self._calls]
        try:
            if error is None and entries:
                self._resolve_futures(*await self._client._send_batch(entries))
        finally:  # Cancels futures without outcome. Keeps no reference: tracebacks may refer to this object and frame.
            for _, future, _ in self._calls:
                future.cancel()
            self._calls.clear()
            entries.clear()

    def _resolve_futures(self, results: list[Any], errors: Mapping[int, Exception]) -> None:
        """Set the result or the exception of each future that is not done. ``errors`` are by position."""
        for index, ((name, _, _), future, kind) in enumerate(self._calls[: len(results)]):
            if future.done():
                continue
            if index in errors:
                future.set_exception(errors[index])
                continue
            try:
                result = results[index]
                if type(result) is UnconvertedResult:
                    result = require_converted(self._client._codec.convert(result.value, kind))
                elif kind is not Any:
                    result = self._client._codec.convert(result, kind)
                future.set_result(result)
            except UNREADABLE as error:
                future.set_exception(decode_error(name, error))


class BaseBatch(Generic[_F]):
    """The methods that batches share. An attribute with the name of an endpoint adds a call of that endpoint."""

    def __init__(
        self,
        client: CallEngine[Any],
        current: Callable[[], object],
        keyword: str,
        future: Callable[[BatchBlock, str], _F],
    ) -> None:
        block = BatchBlock(current, f"{keyword} client.batch()")
        # First the object that refers to the client: its __reduce_ex__ then explains why a batch cannot be pickled.
        self._collected: _CollectedCalls[_F] = _CollectedCalls(client, block, future)
        self._block = block

    def __getattr__(self, name: str) -> Callable[..., _F]:
        """Return the function that adds a call of an endpoint. Raises as :meth:`_CollectedCalls.make_adder` does."""
        if name.startswith("_"):
            raise AttributeError(name)
        add = self.__dict__[name] = self._collected.make_adder(name)  # Later lookups bypass __getattr__.
        return add
