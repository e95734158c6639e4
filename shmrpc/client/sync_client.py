"""Calling from a program without an event loop; any number of threads may share a client."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import (
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
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, Never, NoReturn, ParamSpec, Self, TypeVar, overload

from shmrpc import _core
from shmrpc.client.base import CHUNKS_UNDER_WAY, BaseClient, PartialCall
from shmrpc.client.batch import ManyCalls, Outcomes, SyncBatch, chunks
from shmrpc.client.options import Options, check_timeout
from shmrpc.client.requests import (
    check_no_streams,
    encode_all,
    encode_call,
    find_endpoint,
    name_and_endpoints,
    read_result,
    swallowed,
    take_sources,
    undecodable,
    unencodable,
)
from shmrpc.client.sync_conversation import Feed, converse, feeds_of
from shmrpc.client.sync_reconnect import ThreadLink
from shmrpc.client.sync_session import ThreadSession, stopped_call
from shmrpc.client.sync_stream_call import StreamCall
from shmrpc.introspection.describe import Description
from shmrpc.service.call import Call, inheriting, nearest_deadline
from shmrpc.service.interceptors import SyncInterceptor, check_interceptors, enter_all_plain
from shmrpc.service.service import Service
from shmrpc.transport.options import (
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_SPIN,
    ConnectionOptions,
    check_connecting,
    check_seconds,
)
from shmrpc.transport.places import Transport, find
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import opcode

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")

Decode = Callable[[Body], Any]


class Client(BaseClient[ThreadLink]):
    """A connection to a service, for any number of threads; made by :func:`connect`.

    ``client.add(1, 2)`` calls the endpoint ``add``, ``for tick in client.ticks()`` reads the stream of an
    endpoint that is a generator, ``client.math.add`` is the endpoint ``math.add``. All arguments are the
    endpoint's own. :meth:`call` does the same for an endpoint with a name that a method here has, and typed.
    """

    def connect(self) -> Self:
        """Connects without a ``with``: ``client = shmrpc.sync.connect(name).connect()``; close it yourself then."""
        return self.__enter__()

    if not TYPE_CHECKING:  # A type checker refuses `async with` by itself.

        async def __aenter__(self) -> NoReturn:
            service = self._link.service
            raise TypeError(
                f"the client of {service!r} is for threads: `with` in place of `async with`; or shmrpc.connect()"
            )

        async def __aexit__(self, *exception: object) -> None: ...

    def __enter__(self) -> Self:
        """Connects, waiting for a server as long as :func:`connect` was told.

        Raises ServiceUnavailable if none appears or it refuses, LocalProtocolError if this client was
        connected before, SharedMemoryError or RemoteProtocolError if the two cannot agree.
        """
        self._link.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls under way in other threads fail with ConnectionLost. Again: nothing."""
        self._link.close()

    def stop(self) -> None:
        """Ends every call that is under way in a thread, with CallStopped; further ones too, until :meth:`resume`.

        Handlers of calls that had begun are cancelled. A stream that nobody waits for at this moment ends when its next
        item is asked for, also after :meth:`resume`.
        """
        self._link.stopped.append(True)
        self._link.stops += 1
        if self._link.session is not None:
            self._link.session.stop()

    def resume(self) -> None:
        """After :meth:`stop`: calls can be made again."""
        self._link.stopped.clear()

    def wait_for_ready(self, timeout: float | None = None) -> None:
        """Waits until calls can be made: at once, or with ``reconnect=True`` once a server is back.

        Raises ServiceUnavailable after ``timeout`` seconds (by default those of :func:`connect`), and what
        ended the connection if there will be none.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        session = self._link.session
        if session is not None:
            session.is_over()
        self._link.ready(timeout=timeout)

    def __repr__(self) -> str:
        link = self._link
        state = "closed" if link.ended else "connected" if link.session and not link.session.ended else "not connected"
        return f"<shmrpc.sync.Client of {link.service!r}, {state}>"

    @overload
    def call(self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def call(
        self, endpoint: Callable[_P, AsyncIterable[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Generator[_R, None, None]: ...
    @overload
    def call(
        self, endpoint: Callable[_P, Iterator[_R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Generator[_R, None, None]: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...  # type: ignore[overload-overlap]
    @overload
    def call(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], Coroutine[Any, Any, _R]],
        source: Iterable[_A],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R: ...
    @overload
    def call(
        self,
        endpoint: Callable[Concatenate[AsyncIterator[_A], _P], AsyncIterable[_R]],
        source: Iterable[_A],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> Generator[_R, None, None]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls an endpoint, given by its name, or by its function: then the result has its declared type.

        For an endpoint that streams it gives a generator. Raises what :meth:`shmrpc.Client.call` raises, and
        CallStopped.
        """
        return self._bound(endpoint)(*args, **kwargs)

    @overload
    def notify(self, endpoint: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    @overload
    def notify(self, endpoint: str, /, *args: Any, **kwargs: Any) -> None: ...
    def notify(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> None:
        """Calls an endpoint one way; see :meth:`shmrpc.Client.notify`."""
        call = self._new_call(self._name_of(endpoint))
        with ExitStack() as stack:
            enter_all_plain(stack, self._options.interceptors, call)

            def send(session: ThreadSession) -> tuple[ThreadSession, bool]:
                number = find_endpoint(session.service, call.endpoint, session.numbers)
                check_no_streams(call.endpoint, session.shapes.get(number), "one way", in_loop=False)
                header = frames.header(call.deadline, call._metadata, one_way=True)
                body = encode_all(self._codec, call.endpoint, (header, list(args), kwargs))
                return session, session.connection.begin(opcode(frames.CALL_WITH, number), call.id, body)

            session, sent = self._link.attempt(call, send)
            if not sent:
                try:
                    session.room(call)
                except Exception as error:
                    raise session.unsent(call.endpoint, error) from None

    @overload
    def map(
        self, endpoint: Callable[[_A], Coroutine[Any, Any, _R]], items: Iterable[_A], /, *, chunk: int = 256
    ) -> Generator[_R, None, None]: ...
    @overload
    def map(
        self, endpoint: Callable[[_A], _R], items: Iterable[_A], /, *, chunk: int = 256
    ) -> Generator[_R, None, None]: ...
    @overload
    def map(
        self,
        endpoint: Callable[[_A, _B], Coroutine[Any, Any, _R]],
        items: Iterable[_A],
        others: Iterable[_B],
        /,
        *,
        chunk: int = 256,
    ) -> Generator[_R, None, None]: ...
    @overload
    def map(
        self, endpoint: Callable[[_A, _B], _R], items: Iterable[_A], others: Iterable[_B], /, *, chunk: int = 256
    ) -> Generator[_R, None, None]: ...
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
    ) -> Generator[_R, None, None]: ...
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
    ) -> Generator[_R, None, None]: ...
    @overload
    def map(self, endpoint: str, /, *iterables: Iterable[Any], chunk: int = 256) -> Generator[Any, None, None]: ...
    def map(self, endpoint: Any, /, *iterables: Iterable[Any], chunk: int = 256) -> Generator[Any, None, None]:
        """Calls an endpoint with the items of each iterable, many calls in a frame; see :meth:`shmrpc.Client.map`."""
        name, kind = self._name_and_kind(endpoint)
        return self._map(name, iterables, chunk, kind)

    def _map(self, name: str, iterables: Sequence[Any], chunk: int, kind: Any) -> Generator[Any, None, None]:
        call = self._new_call(name)
        with ExitStack() as stack:
            enter_all_plain(stack, self._options.interceptors, call)
            yield from self._send_map(call, iterables, chunk, kind)

    def _send_map(self, call: Call, iterables: Sequence[Any], chunk: int, kind: Any) -> Generator[Any, None, None]:
        source = chunks(iterables, chunk)
        under_way: deque[_Asked] = deque()
        try:
            while True:
                while len(under_way) < CHUNKS_UNDER_WAY and (calls := next(source, None)) is not None:
                    many = ManyCalls(self._codec, call, call.endpoint, calls, kind, in_loop=False)
                    under_way.append(self._begin(call.part(), many.request, many.read))
                if not under_way:
                    return
                results, errors = self._answer(under_way.popleft())
                for index, result in enumerate(results):
                    if index in errors:
                        raise errors.pop(index)  # It has this frame in its traceback.
                    yield result
        finally:
            for asked in under_way:
                asked.pending.close()

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
        """Calls an endpoint with streams, to write and read them by hand: ``with client.open("chat") as call:``.

        ``call.write(item)``, ``call.done_writing()``, ``call.read()``, or ``call.result()``
        where there is one result. The arguments are the endpoint's own without the stream that is written. With
        ``reconnect`` it waits for a server as other calls do, but is not made again on the next one.
        """
        return StreamCall(self, *self._name_and_kind(endpoint), args, kwargs)

    def batch(self) -> SyncBatch:
        """Calls of any endpoints in one frame: ``with client.batch() as batch: sum = batch.add(1, 2)``.

        Each call gives a future; at the end of the block the frame is sent, and all are answered.
        """
        return SyncBatch(self, self._codec.convert)

    def send_batch(self, calls: Sequence[Any]) -> Outcomes:
        """Sends calls of any endpoints in one frame; results, and errors by place."""
        call = self._new_call("batch")
        with ExitStack() as stack:
            enter_all_plain(stack, self._options.interceptors, call)
            many = ManyCalls(self._codec, call, None, calls, Any, in_loop=False)
            return self._answer(self._begin(call, many.request, many.read))  # type: ignore[no-any-return]
        raise swallowed(call.endpoint)

    def describe(self) -> Description:
        """What the live service offers; see :meth:`shmrpc.Client.describe`."""
        call = self._new_call("describe")
        decode = self._codec.decoder(Description)
        return self._answer(self._begin(call, lambda session: (frames.DESCRIBE, frames.NIL), decode))  # type: ignore[no-any-return]

    def _begin(self, call: Call, request: _Request, decode: Decode) -> _Asked:
        """Sends a request that is no plain call."""

        def once(session: ThreadSession) -> _Asked:
            kind, body = request(session)
            return _Asked(call, request, decode, session, session.calls.begin(kind, call.id, body))

        return self._link.attempt(call, once)

    def _answer(self, asked: _Asked) -> Any:
        """Waits for the answer to a request, and decodes it."""
        begun: _core.Pending | None
        call, request, decode, begun_on, begun = asked

        def once(session: ThreadSession) -> Any:
            nonlocal begun
            pending, begun = begun, None
            if pending is None:
                kind, body = request(session)
                pending = session.calls.begin(kind, call.id, body)
            return read_result(call.endpoint, decode, session.complete(pending, call))

        return self._link.attempt(call, once, begun_on=begun_on)

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """The function that calls an endpoint. It is the hot path: what it needs is bound beforehand."""
        link, options = self._link, self._options
        session = link.session
        if session is None:
            raise link.not_connected()
        number, decode = find_endpoint(session.service, name, session.numbers), self._codec.decoder(kind)
        shape = session.shapes.get(number)
        if shape is not None and shape.streams:
            return self._named(name, PartialCall(self._stream, name, decode))
        if shape is not None or options.is_general or options.timeout not in (None, math.inf):
            return self._named(name, PartialCall(self._call, name, decode))
        plain, keyword = opcode(frames.CALL, number), opcode(frames.CALL_KEYWORDS, number)
        quick, encode = self._codec.quick(kind), self._codec.encode_all
        exchange, next_id = session.calls.exchange, session.next_id
        inherits = inheriting if options.timeout is None else []
        stopped, complete, bound = link.stopped, session.complete, session

        def call(*args: Any, **kwargs: Any) -> Any:
            if stopped:
                raise stopped_call(bound.service)
            if link.session is not bound or (inherits and nearest_deadline(None) is not None):
                return self._call(name, decode, *args, **kwargs)
            call_id = next_id()
            try:
                request, body = (keyword, encode(([*args], kwargs))) if kwargs else (plain, encode(args))
            except Exception as error:
                raise unencodable(name, error) from None
            try:
                answer: Any = exchange(request, call_id, body)
                if type(answer) is not bytes:
                    answer = complete(answer)
            except BaseException as error:
                bound.calls.close(call_id)  # It may have come at any point, from a signal's handler.
                error = bound.unsent(name, error)
                if link.may_go_again(bound, error):
                    return self._call(name, decode, *args, **kwargs)
                raise error from None
            try:
                return quick(answer)
            except UNREADABLE:
                return read_result(name, decode, answer)

        return self._named(name, call)

    def _new_call(self, name: str) -> Call:
        if self._link.stopped:
            raise stopped_call(self._link.service)
        return super()._new_call(name)

    def _call(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Any:
        """The long way of a call: under a deadline, with streams to the server, interceptors, metadata."""
        call = self._new_call(name)
        with ExitStack() as stack:
            enter_all_plain(stack, self._options.interceptors, call)
            answer = self._perform(call, args, kwargs)
            return read_result(name, decode, answer)

    def _perform(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """The body of a call's result."""
        feeds: dict[int, Feed] = {}

        def once(session: ThreadSession) -> Body:
            number = find_endpoint(session.service, call.endpoint, session.numbers)
            shape = session.shapes.get(number)
            if shape is not None:
                return _last(self._converse(session, number, shape, call, args, kwargs, feeds))
            kind, body = encode_call(
                self._codec, number, call, args, kwargs, with_header=self._options.wants_reply_metadata
            )
            answer = session.calls.exchange(kind, call.id, body)
            return answer if isinstance(answer, bytes) else session.complete(answer, call)

        return self._link.attempt(call, once, lambda: _touched(feeds))

    def _stream(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """A call whose answer is a stream."""
        call = self._new_call(name)
        feeds: dict[int, Feed] = {}

        def once(session: ThreadSession) -> tuple[Body | None, Generator[Body, None, Body]]:
            number = find_endpoint(session.service, name, session.numbers)
            items = self._converse(
                session, number, session.shapes.get(number, frames.Shape(streams=True)), call, args, kwargs, feeds
            )
            return next(items, None), items

        with ExitStack() as stack:
            enter_all_plain(stack, self._options.interceptors, call)
            item, items = self._link.attempt(call, once, lambda: _touched(feeds))
            try:
                while item is not None:
                    try:
                        yield decode(item)
                    except UNREADABLE as error:  # No further: a handler may raise one of them.
                        raise undecodable(name, error) from None
                    item = next(items, None)
            finally:
                items.close()

    def _converse(
        self,
        session: ThreadSession,
        number: int,
        shape: frames.Shape,
        call: Call,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        feeds: dict[int, Feed],
    ) -> Generator[Body, None, Body]:
        """The items of a call with streams; its result is what the generator returns. ``feeds`` gets its sources."""
        positional, keywords, sources = take_sources(call.endpoint, shape, args, kwargs, from_async=False)
        kind, body = encode_call(
            self._codec, number, call, positional, keywords, with_header=self._options.wants_reply_metadata
        )
        feeds.update(feeds_of(session, call, self._codec, sources))
        return converse(session, call, kind, body, feeds, streams=shape.streams)


#: What makes a request for a session: its opcode and its body.
_Request = Callable[[ThreadSession], tuple[int, Body]]


class _Asked(NamedTuple):
    """A request that has been sent."""

    call: Call
    request: _Request
    #: Reads the answer.
    decode: Decode
    session: ThreadSession
    pending: _core.Pending


def _touched(feeds: Mapping[int, Feed]) -> bool:
    """Whether items of a call's sources are gone: it cannot be made again."""
    return any(feed.touched for feed in feeds.values())


def _last(items: Generator[Any, None, Body]) -> Body:
    """What a generator returns."""
    while True:
        try:
            next(items)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def connect(
    service: str | Service,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    call_timeout: float | None = None,
    reconnect: bool = False,
    interceptors: Sequence[SyncInterceptor] = (),
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    max_memory: int = DEFAULT_MAX_MEMORY,
    spin: float = DEFAULT_SPIN,
    allow_uids: Collection[int] = (),
    at: str | Transport | None = None,
) -> Client:
    """A client for threads: ``with shmrpc.sync.connect("calculator") as client: client.add(1, 2)``.

    The options are those of :func:`shmrpc.connect`; interceptors give plain context managers.
    """
    check_connecting(timeout, reconnect)
    connection = ConnectionOptions(max_frame, max_memory, spin, codec, allow_uids)
    transport, service = find(service, at)
    name, endpoints = name_and_endpoints(service)
    link = ThreadLink(name, transport.thread_dial(name, connection), timeout, reconnect=reconnect)
    options = Options(check_timeout(call_timeout), interceptors=check_interceptors(interceptors, plain=True))
    return Client(link, get_codec(codec), options, endpoints)
