"""What a client does with a call, written once: as coroutines, which a loop awaits and a thread runs.

The shortest way of a call, which most of them go, is the clients' own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shmrpc.client.common.base_client import BaseClient
from shmrpc.client.common.batch_request import ManyCalls, Outcomes, chunks
from shmrpc.client.common.call_errors import lost_call, swallowed
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.client.common.requests import (
    check_no_streams,
    encode_all,
    encode_call,
    find_endpoint,
    read_result,
    take_sources,
)
from shmrpc.client.common.session import Session
from shmrpc.client.common.stream_exchange import Conversation
from shmrpc.service.call import Call
from shmrpc.service.interceptors import enter_all
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.frames import opcode

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description

_L = TypeVar("_L", bound=Reconnector[Any])
_B = TypeVar("_B")
_T = TypeVar("_T")

Decode = Callable[[Body], Any]

#: Frames of a map() that are under way at a time: one is run while the next is on its way.
CHUNKS_UNDER_WAY: Final = 3


class CallEngine(BaseClient[_L]):
    """A client, without its way to wait."""

    #: Makes a call with streams.
    _conversation: Callable[..., Conversation]

    async def _enter_interceptors(self, stack: AsyncExitStack, call: Call) -> None:
        await enter_all(stack, self._options.interceptors, call)

    async def _call_endpoint(self, name: str, decode: Decode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The long way of a call: with streams to the server, interceptors, metadata, a connection to wait for."""
        call = self._new_call(name)
        if not self._options.interceptors:
            return read_result(name, decode, await self._perform(call, args, kwargs))

        async def perform() -> Any:
            return read_result(name, decode, await self._perform(call, args, kwargs))

        return await self._intercepted(call, perform)

    async def _intercepted(self, call: Call, perform: Callable[[], Coroutine[Any, Any, _T]]) -> _T | None:
        """Performs a call inside the interceptors; None if one of them swallowed an exception.

        Not by ``async with``: between the making of ``__aexit__``'s coroutine and its first step it lets a signal's
        handler run, and what that raises would leave the interceptors as they are.
        """
        stack = AsyncExitStack()
        try:
            await self._enter_interceptors(stack, call)
            result = await perform()
        except BaseException as error:
            if not await stack.__aexit__(type(error), error, error.__traceback__):
                raise
            return None
        await stack.__aexit__(None, None, None)
        return result

    async def _perform(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """The body of a call's result."""
        conversation: Conversation | None = None

        async def once(session: Session[Any]) -> Body:
            nonlocal conversation
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            shape = session.shapes.get(number)
            if shape is None:
                kind, body = self._encode(number, call, args, kwargs)
                return await session.call(call, kind, body)
            conversation = self._conversation(session, call, streams=False)
            await self._start(conversation, number, shape, args, kwargs)
            try:
                assert conversation.body is not None
                return conversation.body
            finally:
                await conversation.close()

        return await self._reconnector.attempt(call, once, lambda: conversation is not None and conversation.is_spent)

    async def _open_stream(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Makes a call whose answer is a stream, up to its first item or its end."""
        conversation: Conversation | None = None

        async def once(session: Session[Any]) -> Conversation:
            nonlocal conversation
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            conversation = self._conversation(session, call, streams=True)
            await self._start(conversation, number, session.shapes.get(number, frames.Shape()), args, kwargs)
            return conversation

        return await self._reconnector.attempt(call, once, lambda: conversation is not None and conversation.is_spent)

    async def _start(
        self,
        conversation: Conversation,
        number: int,
        shape: frames.Shape,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        call = conversation.call
        positional, keywords, sources = take_sources(call.endpoint, shape, args, kwargs, from_async=self._in_loop)
        kind, body = self._encode(number, call, positional, keywords)
        await conversation.start(kind, body, self._codec, sources)

    def _encode(self, number: int, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Body]:
        return encode_call(self._codec, number, call, args, kwargs, with_header=self._options.wants_reply_metadata)

    async def _notify(self, endpoint: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        call = self._new_call(self._name_of(endpoint))
        if self._options.interceptors:
            await self._intercepted(call, lambda: self._send_one_way(call, args, kwargs))
        else:
            await self._send_one_way(call, args, kwargs)

    async def _send_one_way(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        async def send(session: Session[Any]) -> tuple[Session[Any], bool]:
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            check_no_streams(call.endpoint, session.shapes.get(number), "one way", in_loop=self._in_loop)
            header = frames.header_fields(call.deadline, call._metadata, one_way=True)
            body = encode_all(self._codec, call.endpoint, (header, list(args), kwargs))
            sent = session.begin(opcode(frames.CALL_WITH, number), call.id, body)
            if type(body) is not bytes:
                await session.pause()
            return session, sent

        session, sent = await self._reconnector.attempt(call, send)
        if not sent:
            await self._find_room(session, call)

    async def _find_room(self, session: Session[Any], call: Call) -> None:
        """Waits until a one-way call that was sent has found room."""
        try:
            await session.room(call)
        except Exception as error:
            raise session.unsent(call.endpoint, error) from None
        if session.ended is not None:
            raise lost_call(session.ended, call.id)

    def _pipeline(
        self,
        call: Call,
        kind: Any,
        iterables: Sequence[Iterable[Any]],
        chunk: int,
        begin: Callable[[Callable[[], Coroutine[Any, Any, Outcomes]]], _B],
        under_way: deque[_B],
    ) -> Callable[[], bool]:
        """What begins to send frames of a map(), while too few are ``under_way``; False once none are."""
        source = chunks(iterables, chunk)

        def send(calls: list[Any]) -> _B:
            return begin(lambda: self._send_many(call.part(), call.endpoint, calls, kind, followed=True))

        def fill() -> bool:
            while len(under_way) < CHUNKS_UNDER_WAY and (calls := next(source, None)) is not None:
                under_way.append(send(calls))
            return bool(under_way)

        return fill

    async def _send_batch(self, calls: Sequence[Any]) -> Outcomes:
        """Sends calls of any endpoints in one frame; results, and errors by place."""
        call = self._new_call("batch")
        outcomes = await self._intercepted(call, lambda: self._send_many(call, None, calls, Any))
        if outcomes is None:
            raise swallowed(call.endpoint)
        return outcomes

    async def _send_many(
        self, call: Call, name: str | None, calls: Sequence[Any], kind: Any, *, followed: bool = False
    ) -> Outcomes:
        """Sends many calls in one frame, of one endpoint or of any; results of this type, and errors by place.

        ``followed``: by other such frames, before it is answered.
        """
        many = ManyCalls(self._codec, call, name, calls, kind, in_loop=self._in_loop)
        return await self._ask(call, many.request, many.read, followed=followed)  # type: ignore[no-any-return]

    async def _describe(self) -> Description:
        from shmrpc.introspection.describe import Description  # Few programs ask.

        decode = self._codec.decoder(Description)
        return await self._ask(self._new_call("describe"), lambda session: (frames.DESCRIBE, frames.NIL), decode)  # type: ignore[no-any-return]

    async def _ask(
        self,
        call: Call,
        request: Callable[[Session[Any]], tuple[int, Body]],
        decode: Decode,
        *,
        followed: bool = False,
    ) -> Any:
        """Makes a request that is no plain call, maybe ``followed`` by others before its answer; the decoded answer."""

        async def once(session: Session[Any]) -> Any:
            kind, body = request(session)
            ask = session.ask if followed else session.call
            return read_result(call.endpoint, decode, await ask(call, kind, body))

        return await self._reconnector.attempt(call, once)
