"""Calling from an event loop."""

from __future__ import annotations

import asyncio
import math
import time
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
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Never, NoReturn, ParamSpec, Self, TypeVar, overload

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.client.base import CHUNKS_UNDER_WAY, BaseClient, PartialCall
from shmrpc.client.batch import Batch, ManyCalls, Outcomes, chunks
from shmrpc.client.loop_conversation import LoopConversation
from shmrpc.client.options import Options, check_timeout
from shmrpc.client.reconnect import Link
from shmrpc.client.requests import (
    check_no_streams,
    encode_all,
    encode_call,
    find_endpoint,
    name_and_endpoints,
    not_begun,
    read_result,
    swallowed,
    take_sources,
    undecodable,
    unencodable,
)
from shmrpc.client.session import Session
from shmrpc.client.stream_call import StreamCall
from shmrpc.errors import ConnectionLost
from shmrpc.introspection.describe import Description
from shmrpc.service.call import Call, inheriting, nearest_deadline
from shmrpc.service.endpoints import Endpoint
from shmrpc.service.interceptors import Interceptor, check_interceptors, enter_all
from shmrpc.service.service import Service
from shmrpc.streams.items import Reader
from shmrpc.streams.sending import SLICE
from shmrpc.transport.options import (
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_SPIN,
    ConnectionOptions,
    check_connecting,
    check_seconds,
)
from shmrpc.transport.places import Transport, find
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, Codec, CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import opcode

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")

Decode = Callable[[Body], Any]

#: In the place of an answer: the call was certainly not begun, and is made again.
_AGAIN: Final[Any] = object()


