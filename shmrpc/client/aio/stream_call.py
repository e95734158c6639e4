"""A call whose streams the program writes and reads itself, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from shmrpc.basics.checks import public_class
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.stream_call import StreamCallEngine
from shmrpc.client.common.uploads import make_outgoing
from shmrpc.errors import EndOfStream
from shmrpc.wire.codec import Body

_W = TypeVar("_W")
_R = TypeVar("_R")


@public_class("shmrpc.StreamCall", "client.open(endpoint)", CallEngine)
class StreamCall(StreamCallEngine[_W, _R]):
    """A call whose streams the program writes and reads itself; made by :meth:`Client.open`.

    ::

        async with client.open("chat") as call:
            await call.write("hello")
            print(await call.read())

    Leaving the block ends the call and cancels a handler that is still running. Several tasks may write and read.
    """

    _with_keyword, _await_keyword = "async with", "await "

    def __init__(
        self, client: CallEngine[Any], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__(client, name, kind, args, kwargs)
        self._writing, self._reading = asyncio.Lock(), asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Make the call, without waiting for its reply. Enter the block once.

        Raises InvalidArguments for an endpoint without streams or with several streams to write, EndpointNotFound,
        EncodeError, FrameTooLarge, Overloaded, ConnectionLost if the server has died or left, ServiceUnavailable if no
        other appears in time, or LocalProtocolError if the client was never connected or an interceptor swallowed the
        exception.
        """
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # Type checkers reject `await` already.

        def __await__(self) -> NoReturn:
            raise TypeError(f"{self._name}(): open() returns no awaitable: use `async with client.open(...) as call:`")

    async def write(self, item: _W) -> None:
        """Send an item, after waiting while the handler has too many unread items. A cancelled write sends nothing.

        Raises the error of a failed call; EndOfStream if the handler takes no more items or has ended; EncodeError,
        FrameTooLarge or Overloaded for an item that cannot be sent, after which the call continues without it;
        LocalProtocolError for an endpoint that takes no stream, before the block, and after :meth:`done_writing`.
        """
        await self._write(item)

    async def done_writing(self) -> None:
        """End the written stream, and with it the handler's loop over the items. Idempotent.

        Waits as :meth:`write` does. Does nothing once the call has failed, the handler takes no more items, or the
        block was left. Raises LocalProtocolError for an endpoint that takes no stream, and before the block.
        """
        await self._done_writing()

    async def read(self) -> _R:
        """Wait for the next item and return it. A cancelled read takes no item.

        Raises EndOfStream after the last item and after the block, the error of a failed call, DecodeError for an
        invalid item, after which the next read returns the item behind it, and LocalProtocolError for an endpoint with
        one result: see :meth:`result`.
        """
        return await self._read()

    async def result(self) -> _R:
        """Wait for the result of an endpoint that returns one, and return it. Raises the error of a failed call.

        Most handlers return their result after the end of the written stream: see :meth:`done_writing`. Further calls
        return it again, also after the block. Raises EndOfStream if the block was left before the result came,
        DecodeError for an invalid result, and LocalProtocolError for an endpoint that streams.
        """
        return await self._result()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _R:
        try:
            return await self._read()
        except EndOfStream:
            raise StopAsyncIteration from None

    def _open_upload(self) -> None:
        """Add the stream to the uploads if the endpoint takes one."""
        if self._accepts_stream:
            self._outgoing = make_outgoing(self._session, self._call, 1)
            self._stream_exchange.uploads[1] = self._outgoing

    def _write_lock(self) -> asyncio.Lock:
        return self._writing

    def _read_lock(self) -> asyncio.Lock:
        return self._reading

    async def _wait_writable(self) -> bool:
        return await self._outgoing.wait_writable()

    async def _send_item(self, body: Body) -> bool:
        return await self._outgoing.write(body)
