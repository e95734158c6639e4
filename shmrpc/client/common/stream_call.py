"""The coroutines of a call whose streams the program writes and reads itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.call_errors import (
    decode_error,
    ended_by_caller_error,
    not_opened_error,
    send_error,
    swallowed_error,
)
from shmrpc.client.common.requests import decode_result, find_endpoint, prepare_open_arguments
from shmrpc.errors import EndOfStream, LocalProtocolError
from shmrpc.streams.items import ItemDecoder, ItemRun, item_error
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, Overtaken
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body
from shmrpc.wire.frames import opcode

_W = TypeVar("_W")
_R = TypeVar("_R")


class StreamCallEngine(ABC, Generic[_W, _R]):
    """The methods of a StreamCall as coroutines, which an event loop awaits and a thread runs."""

    #: Keywords for messages: how the block is entered, and how its methods are called.
    _with_keyword: ClassVar[str]
    _await_keyword: ClassVar[str]

    def __init__(
        self, client: CallEngine[Any], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._name = name
        self._arguments = args, kwargs
        self._decoder = ItemDecoder(client._codec, kind)
        self._stack = AsyncExitStack()
        #: True once the block was entered.
        self._has_begun = False
        #: True once the block was left.
        self._has_ended = False
        self._has_written_all = False
        #: Received runs of items that were not read, and the remaining items of the run that is being read.
        self._runs: list[ItemRun] = []
        self._items: Iterator[Any] = iter(())

    @property
    def reply_metadata(self) -> dict[str, str | bytes]:
        """Metadata that the handler sends, for a client with ``with_options(reply_metadata=...)``.

        Metadata that the handler set before its first item is available with that item, the rest at the end. Raises
        LocalProtocolError before the block was entered.
        """
        self._check_begun()
        return self._call.reply_metadata

    async def _enter(self) -> None:
        """Enter the interceptors, and make the call inside of them. Leaves the interceptors again if this fails.

        Raises LocalProtocolError if an interceptor swallowed the exception, because the block needs a call.
        """
        client = self._client
        self._call = client._new_call(self._name)
        async with AsyncExitStack() as stack:
            await client._enter_interceptors(stack, self._call)
            await self._begin(stack)
            self._stack = stack.pop_all()
            self._has_begun = True
            return
        raise swallowed_error(self._name)

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Wait for a session, and send the request without waiting for a reply. Leaving ``stack`` ends the call.

        Raises InvalidArguments, EndpointNotFound, the errors of wait_session() and those of sending a request.
        """
        client, call = self._client, self._call
        session = self._session = await client._reconnector.wait_session(call.deadline)
        call._peer, call.id = session, session.next_id()
        number = find_endpoint(session.service, self._name, session.numbers)
        shape = session.shapes.get(number)
        args, kwargs, self._accepts_stream = prepare_open_arguments(self._name, shape, *self._arguments)
        self._streams = shape is not None and shape.streams
        stream_exchange = self._stream_exchange = client._stream_exchange_class(session, call, streams=self._streams)
        self._open_upload()
        stack.callback(self._end)
        while True:
            try:
                stream_exchange.begin(*client._encode(number, call, args, kwargs))
                return
            except Overtaken:
                call.id = session.next_id()
            except BaseException as error:
                raise session.convert_error(self._name, error) from None

    def _end(self) -> None:
        """End the call, and let reads raise EndOfStream, also if items were not read."""
        self._has_ended = True
        self._stream_exchange.end()

    @abstractmethod
    def _open_upload(self) -> None:
        """Prepare the stream to the server, which has number 1, if the endpoint takes one."""

    async def _write(self, item: _W) -> None:
        """Send an item; see :meth:`shmrpc.StreamCall.write`."""
        self._check_writable()
        async with self._write_lock():
            if self._has_written_all:
                raise LocalProtocolError(f"{self._name}(): write() after done_writing()")
            try:
                body = self._client._codec.encode(item)
            except Exception as error:
                raise send_error(self._name, item_error(item, error)) from None
            try:
                sent = await self._send_item(body)
            except (ChannelError, Oversize, Backlog) as error:
                raise self._session.convert_error(self._name, error) from None
            if not sent:
                self._check_failure()
                raise EndOfStream(f"{self._name}() takes no more items")

    async def _done_writing(self) -> None:
        """End the written stream; see :meth:`shmrpc.StreamCall.done_writing`."""
        self._check_writable()
        async with self._write_lock():
            if self._has_written_all:
                return
            if await self._wait_writable():
                try:
                    self._session.send(opcode(frames.END, 1), self._call.id, frames.NIL)
                except ChannelError as error:
                    raise self._session.convert_error(self._name, error) from None
            self._has_written_all = True

    async def _read(self) -> _R:
        """Return the next item; see :meth:`shmrpc.StreamCall.read`."""
        self._check_begun()
        if not self._streams:
            raise LocalProtocolError(f"{self._name}() returns no stream: use `{self._await_keyword}call.result()`")
        async with self._read_lock():
            while not self._has_ended:
                try:
                    for item in self._items:
                        return item  # type: ignore[no-any-return]
                    if self._runs:
                        self._items = iter(self._decode_next_run())
                        continue
                except UNREADABLE as error:  # Narrow: a handler may raise one of these, too.
                    raise decode_error(self._name, error) from None
                if not await self._stream_exchange.wait_ready():
                    break
                self._runs = self._stream_exchange.take_runs()
            if self._has_ended:
                raise ended_by_caller_error(self._name)
            self._check_failure()
            raise EndOfStream(f"{self._name}() has ended: there are no more items")

    def _decode_next_run(self) -> Iterable[Any]:
        """Remove the next run of received items, and return its items.

        Raises one of UNREADABLE for an invalid item, also in the iteration, which can go on with the next item.
        """
        count, data = self._runs.pop(0)
        return self._decoder.decode_array(data) if count else [self._decoder.decode_one(data)]

    async def _result(self) -> _R:
        """Return the result; see :meth:`shmrpc.StreamCall.result`."""
        self._check_begun()
        if self._streams:
            raise LocalProtocolError(f"{self._name}() returns a stream: use `{self._await_keyword}call.read()`")
        async with self._read_lock():
            await self._stream_exchange.wait_ready()
        self._check_failure()
        body = self._stream_exchange.body
        if body is None:  # The block was left before the result came, or while this reader waited.
            raise ended_by_caller_error(self._name)
        return decode_result(self._name, self._decoder.decode_one, body)  # type: ignore[no-any-return]

    @abstractmethod
    def _write_lock(self) -> AbstractAsyncContextManager[Any, Any]:
        """Return a context manager that serializes writers."""

    @abstractmethod
    def _read_lock(self) -> AbstractAsyncContextManager[Any, Any]:
        """Return a context manager that serializes readers."""

    @abstractmethod
    async def _wait_writable(self) -> bool:
        """Wait until there is credit for an item. Returns False if the handler takes no more items."""

    @abstractmethod
    async def _send_item(self, body: Body) -> bool:
        """Send an item once there is credit for it. Returns False if the handler takes no more items.

        Raises ChannelError, and Oversize or Backlog, after which nothing was sent.
        """

    def _check_begun(self) -> None:
        """Raise LocalProtocolError if the block was not entered."""
        if not self._has_begun:
            raise not_opened_error(self._name, f"{self._with_keyword} client.open(...)")

    def _check_writable(self) -> None:
        """Raise LocalProtocolError if the block was not entered, or if the endpoint takes no stream."""
        self._check_begun()
        if not self._accepts_stream:
            raise LocalProtocolError(f"{self._name}() takes no stream: there is nothing to write")

    def _check_failure(self) -> None:
        """Raise the error with which the call has failed, if any."""
        if self._stream_exchange.error is not None:
            raise self._stream_exchange.error
