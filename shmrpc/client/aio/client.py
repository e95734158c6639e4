"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, NoReturn, ParamSpec, Self, TypeVar, overload

from shmrpc import _core
from shmrpc.basics.checks import check_seconds, public_class
from shmrpc.client.aio.batch import Batch
from shmrpc.client.aio.fast_path import bind_fast_path, notify_fast
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.aio.stream_call import StreamCall
from shmrpc.client.aio.stream_exchange import LoopStreamExchange
from shmrpc.client.common.base_client import PartialCall, StreamingCall
from shmrpc.client.common.batch_request import BatchOutcome
from shmrpc.client.common.call_engine import CallEngine, Decode
from shmrpc.client.common.call_errors import decode_error
from shmrpc.client.common.call_options import CallOptions
from shmrpc.client.common.requests import (
    find_endpoint,
)
from shmrpc.service.endpoints import Endpoint
from shmrpc.streams.items import ItemDecoder
from shmrpc.wire.codec import UNREADABLE, Codec

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")


@public_class("shmrpc.Client", "shmrpc.connect(name)", LoopReconnector)
class Client(CallEngine[LoopReconnector]):
    """A connection to a service, for the tasks of one event loop; made by :func:`connect`.

    ``await client.add(1, 2)`` calls the endpoint ``add``. ``async for tick in client.ticks()`` reads the stream of an
    endpoint that is a generator. ``client.math.add`` is the endpoint ``math.add``. Calls take the endpoint's own
    arguments only. :meth:`call` also reaches endpoints whose names are those of methods here, and returns typed
    results.
    """

    _is_async = True
    _stream_exchange_class = LoopStreamExchange

    def __init__(
        self, reconnector: LoopReconnector, codec: Codec, options: CallOptions, endpoints: Mapping[str, Endpoint]
    ) -> None:
        super().__init__(reconnector, codec, options, endpoints)
        reconnector.clients.add(self)

    @property
    def address(self) -> str:
        """Address of the server that new calls go to, or last went to: ``"shm://"``, ``"nats://HOST:PORT"``.

        Raises LocalProtocolError before the first connection.
        """
        session = self._reconnector.session
        if session is None:
            raise self._reconnector.not_connected()
        return session.connection.address

    def __await__(self) -> Generator[Any, None, Self]:
        """Connect: ``client = await shmrpc.connect(name)``. Call close() at the end."""
        return self.__aenter__().__await__()

    if not TYPE_CHECKING:  # Type checkers reject `with` already.

        def __enter__(self) -> NoReturn:
            service = self._reconnector.service
            raise TypeError(
                f"the client of {service!r} is for asyncio: `async with` in place of `with`; or shmrpc.sync.connect()"
            )

        def __exit__(self, *exception: object) -> None: ...

    async def __aenter__(self) -> Self:
        """Connect, waiting for a server as long as the ``timeout`` of :func:`connect`.

        Raises ServiceUnavailable if no server appears or the server refuses; LocalProtocolError if this client was
        connected or closed before, without a loop of asyncio, or if the server's user is not allowed; SharedMemoryError
        or RemoteProtocolError if the handshake fails; ConnectionLost if the client is closed meanwhile.
        """
        await self._reconnector.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and wait for its end; calls, also later ones, fail with ConnectionLost. Idempotent."""
        self._reconnector.close()
        await self._reconnector.wait_closed()

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Wait until calls can be made: at once, or with ``reconnect=True`` once a server is back.

        Raises ServiceUnavailable after ``timeout`` seconds (default: the timeout of :func:`connect`), and the error of
        the connection if it has ended for good; LocalProtocolError if the client was never connected, or outside of its
        loop; TypeError or ValueError for an invalid timeout.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        await self._reconnector.wait_session(timeout=timeout)

    def _unbind(self) -> None:
        """Discard the cached endpoints, which are bound to a session that takes no new calls."""
        for name in [name for name in self.__dict__ if not name.startswith("_")]:
            del self.__dict__[name]
        self.__dict__.pop("_calls", None)

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Coroutine[Any, Any, _R]: ...
    @overload
    def call(  # type: ignore[overload-overlap]
        self, endpoint: Callable[_P, AsyncIterable[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def call(  # type: ignore[overload-overlap]
        self, endpoint: Callable[_P, Iterator[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _R]: ...  # type: ignore[overload-overlap]
    @overload
    def call(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], Coroutine[Any, Any, _R]],
        source: AsyncIterable[_A] | Iterable[_A],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> Coroutine[Any, Any, _R]: ...
    @overload
    def call(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], AsyncIterable[_R]],
        source: AsyncIterable[_A] | Iterable[_A],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call an endpoint, given by name or by function; a function gives the result its declared type.

        Returns an awaitable; for an endpoint that streams, an async generator. Raises EndpointNotFound at
        once, and TypeError if ``endpoint`` is neither or has an annotation that cannot be resolved.

        Raises the exception of the endpoint, as a :class:`RemoteError` that is also the builtin exception;
        InvalidArguments, EndpointNotFound, EncodeError, DecodeError, FrameTooLarge, SharedMemoryError, DeadlineExceeded
        or Overloaded for this call only; ConnectionLost if the server has died or left, ServiceUnavailable if with
        ``reconnect`` no other appears, RemoteProtocolError if the server broke the rules of the protocol; and
        LocalProtocolError before the first connection, in another event loop or in a forked child.
        """
        return self._bound_call(endpoint)(*args, **kwargs)

    @overload
    async def notify(self, endpoint: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    @overload
    async def notify(self, endpoint: str, /, *args: Any, **kwargs: Any) -> None: ...
    async def notify(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> None:
        """Call an endpoint one way: without a reply. The server only logs failures.

        Returns once the call is in the shared memory, after waiting for room there. Raises EndpointNotFound,
        EncodeError, FrameTooLarge, InvalidArguments for an endpoint with streams, DeadlineExceeded if there was no room
        by the deadline, Overloaded if too much waits for room, or, as :meth:`call` does, TypeError, ConnectionLost,
        ServiceUnavailable, RemoteProtocolError or LocalProtocolError.
        """
        sent = notify_fast(self, endpoint, args, kwargs)
        if sent is None:
            await self._notify(endpoint, args, kwargs)
            return
        session, call, is_large = sent
        if is_large:
            await session.yield_to_loop()
        if call is not None:
            await self._wait_for_room(session, call)

    @overload
    def map(
        self, endpoint: Callable[[_A], Coroutine[Any, Any, _R]], items: Iterable[_A], /, *, chunk: int = 256
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self, endpoint: Callable[[_A], _R], items: Iterable[_A], /, *, chunk: int = 256
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        endpoint: Callable[[_A, _B], Coroutine[Any, Any, _R]],
        items: Iterable[_A],
        others: Iterable[_B],
        /,
        *,
        chunk: int = 256,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self, endpoint: Callable[[_A, _B], _R], items: Iterable[_A], others: Iterable[_B], /, *, chunk: int = 256
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        endpoint: Callable[..., Coroutine[Any, Any, _R]],
        items: Iterable[Any],
        others: Iterable[Any],
        more: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        chunk: int = 256,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(
        self,
        endpoint: Callable[..., _R],
        items: Iterable[Any],
        others: Iterable[Any],
        more: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        chunk: int = 256,
    ) -> AsyncGenerator[_R, None]: ...
    @overload
    def map(self, endpoint: str, /, *iterables: Iterable[Any], chunk: int = 256) -> AsyncGenerator[Any, None]: ...
    def map(self, endpoint: Any, /, *iterables: Iterable[Any], chunk: int = 256) -> AsyncGenerator[Any, None]:
        """Call an endpoint once for each set of items, as ``map()`` does, many calls in a frame.

        Yields the results in order: ``[r async for r in client.map(add, xs, ys)]``. ``chunk``: number of calls in a
        frame, 1 or more. Up to three frames are in flight. A failed call raises in its turn; later calls may have been
        executed. Timeouts and interceptors apply to the map as a whole. Errors of the arguments raise with the first
        item, also InvalidArguments for an endpoint that streams. An error of an iterable ends the map at once: results
        of frames in flight are lost.
        """
        return _core.ItemStream(self._map(endpoint, iterables, chunk))

    async def _map(self, endpoint: Any, iterables: Sequence[Any], chunk: int) -> AsyncGenerator[list[Any], None]:
        """Send the calls of :meth:`map`, and yield the results of each frame as a list, up to the first error.

        Raises that error.
        """
        name, kind = self._endpoint_name_and_type(endpoint)
        call = self._new_call(name)
        in_flight: deque[asyncio.Task[BatchOutcome]] = deque()
        fill = self._make_pipeline(call, kind, iterables, chunk, lambda send: asyncio.ensure_future(send()), in_flight)
        async with AsyncExitStack() as stack:
            await self._enter_interceptors(stack, call)
            try:
                while fill():
                    results, errors = await in_flight.popleft()
                    held = [results[: min(errors, default=None)]]
                    del results
                    yield held.pop()  # Drops the reference while the reader has the results.
                    if errors:
                        raise errors.pop(min(errors))  # Its traceback refers to this frame.
            finally:
                for task in in_flight:
                    task.cancel()
                if in_flight:
                    await asyncio.wait(in_flight)

    @overload
    def open(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], AsyncIterable[_R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> StreamCall[_A, _R]: ...
    @overload
    def open(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], Coroutine[Any, Any, _R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> StreamCall[_A, _R]: ...
    @overload
    def open(
        self, endpoint: Callable[_P, AsyncIterable[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> StreamCall[Never, _R]: ...
    @overload
    def open(
        self, endpoint: Callable[_P, Iterator[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> StreamCall[Never, _R]: ...
    @overload
    def open(self, endpoint: str, /, *args: Any, **kwargs: Any) -> StreamCall[Any, Any]: ...
    def open(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> StreamCall[Any, Any]:
        """Call an endpoint, and write and read its streams: ``async with client.open("chat") as call:``.

        Use ``await call.write(item)``, ``await call.done_writing()``, ``await call.read()``, or ``await call.result()``
        for an endpoint with one result. Pass the endpoint's arguments without the written stream. Entering the block
        makes the call. With ``reconnect`` it waits for a server, but is not repeated on the next one.
        """
        return StreamCall(self, *self._endpoint_name_and_type(endpoint), args, kwargs)

    def batch(self) -> Batch:
        """Collect calls of any endpoints in one frame: ``async with client.batch() as batch: sum = batch.add(1, 2)``.

        Each call returns a future. The end of the block sends the frame and waits for all replies; it raises an error
        of the whole frame and cancels the futures. If the block raises, nothing is sent and the futures are cancelled.
        """
        return Batch(self)

    async def describe(self) -> Description:
        """Request the description of the running service: endpoints with parameters, types and docstrings.

        Raises the errors of :meth:`call` that concern the connection, the deadline or the reply.
        """
        return await self._describe()

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """Return the function that calls an endpoint, on the fast path if possible; see the base class."""
        reconnector, options = self._reconnector, self._options
        session = reconnector.session
        if session is None:
            raise reconnector.not_connected()
        number = find_endpoint(session.service, name, session.numbers)
        shape = session.shapes.get(number)
        if shape is not None and shape.streams:
            return self._describe_function(name, StreamingCall(self._stream, name, ItemDecoder(self._codec, kind)))
        if (
            shape is not None or options.needs_slow_path or session.draining
        ):  # Until there is a new session, calls wait on the slow path.
            return self._describe_function(name, PartialCall(self._call, name, self._codec.decoder(kind)))
        return bind_fast_path(self, self._call, session, name, number, kind)

    async def _call(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Any:
        """Call an endpoint on the slow path; return the decoded result."""
        return await self._call_slow_path(name, decode, args, kwargs)

    async def _iter_chunks(
        self, on_error: Callable[[Exception], Any], name: str, /, *args: Any
    ) -> AsyncGenerator[list[Any], None]:
        """Call an endpoint that streams, without interceptors. Yield the items that arrive together as a list.

        ``on_error`` returns the value to yield in the place of an item that cannot be decoded, given the error.
        """
        call, decoder = self._new_call(name), ItemDecoder(self._codec, Any)
        stream_exchange: LoopStreamExchange = await self._open_stream(call, args, {})
        incoming = stream_exchange.incoming
        try:
            while await incoming.wait_ready():
                items: list[Any] = []
                for part in incoming.take_runs():
                    items += decoder.decode_all(part, on_error)
                yield items
        finally:
            await stream_exchange.close()

    async def _stream(
        self, name: str, decoder: ItemDecoder, /, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[list[Any], None]:
        """Call an endpoint that streams. Yield the items that arrive together as a list.

        Raises the error of a source, or of the call, and DecodeError for an invalid item.
        """
        call = self._new_call(name)
        async with AsyncExitStack() as stack:
            await self._enter_interceptors(stack, call)
            stream_exchange: LoopStreamExchange = await self._open_stream(call, args, kwargs)
            incoming, pull = stream_exchange.incoming, stream_exchange.pull
            try:
                while await incoming.wait_ready(pull):
                    for part in incoming.take_runs():
                        try:
                            for items in decoder.iter_lists(part):
                                yield items
                        except UNREADABLE as error:  # Narrow: a handler may raise one of these, too.
                            raise decode_error(name, error) from None
            except Exception as error:
                error = stream_exchange.pop_source_error(error)
                raise error from error.__cause__
            finally:
                await stream_exchange.close()