class Client(BaseClient[Link]):
    """A connection to a service, for the tasks of one event loop; made by :func:`connect`.

    ``await client.add(1, 2)`` calls the endpoint ``add``, ``async for tick in client.ticks()`` reads the
    stream of an endpoint that is a generator, ``client.math.add`` is the endpoint ``math.add``. All arguments
    are the endpoint's own. :meth:`call` does the same for an endpoint with a name that a method here has, and
    typed.
    """

    _in_loop = True

    def __init__(self, link: Link, codec: Codec, options: Options, known: Mapping[str, Endpoint]) -> None:
        super().__init__(link, codec, options, known)
        link.clients.add(self)

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects: ``client = await shmrpc.connect(name)``; close it yourself then."""
        return self.__aenter__().__await__()

    if not TYPE_CHECKING:  # A type checker refuses `with` by itself.

        def __enter__(self) -> NoReturn:
            service = self._link.service
            raise TypeError(
                f"the client of {service!r} is for asyncio: `async with` in place of `with`; or shmrpc.sync.connect()"
            )

        def __exit__(self, *exception: object) -> None: ...

    async def __aenter__(self) -> Self:
        """Connects, waiting for a server as long as :func:`connect` was told.

        Raises ServiceUnavailable if none appears or it refuses, LocalProtocolError if this client was
        connected before, SharedMemoryError or RemoteProtocolError if the two cannot agree.
        """
        await self._link.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls under way fail with ConnectionLost. Again: nothing."""
        self._link.close()
        await self._link.wait_closed()

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Waits until calls can be made: at once, or with ``reconnect=True`` once a server is back.

        Raises ServiceUnavailable after ``timeout`` seconds (by default those of :func:`connect`), and what
        ended the connection if there will be none.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        await self._link.ready(timeout=timeout)

    def __repr__(self) -> str:
        link = self._link
        state = "closed" if link.ended else "connected" if link.current() else "not connected"
        return f"<shmrpc.Client of {link.service!r}, {state}>"

    def unbind(self) -> None:
        """What was bound to a session is of no use any more. For the link."""
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
        return self._bound(endpoint)(*args, **kwargs)

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
        call = self._new_call(self._name_of(endpoint))
        if not self._options.interceptors:
            return await self._send_one_way(call, args, kwargs)
        async with self._intercepted(call):
            return await self._send_one_way(call, args, kwargs)

    async def _send_one_way(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        async def send(session: Session) -> tuple[Session, Body, bool]:
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            check_no_streams(call.endpoint, session.shapes.get(number), "one way", in_loop=True)
            header = frames.header(call.deadline, call._metadata, one_way=True)
            body = encode_all(self._codec, call.endpoint, (header, list(args), kwargs))
            return session, body, session.begin(opcode(frames.CALL_WITH, number), call.id, body)

        session, body, sent = await self._link.attempt(call, send)
        if type(body) is not bytes and time.monotonic() > session.slice_end:
            await asyncio.sleep(0)  # What lies beside the ring never has to wait for room in it.
            session.slice_end = time.monotonic() + SLICE
        if not sent:
            await session.room(call)
            if session.ended is not None:  # Whether it went before that is not known.
                raise ConnectionLost(str(session.ended), maybe_executed=True)

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
        return self._map(endpoint, iterables, chunk)

    async def _map(self, endpoint: Any, iterables: Sequence[Any], chunk: int) -> AsyncGenerator[Any, None]:
        name, kind = self._name_and_kind(endpoint)
        call = self._new_call(name)
        source = chunks(iterables, chunk)
        under_way: list[asyncio.Task[Outcomes]] = []
        async with self._intercepted(call):
            try:
                while True:
                    while len(under_way) < CHUNKS_UNDER_WAY and (calls := next(source, None)) is not None:
                        under_way.append(asyncio.ensure_future(self._send_many(call.part(), name, calls, kind)))
                    if not under_way:
                        return
                    results, errors = await under_way.pop(0)
                    for index, result in enumerate(results):
                        if index in errors:
                            raise errors.pop(index)  # It has this frame in its traceback.
                        yield result
            finally:
                for task in under_way:
                    task.cancel()
                if under_way:
                    await asyncio.wait(under_way)

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
        return StreamCall(self, *self._name_and_kind(endpoint), args, kwargs)

    def batch(self) -> Batch:
        """Calls of any endpoints in one frame: ``async with client.batch() as batch: sum = batch.add(1, 2)``.

        Each call gives a future; at the end of the block the frame is sent, and all are answered.
        """
        return Batch(self, self._codec.convert)

    async def send_batch(self, calls: Sequence[Any]) -> Outcomes:
        """Sends calls of any endpoints in one frame; results, and errors by place."""
        call = self._new_call("batch")
        async with self._intercepted(call):
            return await self._send_many(call, None, calls, Any)
        raise swallowed(call.endpoint)

    async def _send_many(self, call: Call, name: str | None, calls: Sequence[Any], kind: Any) -> Outcomes:
        """Sends many calls in one frame, of one endpoint or of any; results of this type, and errors by place."""
        many = ManyCalls(self._codec, call, name, calls, kind, in_loop=True)
        return await self._ask(call, many.request, many.read)  # type: ignore[no-any-return]

    async def describe(self) -> Description:
        """What the live service offers: its endpoints with their parameters, types and docstrings."""
        call = self._new_call("describe")
        decode = self._codec.decoder(Description)
        return await self._ask(call, lambda session: (frames.DESCRIBE, frames.NIL), decode)  # type: ignore[no-any-return]

    async def _ask(self, call: Call, request: Callable[[Session], tuple[int, Body]], decode: Decode) -> Any:
        """Makes a request that is no plain call; the decoded answer."""

        async def once(session: Session) -> Any:
            kind, body = request(session)
            answer = session.exchange(kind, call.id, body)
            if type(answer) is not bytes:
                answer = await session.wait(call.id, answer, call)
            return read_result(call.endpoint, decode, answer)

        return await self._link.attempt(call, once)

    @asynccontextmanager
    async def _intercepted(self, call: Call) -> AsyncGenerator[None, None]:
        """Inside of it stand the interceptors around a call."""
        async with AsyncExitStack() as stack:
            await enter_all(stack, self._options.interceptors, call)
            yield

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """The function that calls an endpoint. It is the hot path: what it needs is bound beforehand."""
        link, options = self._link, self._options
        session = link.session
        if session is None:
            raise link.not_connected()
        number = find_endpoint(session.service, name, session.numbers)
        shape = session.shapes.get(number)
        if shape is not None and shape.streams:
            return self._named(name, PartialCall(self._stream, name, Reader(self._codec, kind)))
        decode = self._codec.decoder(kind)
        if shape is not None or options.is_general or session.leaving:  # Until there is a new session, calls wait.
            return self._named(name, PartialCall(self._call, name, decode))
        quick = self._codec.quick(kind)
        if options.timeout in (None, math.inf):
            return self._bind_plain(session, name, number, quick, decode)
        return self._bind_timed(session, name, number, quick, decode)

    def _bind_plain(
        self, session: Session, name: str, number: int, quick: Decode, decode: Decode
    ) -> Callable[..., Any]:
        """Arguments to bytes, exchanged, and the answer from bytes."""
        plain, keyword = opcode(frames.CALL, number), opcode(frames.CALL_KEYWORDS, number)
        encode, exchange, next_id, wait = self._codec.encode_all, session.exchange, session.next_id, session.wait
        general, reconnect = self._call, self._link.reconnect
        inherits = inheriting if self._options.timeout is None else []

        async def call(*args: Any, **kwargs: Any) -> Any:
            if inherits and nearest_deadline(None) is not None:
                return await general(name, decode, *args, **kwargs)
            call_id = next_id()
            try:  # What is raised in here is of the arguments; from the sending on it is not.
                if kwargs:
                    request, answer = keyword, encode(([*args], kwargs))
                else:
                    request, answer = plain, encode(args)
            except Exception as error:
                raise unencodable(name, error) from None
            try:
                answer = exchange(request, call_id, answer)  # By one name: nobody keeps the request.
                if type(answer) is not bytes:
                    answer = await wait(call_id, answer)
            except BaseException as error:
                if session.is_answer(error):
                    if not (reconnect and not_begun(error)):
                        raise
                else:
                    error = session.unsent(name, error)
                    if not (reconnect and isinstance(error, ConnectionLost)):
                        raise error from None
                answer = _AGAIN
            if type(answer) is not bytes:
                if answer is _AGAIN:  # Not within the clauses: what it raises would bring along what they handle.
                    return await general(name, decode, *args, **kwargs)
                return read_result(name, decode, answer)  # There are buffers beside it.
            try:
                return quick(answer)
            except UNREADABLE:
                pass
            return read_result(name, decode, answer)

        return self._named(name, call)

    def _bind_timed(
        self, session: Session, name: str, number: int, quick: Decode, decode: Decode
    ) -> Callable[..., Any]:
        """The same under a deadline, for positional arguments."""
        timed = opcode(frames.CALL_DEADLINE, number)
        encode, exchange, next_id, wait = self._codec.encode_all, session.exchange, session.next_id, session.wait
        general, reconnect = self._call, self._link.reconnect
        assert self._options.timeout is not None
        clock, nanoseconds = host_nanoseconds, int(self._options.timeout * 1e9)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs or inheriting:
                return await general(name, decode, *args, **kwargs)
            call_id = next_id()
            deadline = clock() + nanoseconds
            try:  # As in _bind_plain().
                if len(args) == 2:  # The commonest: quicker than (deadline, *args).
                    first, second = args
                    answer = encode((deadline, first, second))
                else:
                    answer = encode((deadline, *args))
            except Exception as error:
                raise unencodable(name, error) from None
            try:
                answer = exchange(timed, call_id, answer)
                if type(answer) is not bytes:
                    answer = await wait(call_id, answer, Call(session, name, call_id, deadline))
            except BaseException as error:
                if session.is_answer(error):
                    if not (reconnect and not_begun(error)):
                        raise
                else:
                    error = session.unsent(name, error)
                    if not (reconnect and isinstance(error, ConnectionLost)):
                        raise error from None
                answer = _AGAIN
            if type(answer) is not bytes:
                if answer is _AGAIN:  # As in _bind_plain().
                    return await general(name, decode, *args)
                return read_result(name, decode, answer)  # There are buffers beside it.
            try:
                return quick(answer)
            except UNREADABLE:
                pass
            return read_result(name, decode, answer)

        return self._named(name, call)

    async def _call(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Any:
        """The long way of a call: with streams to the server, interceptors, metadata, a connection to wait for."""
        call = self._new_call(name)
        if not self._options.interceptors:
            return await self._perform(call, decode, args, kwargs)
        async with AsyncExitStack() as stack:
            await enter_all(stack, self._options.interceptors, call)
            return await self._perform(call, decode, args, kwargs)

    async def _perform(self, call: Call, decode: Decode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        conversation: LoopConversation | None = None

        async def once(session: Session) -> Body:
            nonlocal conversation
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            shape = session.shapes.get(number)
            if shape is None:
                kind, body = self._encode(number, call, args, kwargs)
                answer: Any = session.exchange(kind, call.id, body)
                return answer if type(answer) is bytes else await session.wait(call.id, answer, call)
            conversation = LoopConversation(session, call, streams=False)
            await self._converse(conversation, number, shape, args, kwargs)
            try:
                assert conversation.body is not None
                return conversation.body
            finally:
                await conversation.close()

        answer = await self._link.attempt(call, once, lambda: conversation is not None and conversation.is_spent)
        return read_result(call.endpoint, decode, answer)

    def _encode(self, number: int, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Body]:
        return encode_call(self._codec, number, call, args, kwargs, with_header=self._options.wants_reply_metadata)

    async def _converse(
        self,
        conversation: LoopConversation,
        number: int,
        shape: frames.Shape,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Makes a call with streams, up to its first item or its end."""
        call = conversation.call
        positional, keywords, sources = take_sources(call.endpoint, shape, args, kwargs, from_async=True)
        kind, body = self._encode(number, call, positional, keywords)
        await conversation.start(kind, body, self._codec, sources)

    async def _stream(self, name: str, reader: Reader, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """A call whose answer is a stream."""
        call = self._new_call(name)
        last: LoopConversation | None = None

        async def once(session: Session) -> LoopConversation:
            nonlocal last
            number = find_endpoint(session.service, name, session.numbers)
            last = LoopConversation(session, call, streams=True)
            await self._converse(last, number, session.shapes.get(number, frames.Shape()), args, kwargs)
            return last

        async with AsyncExitStack() as stack:
            await enter_all(stack, self._options.interceptors, call)
            conversation = await self._link.attempt(call, once, lambda: last is not None and last.is_spent)
            incoming, pull = conversation.incoming, conversation.pull
            try:
                while await incoming.ready(pull):
                    for count, data in incoming.take():
                        try:
                            if not count:
                                yield reader.one(data)
                                continue
                            for item in reader.many(data):
                                yield item
                        except UNREADABLE as error:  # No further: a handler may raise one of them.
                            raise undecodable(name, error) from None
            except Exception as error:
                error = conversation.take_source_error() or error
                raise error from error.__cause__
            finally:
                await conversation.close()


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
    at: str | Transport | None = None,
) -> Client:
    """A client of the service of this name: ``async with shmrpc.connect("calculator") as client: ...``.

    Given the Service itself, ``client.name(...)`` too has results of the declared types. ``timeout`` is how
    long connecting may take altogether, from looking for a server to its last answer; 0 is one try, which waits for no
    server to appear, and up to 1 s for the answers of one that is there. ``call_timeout`` is how long each call may
    take. Both are in seconds; ``math.inf`` is any. See :meth:`Client.with_options`, which is for one call. With
    ``reconnect`` the client connects again when the server stops or dies; calls wait for that as long as for the first
    connection, and those that were under way fail
    with ConnectionLost unless they certainly were not begun. ``interceptors`` stand around each call.
    ``codec``, ``max_frame``, ``max_memory`` (bytes) and ``spin`` (microseconds) are as in :func:`serve`; of the
    two sides' ``max_frame`` and ``max_memory`` the smaller one holds. The server has to be of this user, of root,
    or of one in ``allow_uids``; else connecting raises LocalProtocolError before anything is sent.

    A name is looked for in this host's shared memory; a URL picks another transport, as ``"memory://calculator"`` does
    for a server in the same event loop. Beside a Service ``at`` says it: ``connect(calculator, at="memory://")``.

    Raises ValueError for an option out of range, or that the transport does not have. What connecting raises:
    :meth:`Client.__aenter__`.
    """
    check_connecting(timeout, reconnect)
    connection = ConnectionOptions(max_frame, max_memory, spin, codec, allow_uids)
    transport, service = find(service, at)
    name, endpoints = name_and_endpoints(service)
    link = Link(name, transport.dial(name, connection), timeout, reconnect=reconnect)
    return Client(
        link,
        get_codec(codec),
        Options(check_timeout(call_timeout), interceptors=check_interceptors(interceptors)),
        endpoints,
    )
