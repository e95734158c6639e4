"""Calling from an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Never, NoReturn, ParamSpec, Self, TypeVar, overload

from shmrpc import _core
from shmrpc.basics.checks import check_seconds, public_class
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.client.aio.batch import Batch
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.aio.session import LoopSession
from shmrpc.client.aio.stream_call import StreamCall
from shmrpc.client.aio.stream_exchange import LoopStreamExchange
from shmrpc.client.common.base_client import PartialCall, StreamingCall
from shmrpc.client.common.batch_request import BatchOutcome
from shmrpc.client.common.call_engine import CallEngine, Decode
from shmrpc.client.common.call_errors import decode_error
from shmrpc.client.common.call_options import CallOptions, check_timeout
from shmrpc.client.common.requests import (
    encode_plain_call,
    find_endpoint,
    find_endpoint_name,
    make_result_decoder,
    name_and_endpoints,
)
from shmrpc.service.call import Call, deadlines_seen, earliest_deadline
from shmrpc.service.endpoints import Endpoint
from shmrpc.service.interceptors import Interceptor, check_interceptors
from shmrpc.service.service import Service
from shmrpc.streams.items import ItemDecoder
from shmrpc.transport.addresses import At, find_transport
from shmrpc.transport.connection_options import (
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_SPIN,
    check_connecting,
    connection_options,
)
from shmrpc.transport.errors import UNSENT
from shmrpc.wire import frames
from shmrpc.wire.codec import BODIES, UNREADABLE, Codec, CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import opcode

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")

#: The header of a one-way call.
_ONE_WAY: Final = frames.header_fields(None, None, one_way=True)
#: In the place of an answer: the call was certainly not reply, and is made again.
_RETRY: Final[Any] = object()


@public_class("shmrpc.Client", "shmrpc.connect(name)", LoopReconnector)
class Client(CallEngine[LoopReconnector]):
    """A connection to a service, for the tasks of one event loop; made by :func:`connect`.

    ``await client.add(1, 2)`` calls the endpoint ``add``, ``async for tick in client.ticks()`` reads the
    stream of an endpoint that is a generator, ``client.math.add`` is the endpoint ``math.add``. All arguments
    are the endpoint's own. :meth:`call` does the same for an endpoint with a name that a method here has, and
    typed.
    """

    _is_async = True
    _stream_exchange_class = LoopStreamExchange

    def __init__(
        self, reconnector: LoopReconnector, codec: Codec, options: CallOptions, endpoints: Mapping[str, Endpoint]
    ) -> None:
        super().__init__(reconnector, codec, options, endpoints)
        reconnector.clients.add(self)

    @property
    def place(self) -> str:
        """Where the server was met that new calls go to, or went to last: ``"shm://"``, ``"nats://HOST:PORT"``.

        Raises LocalProtocolError before there was a connection.
        """
        session = self._reconnector.session
        if session is None:
            raise self._reconnector.not_connected()
        return session.connection.place

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects: ``client = await shmrpc.connect(name)``; close it yourself then."""
        return self.__aenter__().__await__()

    if not TYPE_CHECKING:  # A type checker refuses `with` by itself.

        def __enter__(self) -> NoReturn:
            service = self._reconnector.service
            raise TypeError(
                f"the client of {service!r} is for asyncio: `async with` in place of `with`; or shmrpc.sync.connect()"
            )

        def __exit__(self, *exception: object) -> None: ...

    async def __aenter__(self) -> Self:
        """Connects, waiting for a server as long as :func:`connect` was sent.

        Raises ServiceUnavailable if none appears or it refuses, LocalProtocolError if this client was
        connected before, SharedMemoryError or RemoteProtocolError if the two cannot agree.
        """
        await self._reconnector.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls under way fail with ConnectionLost. Again: nothing."""
        self._reconnector.close()
        await self._reconnector.wait_closed()

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Waits until calls can be made: at once, or with ``reconnect=True`` once a server is back.

        Raises ServiceUnavailable after ``timeout`` seconds (by default those of :func:`connect`), and what
        ended the connection if there will be none.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        await self._reconnector.wait_session(timeout=timeout)

    def _unbind(self) -> None:
        """Forgets what is bound to a session that new calls do not go to."""
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
        """Calls an endpoint, given by its name, or by its function: then the result has its declared type.

        Awaitable; for an endpoint that streams an async generator: ``async for``.

        Raises what the endpoint raised, as :class:`RemoteError` and as the builtin it is; InvalidArguments,
        EndpointNotFound, EncodeError, FrameTooLarge, DeadlineExceeded or Overloaded, of this call alone;
        ConnectionLost if the server is gone, and RemoteProtocolError if it broke the rules.
        """
        return self._bound_call(endpoint)(*args, **kwargs)

    @overload
    async def notify(self, endpoint: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    @overload
    async def notify(self, endpoint: str, /, *args: Any, **kwargs: Any) -> None: ...
    async def notify(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> None:
        """Calls an endpoint one way: nobody waits for a result, and a failure is only logged at the server.

        Returns once the call is in the shared memory; waits while there is no room for it. Raises
        EndpointNotFound, EncodeError, FrameTooLarge, InvalidArguments for an endpoint with streams,
        DeadlineExceeded if there was no room by its deadline, or ConnectionLost if the server is gone.
        """
        sent = self._notify_fast(endpoint, args, kwargs)
        if sent is None:
            await self._notify(endpoint, args, kwargs)
            return
        session, call, is_large = sent
        if is_large:
            await session.yield_to_loop()
        if call is not None:
            await self._wait_for_room(session, call)

    def _notify_fast(
        self, endpoint: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[LoopSession, Call | None, bool] | None:
        """Sends a plain one-way call at once: on which session, the call if it waits for room, and if it is large.

        None: the short way is not for it, or it has failed. Nothing was sent; the slow_call way has the words for why.
        """
        session, options = self._reconnector.current_session(), self._options
        has_deadline = options.timeout_nanoseconds is not None
        if deadlines_seen and options.inherits_deadline:
            has_deadline |= earliest_deadline(None) is not None
        if session is None or options.needs_slow_path or has_deadline:
            return None
        try:
            name = find_endpoint_name(endpoint, session.numbers)
            number = session.numbers[name]
            if number in session.shapes:
                return None
            body = self._codec.encode_all((_ONE_WAY, [*args], kwargs))
        except Exception:
            return None
        call_id = session.next_id()
        try:
            sent = session.begin(opcode(frames.CALL_WITH, number), call_id, body)
        except UNSENT:
            return None
        except BaseException as error:
            error = session.convert_error(name, error)
            raise error from error.__cause__
        return session, None if sent else Call(session, name, call_id, None), type(body) is not bytes

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
        """Calls an endpoint with the items of each iterable, as ``map()`` does, many calls in a frame.

        Gives the results in order: ``[r async for r in client.map(add, xs, ys)]``. ``chunk``: calls in a
        frame. A call that fails raises when its turn comes; those after it may have been executed. A timeout, and
        an interceptor, are for the whole.
        """
        return _core.ItemStream(self._map(endpoint, iterables, chunk))

    async def _map(self, endpoint: Any, iterables: Sequence[Any], chunk: int) -> AsyncGenerator[list[Any], None]:
        """The results of each frame."""
        name, kind = self._endpoint_name_and_type(endpoint)
        call = self._new_call(name)
        in_flight: deque[asyncio.Task[BatchOutcome]] = deque()
        fill = self._make_pipeline(call, kind, iterables, chunk, lambda send: asyncio.ensure_future(send()), in_flight)
        async with AsyncExitStack() as stack:
            await self._enter_interceptors(stack, call)
            try:
                while fill():
                    results, errors = await in_flight.popleft()
                    yield results[: min(errors, default=None)]
                    if errors:
                        raise errors.pop(min(errors))  # It has this frame in its traceback.
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
        """Calls an endpoint with streams, to write and read them by hand: ``async with client.open("chat") as call:``.

        ``await call.write(item)``, ``await call.done_writing()``, ``await call.read()``, or ``await call.result()``
        where there is one result. The arguments are the endpoint's own without the stream that is written. With
        ``reconnect`` it waits for a server as other calls do, but is not made again on the next one.
        """
        return StreamCall(self, *self._endpoint_name_and_type(endpoint), args, kwargs)

    def batch(self) -> Batch:
        """Calls of any endpoints in one frame: ``async with client.batch() as batch: sum = batch.add(1, 2)``.

        Each call gives a future; at the end of the block the frame is sent, and all are answered.
        """
        return Batch(self)

    async def describe(self) -> Description:
        """What the live service offers: its endpoints with their parameters, types and docstrings."""
        return await self._describe()

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """The function that calls an endpoint. It is the hot path: what it needs is bound beforehand."""
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
        ):  # Until there is a new session, calls wait.
            return self._describe_function(name, PartialCall(self._call, name, self._codec.decoder(kind)))
        return self._bind_fast_path(session, name, number, kind)

    def _bind_fast_path(self, session: LoopSession, name: str, number: int, kind: Any) -> Callable[..., Any]:
        """Arguments to bytes, exchanged, and the answer from bytes: by the core, and by Python what the core cannot."""
        codec, exchange, next_id, wait = self._codec, session.exchange, session.next_id, session.wait_reply
        slow_call, may_retry = self._call, self._reconnector.may_retry
        decode, read, clock = codec.decoder(kind), make_result_decoder(name, codec, kind), host_nanoseconds
        timeout_nanoseconds, inherits_deadline = self._options.timeout_nanoseconds, self._options.inherits_deadline

        async def call(*args: Any, **kwargs: Any) -> Any:
            deadline = None if timeout_nanoseconds is None else clock() + timeout_nanoseconds
            if inherits_deadline:
                deadline = earliest_deadline(deadline)
            if deadline is not None and kwargs:
                return await slow_call(name, decode, *args, **kwargs)
            call_id = next_id()
            reply: Any  # The request, and what came of it: by one name, so that nobody keeps the request.
            request, reply = encode_plain_call(codec, number, name, deadline, args, kwargs)
            try:
                reply = exchange(request, call_id, reply)
            except BaseException as error:
                reply = error
            try:
                return read(reply) if type(reply) in BODIES else await complete(args, kwargs, call_id, reply, deadline)
            finally:
                del reply  # An error has this frame in its traceback.

        async def complete(
            args: Sequence[Any], kwargs: Mapping[str, Any], call_id: int, reply: Any, deadline: int | None
        ) -> Any:
            try:
                if isinstance(reply, BaseException):
                    raise reply
                call = None if deadline is None else Call(session, name, call_id, deadline)
                answer = await wait(call_id, reply, call)
            except BaseException as error:
                reply = None  # It has this frame in its traceback.
                error = session.convert_error(name, error)
                if not may_retry(session, error):
                    raise error from error.__cause__
                answer = _RETRY
            if answer is _RETRY:  # Not within the clause: what it raises would bring along what that handles.
                return await slow_call(name, decode, *args, **kwargs)
            return read(answer)

        self._describe_function(name, call)
        channel = session.shared_memory.channel
        if channel is None:
            return call
        short = self._fast_call(session, number, kind, read)
        home = session.loop, session.check_loop
        return _core.LoopEndpoint(channel, short, call, complete, session.note_interruption, session.cancel, home)

    async def _call(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Any:
        return await self._call_slow_path(name, decode, args, kwargs)

    async def _iter_chunks(
        self, on_error: Callable[[Exception], Any], name: str, /, *args: Any
    ) -> AsyncGenerator[list[Any], None]:
        """A call whose answer is a stream, as the items that have come together, when the connection is woken.

        In the place of an item that cannot be read there is what ``instead`` makes of the error.
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
        """A call whose answer is a stream: lists of items, those together that have come together."""
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
                        except UNREADABLE as error:  # No further: a handler may raise one of them.
                            raise decode_error(name, error) from None
            except Exception as error:
                error = stream_exchange.pop_source_error(error)
                raise error from error.__cause__
            finally:
                await stream_exchange.close()


