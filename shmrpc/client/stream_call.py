"""A call whose streams the program writes and reads itself, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from shmrpc.client.base import BaseClient
from shmrpc.client.loop_conversation import LoopConversation
from shmrpc.client.reconnect import Link
from shmrpc.client.requests import (
    encode_call,
    find_endpoint,
    leave_open,
    not_opened,
    read_result,
    undecodable,
    unsendable,
)
from shmrpc.errors import EndOfStream, LocalProtocolError
from shmrpc.service.interceptors import enter_all
from shmrpc.streams.items import Part, Reader, unsendable_item
from shmrpc.streams.sending import Outgoing
from shmrpc.transport.errors import Backlog, ChannelError, Oversize
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE
from shmrpc.wire.frames import opcode

_W = TypeVar("_W")
_R = TypeVar("_R")


class StreamCall(Generic[_W, _R]):
    """A call whose streams are written and read by hand; made by :meth:`Client.open`.

    ::

        async with client.open("chat") as call:
            await call.write("hello")
            print(await call.read())

    Leaving the block ends the call: a handler that has not ended is cancelled. Several tasks may write and read.
    """

    def __init__(
        self, client: BaseClient[Link], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._name = name
        self._kind = kind
        self._arguments = args, kwargs
        self._stack = AsyncExitStack()
        #: Whether the block has begun.
        self._has_begun = False
        self._writing, self._reading = asyncio.Lock(), asyncio.Lock()
        #: None if the endpoint takes no stream; its number is 1.
        self._outgoing: Outgoing | None = None
        self._has_written_all = False
        #: What has come and was not read so far: runs of items, and what is left of the first.
        self._parts: list[Part] = []
        self._items: Iterator[Any] = iter(())

    async def __aenter__(self) -> Self:
        """Makes the call.

        Raises InvalidArguments for an endpoint without streams or with several to write, EndpointNotFound, EncodeError,
        FrameTooLarge, DeadlineExceeded, or ConnectionLost if the server is gone.
        """
        client = self._client
        self._call = client._new_call(self._name)
        async with AsyncExitStack() as stack:
            await enter_all(stack, client._options.interceptors, self._call)
            await self._begin(stack)
            self._stack = stack.pop_all()
        self._has_begun = True
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        client, call = self._client, self._call
        session = self._session = await client._link.ready(call.deadline)
        call._peer, call.id = session, session.next_id()
        number = find_endpoint(session.service, self._name, session.numbers)
        shape = session.shapes.get(number)
        args, kwargs, writes = leave_open(self._name, shape, *self._arguments)
        self._streams = shape is not None and shape.streams
        self._reader = Reader(client._codec, self._kind)
        conversation = self._conversation = LoopConversation(session, call, streams=self._streams)
        if writes:
            outgoing = Outgoing(session.sharing.sender(opcode(frames.ITEM, 1), call.id, 0))
            self._outgoing = conversation.uploads[1] = outgoing
        stack.callback(self._end)
        try:
            kind, body = encode_call(
                client._codec, number, call, args, kwargs, with_header=client._options.wants_reply_metadata
            )
            conversation.begin(kind, body, client._codec)
        except BaseException as error:
            raise session.unsent(self._name, error) from None

    def _end(self) -> None:
        if self._outgoing is not None:
            self._outgoing.close()
        self._conversation.end()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # A type checker refuses the `await` by itself.

        def __await__(self) -> NoReturn:
            raise TypeError(
                f"{self._name}(): what open() gives is not awaited: use `async with client.open(...) as call:`"
            )

    @property
    def reply_metadata(self) -> dict[str, str | bytes]:
        """What the handler sends besides, for a client with ``with_options(reply_metadata=...)``.

        What it set before its first item is there with that, the rest at the end.
        """
        self._check_begun()
        return self._call.reply_metadata

    async def write(self, item: _W) -> None:
        """Sends an item; waits while the handler has enough of them. Cancelled, it was not sent.

        Raises what the call has failed with, EndOfStream if the handler takes no more items or has ended,
        EncodeError or FrameTooLarge for an item that cannot be sent: the call goes on without it; LocalProtocolError
        for an endpoint that takes no stream, and after :meth:`done_writing`.
        """
        outgoing = self._writable()
        async with self._writing:
            if self._has_written_all:
                raise LocalProtocolError(f"{self._name}(): write() after done_writing()")
            try:
                body = self._client._codec.encode(item)
            except Exception as error:
                raise unsendable(self._name, unsendable_item(item, error)) from None
            try:
                sent = await outgoing.write(body)
            except (ChannelError, Oversize, Backlog) as error:
                raise self._session.unsent(self._name, error) from None
            if not sent:
                self._check()
                raise EndOfStream(f"{self._name}() takes no more items")

    async def done_writing(self) -> None:
        """Says that there are no more items: the handler's loop over them ends. Again: nothing."""
        outgoing = self._writable()
        async with self._writing:
            if self._has_written_all:
                return
            if await outgoing.may_write():
                try:
                    self._session.send(opcode(frames.END, 1), self._call.id, frames.NIL)
                except ChannelError as error:
                    raise self._session.unsent(self._name, error) from None
            self._has_written_all = True

    def _writable(self) -> Outgoing:
        self._check_begun()
        if self._outgoing is None:
            raise LocalProtocolError(f"{self._name}() takes no stream: there is nothing to write")
        return self._outgoing

    async def read(self) -> _R:
        """The next item; waits for it. Cancelled, it takes none.

        Raises EndOfStream after the last one, what the call has failed with, DecodeError for what cannot be read;
        LocalProtocolError for an endpoint with one result: see :meth:`result`.
        """
        self._check_begun()
        if not self._streams:
            raise LocalProtocolError(f"{self._name}() gives no stream but one result: await call.result()")
        async with self._reading:
            try:
                while True:
                    for item in self._items:
                        return item  # type: ignore[no-any-return]
                    if self._parts:
                        self._items = iter(self._next_items())
                    elif await self._conversation.incoming.ready(self._conversation.pull):
                        self._parts = self._conversation.incoming.take()
                    else:
                        break
            except UNREADABLE as error:
                raise undecodable(self._name, error) from None
            self._check()
            raise EndOfStream(f"{self._name}() has ended: there are no more items")

    def _next_items(self) -> Iterable[Any]:
        count, data = self._parts.pop(0)
        return self._reader.many(data) if count else [self._reader.one(data)]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _R:
        try:
            return await self.read()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def result(self) -> _R:
        """The result of an endpoint that has one; waits for it. Raises what the call has failed with.

        The handler gives it as a rule once it has read to the end of what is written: see :meth:`done_writing`.
        """
        self._check_begun()
        if self._streams:
            raise LocalProtocolError(f"{self._name}() gives a stream and no result: await call.read()")
        async with self._reading:
            await self._conversation.incoming.ready()
        self._check()
        assert self._conversation.body is not None
        return read_result(self._name, self._reader.one, self._conversation.body)  # type: ignore[no-any-return]

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise not_opened(self._name, "async with client.open(...)")

    def _check(self) -> None:
        """Raises what the call has failed with, if it has."""
        if self._conversation.error is not None:
            raise self._conversation.error
