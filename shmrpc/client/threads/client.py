"""The client for programs without an event loop, which any number of threads may share."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, NoReturn, ParamSpec, Self, TypeVar, overload

from shmrpc.basics.checks import check_seconds, public_class
from shmrpc.client.common.base_client import PartialCall
from shmrpc.client.common.batch_request import BatchOutcome
from shmrpc.client.common.call_engine import CallEngine, Decode
from shmrpc.client.common.call_errors import decode_error
from shmrpc.client.common.requests import find_endpoint
from shmrpc.client.threads.batch import ThreadBatch
from shmrpc.client.threads.coroutine_runner import StartedCoroutine, SyncContext, run
from shmrpc.client.threads.fast_path import bind_fast_path
from shmrpc.client.threads.reconnector import ThreadReconnector
from shmrpc.client.threads.session import stopped_error
from shmrpc.client.threads.stream_call import StreamCall
from shmrpc.client.threads.stream_exchange import ThreadStreamExchange
from shmrpc.service.call import Call
from shmrpc.service.interceptors import enter_all_sync
from shmrpc.streams.items import ItemDecoder
from shmrpc.wire.codec import UNREADABLE

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A")
_B = TypeVar("_B")


@public_class("shmrpc.sync.Client", "shmrpc.sync.connect(name)", ThreadReconnector)
class Client(CallEngine[ThreadReconnector]):
    """A connection to a service, for any number of threads; made by :func:`connect`.

    ``client.add(1, 2)`` calls the endpoint ``add``. ``for tick in client.ticks()`` reads the stream of an endpoint that
    is a generator. ``client.math.add`` is the endpoint ``math.add``. Calls take the endpoint's own arguments only.
    :meth:`call` also reaches endpoints whose names are those of methods here, and returns typed results.
    """

    _stream_exchange_class = ThreadStreamExchange

    def connect(self) -> Self:
        """Connect without a ``with`` block: ``client = shmrpc.sync.connect(name).connect()``. Call close() later."""
        return self.__enter__()

    if not TYPE_CHECKING:  # Type checkers reject `async with` already.

        async def __aenter__(self) -> NoReturn:
            service = self._reconnector.service
            raise TypeError(
                f"the client of {service!r} is for threads: `with` in place of `async with`; or shmrpc.connect()"
            )

        async def __aexit__(self, *exception: object) -> None: ...

    def __enter__(self) -> Self:
        """Connect; see :meth:`shmrpc.Client.__aenter__`.

        Also raises CallStopped, and LocalProtocolError in the thread whose event loop serves the service.
        """
        run(lambda: self._reconnector.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls in flight in other threads fail with ConnectionLost. Idempotent."""
        self._reconnector.close()

    def stop(self) -> None:
        """End all calls in flight, and all further calls until :meth:`resume`, with CallStopped.

        Also ends waits for a server. Cancels the handlers of the calls in flight. A stream for which no thread is
        waiting ends when its next item is requested, also after :meth:`resume`.
        """
        self._reconnector.stopped.append(True)
        self._reconnector.stop_count += 1
        if self._reconnector.session is not None:
            self._reconnector.session.stop()

    def resume(self) -> None:
        """Allow calls again after :meth:`stop`. Calls that it has ended stay ended. Idempotent."""
        self._reconnector.stopped.clear()

    def wait_for_ready(self, timeout: float | None = None) -> None:
        """Wait until calls can be made; see :meth:`shmrpc.Client.wait_for_ready`.

        Raises CallStopped if :meth:`stop` ends the wait; does not wait for :meth:`resume`.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        session = self._reconnector.session
        if session is not None:
            session.is_closed()
        run(lambda: self._reconnector.wait_session(timeout=timeout))

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
        """Call an endpoint, given by name or by function; a function gives the result its declared type.

        Returns a generator for an endpoint that streams. Raises the errors of :meth:`shmrpc.Client.call`, and
        CallStopped.
        """
        return self._bound_call(endpoint)(*args, **kwargs)

    @overload
    def notify(self, endpoint: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    @overload
    def notify(self, endpoint: str, /, *args: Any, **kwargs: Any) -> None: ...
    def notify(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> None:
        """Call an endpoint one way; see :meth:`shmrpc.Client.notify`. Also raises CallStopped."""
        run(lambda: self._notify(endpoint, args, kwargs))

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
        """Call an endpoint once for each set of items, many calls in a frame; see :meth:`shmrpc.Client.map`."""
        return self._map(*self._endpoint_name_and_type(endpoint), iterables, chunk)

    def _map(self, name: str, kind: Any, iterables: Sequence[Any], chunk: int) -> Generator[Any, None, None]:
        """Send the calls of :meth:`map`, and yield their results up to the first error, which is raised.

        Sends nothing before the first result is requested. Closing the generator cancels the calls in flight.
        """
        call = self._new_call(name)
        in_flight: deque[StartedCoroutine[BatchOutcome]] = deque()
        fill = self._make_pipeline(call, kind, iterables, chunk, StartedCoroutine, in_flight)
        with SyncContext(AsyncExitStack()) as stack:
            run(lambda: self._enter_interceptors(stack, call))
            try:
                while fill():
                    results, errors = in_flight.popleft().finish()
                    del results[min(errors, default=len(results)) :]
                    results.reverse()
                    while results:  # pop() drops the reference while the reader has the result.
                        yield results.pop()
                    if errors:
                        raise errors.pop(min(errors))  # Its traceback refers to this frame.
            finally:
                for request in in_flight:
                    request.close()

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
        """Call an endpoint, and write and read its streams: ``with client.open("chat") as call:``.

        See :meth:`shmrpc.Client.open`.
        """
        return StreamCall(self, *self._endpoint_name_and_type(endpoint), args, kwargs)

    def batch(self) -> ThreadBatch:
        """Collect calls of any endpoints in one frame: ``with client.batch() as batch: sum = batch.add(1, 2)``.

        Each call returns a future. For the end of the block see :meth:`shmrpc.Client.batch`. Also raises CallStopped.
        """
        return ThreadBatch(self)

    def describe(self) -> Description:
        """Return the description of the running service; see :meth:`shmrpc.Client.describe`."""
        return run(lambda: self._describe())

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """Return the function that calls an endpoint, on the fast path if possible; see the base class."""
        reconnector, options = self._reconnector, self._options
        session = reconnector.session
        if session is None:
            raise reconnector.not_connected()
        number = find_endpoint(session.service, name, session.numbers)
        shape = session.shapes.get(number)
        if shape is not None and shape.streams:
            return self._describe_function(name, PartialCall(self._stream, name, ItemDecoder(self._codec, kind)))
        if shape is not None or options.needs_slow_path:
            return self._describe_function(name, PartialCall(self._call, name, self._codec.decoder(kind)))
        return bind_fast_path(self, self._call, session, name, number, kind)

    def _new_call(self, name: str) -> Call:
        """Return a new call as the base class does. Raises CallStopped between :meth:`stop` and :meth:`resume`."""
        if self._reconnector.stopped:
            raise stopped_error(self._reconnector.service)
        return super()._new_call(name)

    def _call(self, name: str, decode: Decode, /, *args: Any, **kwargs: Any) -> Any:
        """Call an endpoint on the slow path; return the decoded result."""
        return run(lambda: self._call_slow_path(name, decode, args, kwargs))

    async def _enter_interceptors(self, stack: AsyncExitStack, call: Call) -> None:
        """Enter the interceptors, which are plain context managers, without suspending; see the base class."""
        enter_all_sync(stack, self._options.interceptors, call)

    def _stream(self, name: str, decoder: ItemDecoder, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Call an endpoint that streams, and yield the items.

        Raises the error of a source, or of the call, and DecodeError for an invalid item.
        """
        call = self._new_call(name)
        with SyncContext(AsyncExitStack()) as stack:
            run(lambda: self._enter_interceptors(stack, call))
            stream_exchange: ThreadStreamExchange = run(lambda: self._open_stream(call, args, kwargs))
            try:
                while (item := stream_exchange.next_item()) is not None:
                    try:
                        yield decoder.decode_one(item)
                    except UNREADABLE as error:  # Narrow: a handler may raise one of these, too.
                        raise decode_error(name, error) from None
            except Exception as error:
                error = stream_exchange.pop_source_error(error)
                raise error from error.__cause__
            finally:
                run(lambda: stream_exchange.close())
