"""Calls collected by a client, to be sent in one frame.

Their futures are done at the end of the block. Whoever waits for one within the block would wait for ever, and is told
so: by ``await``, ``result()`` and ``exception()``, and by what asyncio has for waiting (``gather``, ``wait_for``,
``wait``, ``shield``). Another task or thread may wait. What nobody can see is the block itself waiting for such a task.
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
from shmrpc.client.common.requests import declared_result_type
from shmrpc.errors import LocalProtocolError
from shmrpc.wire.codec import UNREADABLE, require_converted

_F = TypeVar("_F", asyncio.Future[Any], concurrent.futures.Future[Any])

#: Name of the endpoint, positional and keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]


class BatchBlock:
    """The block in which calls are collected; ``here`` says which task or thread runs."""

    def __init__(self, here: Callable[[], object], with_statement: str) -> None:
        self._here = here
        self._with_keyword = with_statement
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
            raise self.convert_error(endpoint)

    def check_result(self, endpoint: str) -> None:
        """Raises LocalProtocolError for a caller that asks for a result before the block has ended."""
        if self._inside is not None:
            raise self.convert_error(endpoint)

    def convert_error(self, endpoint: str) -> LocalProtocolError:
        """The error for asking for a result before the calls were sent."""
        return LocalProtocolError(
            f"{endpoint}() is part of a batch, which is sent at the end of its block: wait for it after the "
            f"`{self._with_keyword}`, not within"
        )


class _CollectedCalls(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(self, client: CallEngine[Any], block: BatchBlock, future: Callable[[BatchBlock, str], _F]) -> None:
        self._client = client
        self._block = block
        self._make_future: Callable[[BatchBlock, str], _F] = future
        self._entries: list[_Entry] = []
        self._futures: list[tuple[_F, Any]] = []

    def make_adder(self, endpoint: Any) -> Callable[..., _F]:
        """What adds a call of an endpoint, given by name or by function. Raises EndpointNotFound, InvalidArguments."""
        name = self._client._endpoint_name(endpoint)
        self._client._check_batchable(name)
        return functools.partial(self._add, name, declared_result_type(endpoint))

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
                if type(result) is UnconvertedResult:
                    result = require_converted(self._client._codec.convert(result.value, kind))
                elif kind is not Any:
                    result = self._client._codec.convert(result, kind)
                future.set_result(result)
            except UNREADABLE as error:
                future.set_exception(decode_error(self._entries[index][0], error))


class BaseBatch(Generic[_F]):
    """Calls by the names of their endpoints."""

    def __init__(
        self, client: CallEngine[Any], here: Callable[[], object], how: str, future: Callable[[BatchBlock, str], _F]
    ) -> None:
        block = BatchBlock(here, f"{how} client.batch()")
        # First what has the client, which says why it cannot be pickled.
        self._collected: _CollectedCalls[_F] = _CollectedCalls(client, block, future)
        self._block = block

    def __getattr__(self, name: str) -> Callable[..., _F]:
        if name.startswith("_"):
            raise AttributeError(name)
        add = self.__dict__[name] = self._collected.make_adder(name)  # The next time it is found without us.
        return add
