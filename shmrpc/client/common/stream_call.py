"""A call whose streams the program writes and reads itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar, Generic, TypeVar

from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.call_errors import not_opened, undecodable, unsendable
from shmrpc.client.common.requests import find_endpoint, leave_open, read_result
from shmrpc.errors import EndOfStream, LocalProtocolError
from shmrpc.streams.items import Part, Reader, unsendable_item
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, Overtaken
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body
from shmrpc.wire.frames import opcode

_W = TypeVar("_W")
_R = TypeVar("_R")


class StreamCallEngine(ABC, Generic[_W, _R]):
    """What a call by hand does, as coroutines: they are awaited in a loop, and run in a thread."""

    #: How it is opened, and its methods are called.
    _with: ClassVar[str]
    _await: ClassVar[str]

    def __init__(
        self, client: CallEngine[Any], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._name = name
        self._arguments = args, kwargs
        self._reader = Reader(client._codec, kind)
        self._stack = AsyncExitStack()
        #: Whether the block has begun.
        self._has_begun = False
        self._has_written_all = False
        #: What has come and was not read so far: runs of items, and what is left of the first.
        self._parts: list[Part] = []
        self._items: Iterator[Any] = iter(())

    @property
    def reply_metadata(self) -> dict[str, str | bytes]:
        """What the handler sends besides, for a client with ``with_options(reply_metadata=...)``.

        What it set before its first item is there with that, the rest at the end.
        """
        self._check_begun()
        return self._call.reply_metadata

    async def _enter(self) -> None:
        client = self._client
        self._call = client._new_call(self._name)
        async with AsyncExitStack() as stack:
            await client._enter_interceptors(stack, self._call)
            await self._begin(stack)
            self._stack = stack.pop_all()
        self._has_begun = True

    async def _begin(self, stack: AsyncExitStack) -> None:
        client, call = self._client, self._call
        session = self._session = await client._reconnector.ready(call.deadline)
        call._peer, call.id = session, session.next_id()
        number = find_endpoint(session.service, self._name, session.numbers)
        shape = session.shapes.get(number)
        args, kwargs, self._takes = leave_open(self._name, shape, *self._arguments)
        self._streams = shape is not None and shape.streams
        conversation = self._conversation = client._conversation(session, call, streams=self._streams)
        self._open_upload()
        stack.callback(conversation.end)
        while True:
            try:
                conversation.begin(*client._encode(number, call, args, kwargs))
                return
            except Overtaken:
                call.id = session.next_id()
            except BaseException as error:
                raise session.unsent(self._name, error) from None

    @abstractmethod
    def _open_upload(self) -> None:
        """Prepares the stream to the server, if the endpoint takes one; its number is 1."""

    async def _write(self, item: _W) -> None:
        self._check_takes()
        async with self._turn_to_write():
            if self._has_written_all:
                raise LocalProtocolError(f"{self._name}(): write() after done_writing()")
            try:
                body = self._client._codec.encode(item)
            except Exception as error:
                raise unsendable(self._name, unsendable_item(item, error)) from None
            try:
                sent = await self._send_item(body)
            except (ChannelError, Oversize, Backlog) as error:
                raise self._session.unsent(self._name, error) from None
            if not sent:
                self._check()
                raise EndOfStream(f"{self._name}() takes no more items")

    async def _done_writing(self) -> None:
        self._check_takes()
        async with self._turn_to_write():
            if self._has_written_all:
                return
            if await self._may_write():
                try:
                    self._session.send(opcode(frames.END, 1), self._call.id, frames.NIL)
                except ChannelError as error:
                    raise self._session.unsent(self._name, error) from None
            self._has_written_all = True

    async def _read(self) -> _R:
        self._check_begun()
        if not self._streams:
            raise LocalProtocolError(f"{self._name}() gives no stream but one result: {self._await}call.result()")
        async with self._turn_to_read():
            try:
                while True:
                    for item in self._items:
                        return item  # type: ignore[no-any-return]
                    if self._parts:
                        self._items = iter(self._next_items())
                    elif await self._conversation.ready():
                        self._parts = self._conversation.take_items()
                    else:
                        break
            except UNREADABLE as error:
                raise undecodable(self._name, error) from None
            self._check()
            raise EndOfStream(f"{self._name}() has ended: there are no more items")

    def _next_items(self) -> Iterable[Any]:
        count, data = self._parts.pop(0)
        return self._reader.many(data) if count else [self._reader.one(data)]

    async def _result(self) -> _R:
        self._check_begun()
        if self._streams:
            raise LocalProtocolError(f"{self._name}() gives a stream and no result: {self._await}call.read()")
        async with self._turn_to_read():
            await self._conversation.ready()
        self._check()
        assert self._conversation.body is not None
        return read_result(self._name, self._reader.one, self._conversation.body)  # type: ignore[no-any-return]

    @abstractmethod
    def _turn_to_write(self) -> AbstractAsyncContextManager[Any, Any]:
        """The turn of one of those that write."""

    @abstractmethod
    def _turn_to_read(self) -> AbstractAsyncContextManager[Any, Any]:
        """The turn of one of those that read."""

    @abstractmethod
    async def _may_write(self) -> bool:
        """Waits until there is credit: True; or until no more is wanted: False."""

    @abstractmethod
    async def _send_item(self, body: Body) -> bool:
        """Sends an item once there is credit for it; False if no more is wanted."""

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise not_opened(self._name, f"{self._with} client.open(...)")

    def _check_takes(self) -> None:
        self._check_begun()
        if not self._takes:
            raise LocalProtocolError(f"{self._name}() takes no stream: there is nothing to write")

    def _check(self) -> None:
        """Raises what the call has failed with, if it has."""
        if self._conversation.error is not None:
            raise self._conversation.error
