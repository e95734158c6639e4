"""Calls off the fast path, as coroutines that an event loop awaits and a thread runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shmrpc.client.common.base_client import BaseClient
from shmrpc.client.common.batch_request import BatchOutcome, BatchRequest, iter_chunks
from shmrpc.client.common.call_errors import connection_lost_error, swallowed_error
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.client.common.requests import (
    decode_result,
    encode_arguments,
    encode_call,
    extract_sources,
    find_endpoint,
    reject_streams,
)
from shmrpc.client.common.session import Session
from shmrpc.client.common.stream_exchange import StreamExchange
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

#: Frames of a map() in flight: the server executes one while the next one travels.
MAX_CHUNKS_IN_FLIGHT: Final = 3


class CallEngine(BaseClient[_L]):
    """The part of a client that is the same for event loops and threads; a driver adds the way to wait."""

    #: Class of calls with streams.
    _stream_exchange_class: Callable[..., StreamExchange]

    async def _enter_interceptors(self, stack: AsyncExitStack, call: Call) -> None:
        """Enter the interceptors of a call; leaving ``stack`` leaves them. Raises the errors of the interceptors."""
        await enter_all(stack, self._options.interceptors, call)

    async def _call_slow_path(self, name: str, decode: Decode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call with streams to the server, interceptors or metadata, or without a current session.

        Returns the decoded result; None if an interceptor swallowed an exception. Raises LocalProtocolError if the
        client was never connected, and the error of the call.
        """
        call = self._new_call(name)
        if not self._options.interceptors:
            return decode_result(name, decode, await self._exchange_call(call, args, kwargs))

        async def perform() -> Any:
            return decode_result(name, decode, await self._exchange_call(call, args, kwargs))

        return await self._run_intercepted(call, perform)

    async def _run_intercepted(self, call: Call, perform: Callable[[], Coroutine[Any, Any, _T]]) -> _T | None:
        """Perform a call inside the interceptors. Returns None if an interceptor swallowed an exception.

        Does not use ``async with``, which lets a signal handler run between the creation of ``__aexit__``'s coroutine
        and its first step. An exception raised there would leave the interceptors entered.
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

    async def _exchange_call(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """Send a call, wait for its reply, and return the body of the result. Retries as call_with_retry() does."""
        stream_exchange: StreamExchange | None = None

        async def send(session: Session[Any]) -> Body:
            nonlocal stream_exchange
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            shape = session.shapes.get(number)
            if shape is None:
                kind, body = self._encode(number, call, args, kwargs)
                return await session.call(call, kind, body)
            stream_exchange = self._stream_exchange_class(session, call, streams=False)
            await self._start(stream_exchange, number, shape, args, kwargs)
            try:
                assert stream_exchange.body is not None
                return stream_exchange.body
            finally:
                await stream_exchange.close()

        return await self._reconnector.call_with_retry(
            call, send, lambda: stream_exchange is not None and stream_exchange.has_consumed_sources
        )

    async def _open_stream(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call whose reply is a stream, and wait for its first item or its end.

        Returns the stream exchange, which the caller must close. Retries as call_with_retry() does.
        """
        stream_exchange: StreamExchange | None = None

        async def send(session: Session[Any]) -> StreamExchange:
            nonlocal stream_exchange
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            stream_exchange = self._stream_exchange_class(session, call, streams=True)
            await self._start(stream_exchange, number, session.shapes.get(number, frames.Shape()), args, kwargs)
            return stream_exchange

        return await self._reconnector.call_with_retry(
            call, send, lambda: stream_exchange is not None and stream_exchange.has_consumed_sources
        )

    async def _start(
        self,
        stream_exchange: StreamExchange,
        number: int,
        shape: frames.Shape,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Send the request of a call with streams, and wait for the first item or the end.

        Raises InvalidArguments or EncodeError before anything is sent, later the error of the call or of a source;
        then the exchange is closed.
        """
        call = stream_exchange.call
        positional, keywords, sources = extract_sources(call.endpoint, shape, args, kwargs, from_async=self._is_async)
        kind, body = self._encode(number, call, positional, keywords)
        await stream_exchange.start(kind, body, self._codec, sources)

    def _encode(self, number: int, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Body]:
        """Return opcode and body of a request; see :func:`encode_call`."""
        return encode_call(self._codec, number, call, args, kwargs, with_header=self._options.wants_reply_metadata)

    async def _notify(self, endpoint: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Call an endpoint one way, inside the interceptors; wait until the call is in the ring.

        Raises the errors of :meth:`shmrpc.Client.notify`, unless an interceptor swallows them.
        """
        call = self._new_call(self._endpoint_name(endpoint))
        if self._options.interceptors:
            await self._run_intercepted(call, lambda: self._send_one_way(call, args, kwargs))
        else:
            await self._send_one_way(call, args, kwargs)

    async def _send_one_way(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Send a one-way call, and wait until the call is in the ring.

        Retries as call_with_retry() does, but not once the call waits for room.
        """

        async def send(session: Session[Any]) -> tuple[Session[Any], bool]:
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            reject_streams(call.endpoint, session.shapes.get(number), "one way", is_async=self._is_async)
            header = frames.header_fields(call.deadline, call._metadata, one_way=True)
            body = encode_arguments(self._codec, call.endpoint, (header, list(args), kwargs))
            sent = session.begin(opcode(frames.CALL_WITH, number), call.id, body)
            if type(body) is not bytes:
                await session.yield_to_loop()
            return session, sent

        session, sent = await self._reconnector.call_with_retry(call, send)
        if not sent:
            await self._wait_for_room(session, call)

    async def _wait_for_room(self, session: Session[Any], call: Call) -> None:
        """Wait until a sent one-way call is in the ring. Raises DeadlineExceeded, or the error of a lost connection."""
        try:
            await session.wait_for_room(call)
        except Exception as error:
            raise session.convert_error(call.endpoint, error) from None
        if session.close_reason is not None:
            raise connection_lost_error(session.close_reason, call.id)

    def _make_pipeline(
        self,
        call: Call,
        kind: Any,
        iterables: Sequence[Iterable[Any]],
        chunk: int,
        begin: Callable[[Callable[[], Coroutine[Any, Any, BatchOutcome]]], _B],
        in_flight: deque[_B],
    ) -> Callable[[], bool]:
        """Return a function that sends frames of a map() until :data:`MAX_CHUNKS_IN_FLIGHT` are in flight.

        The function returns False once no frame is in flight, and raises the errors of ``iterables`` and of an invalid
        ``chunk``. ``begin`` starts the coroutine of a frame; its value goes to the end of ``in_flight``, from whose
        start the caller takes the frames.
        """
        source = iter_chunks(iterables, chunk)

        def send(calls: list[Any]) -> _B:
            return begin(lambda: self._send_batch_request(call.part(), call.endpoint, calls, kind, pipelined=True))

        def fill() -> bool:
            while len(in_flight) < MAX_CHUNKS_IN_FLIGHT and (calls := next(source, None)) is not None:
                in_flight.append(send(calls))
            return bool(in_flight)

        return fill

    async def _send_batch(self, calls: Sequence[Any]) -> BatchOutcome:
        """Send the entries of a batch in one frame, inside the interceptors. Returns results, and errors by position.

        Raises LocalProtocolError if an interceptor swallowed the exception of a failed batch.
        """
        call = self._new_call("batch")
        outcomes = await self._run_intercepted(call, lambda: self._send_batch_request(call, None, calls, Any))
        if outcomes is None:
            raise swallowed_error(call.endpoint)
        return outcomes

    async def _send_batch_request(
        self, call: Call, name: str | None, calls: Sequence[Any], kind: Any, *, pipelined: bool = False
    ) -> BatchOutcome:
        """Send many calls in one frame, of one endpoint or of several. Returns results, and errors by position.

        ``pipelined``: True if further frames may be sent before the reply.
        """
        many = BatchRequest(self._codec, call, name, calls, kind, is_async=self._is_async)
        return await self._request(call, many.encode_request, many.decode_reply, pipelined=pipelined)  # type: ignore[no-any-return]

    async def _describe(self) -> Description:
        """Request the description of the service from the server, and return it. Raises the error of the call.

        Enters no interceptors.
        """
        from shmrpc.introspection.describe import Description  # Rarely needed.

        decode = self._codec.decoder(Description)
        return await self._request(self._new_call("describe"), lambda session: (frames.DESCRIBE, frames.NIL), decode)  # type: ignore[no-any-return]

    async def _request(
        self,
        call: Call,
        request: Callable[[Session[Any]], tuple[int, Body]],
        decode: Decode,
        *,
        pipelined: bool = False,
    ) -> Any:
        """Send the request that ``request`` returns for a session, and return the decoded reply.

        Retries as call_with_retry() does, with a new request. Raises the error of the call, and DecodeError or
        SharedMemoryError if ``decode`` cannot read the reply. ``pipelined``: as for :meth:`_send_batch_request`.
        """

        async def send(session: Session[Any]) -> Any:
            kind, body = request(session)
            exchange = session.call_pipelined if pipelined else session.call
            return decode_result(call.endpoint, decode, await exchange(call, kind, body))

        return await self._reconnector.call_with_retry(call, send)