def connect(
    service: str | Service,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    call_timeout: float | None = None,
    reconnect: bool = False,
    interceptors: Sequence[Interceptor] = (),
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    max_memory: int = DEFAULT_MAX_MEMORY,
    spin: float = DEFAULT_SPIN,
    allow_uids: Collection[int] = (),
    at: At = None,
) -> Client:
    """A client of the service of this name: ``async with shmrpc.connect("calculator") as client: ...``.

    Given the Service itself, ``client.name(...)`` too has results of the declared types. ``timeout`` is how
    long connecting may take altogether, from looking for a server to its last answer; 0 is one try, which waits for no
    server to appear, and up to 1 s for the answers of one that is there. ``call_timeout`` is how long each call may
    take. Both are in seconds; ``math.inf`` is any. See :meth:`Client.with_options`, which is for one call. With
    ``reconnect`` the client connects again when the server stops or dies; calls wait for that as long as for the first
    connection, and those that were under way fail
    with ConnectionLost unless they certainly were not reply. ``interceptors`` stand around each call.
    ``codec``, ``max_frame``, ``max_memory`` (bytes) and ``spin`` (microseconds) are as in :func:`serve`; of the
    two sides' ``max_frame`` and ``max_memory`` the smaller one holds. The server has to be of this user, of root,
    or of one in ``allow_uids``; else connecting raises LocalProtocolError before anything is sent.

    A name is looked for in this host's shared memory; a URL picks another transport, as ``"memory://calculator"`` does
    for a server in the same event loop, and ``"nats://HOST:PORT/calculator"`` for one that reaches the same NATS, on
    any host (:mod:`shmrpc.transport.nats.address` has the URL). Beside a Service ``at`` says it:
    ``connect(calculator, at="memory://")``. Of several places, ``at=["shm", "nats://HOST:PORT"]``, the first one with a
    server is taken; with ``reconnect`` another one when it has none any more, and the first one again when it has one.
    ``client.place`` tells which.

    Raises ValueError for an option out of range, or that the transport does not have. What connecting raises:
    :meth:`Client.__aenter__`.
    """
    check_connecting(timeout, reconnect)
    connection = connection_options(max_frame, max_memory, spin, codec, allow_uids)
    transport, service = find_transport(service, at)
    name, endpoints = name_and_endpoints(service)
    reconnector = LoopReconnector(name, transport.dial(name, connection), timeout, reconnect=reconnect)
    return Client(
        reconnector,
        get_codec(codec),
        CallOptions(check_timeout(call_timeout), interceptors=check_interceptors(interceptors)),
        endpoints,
    )
