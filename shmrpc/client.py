"""Calling from an event loop."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, get_type_hints, overload

from shmrpc import _core
from shmrpc.errors import (
    ConnectionLost,
    DecodeError,
    EncodeError,
    EndpointNotFound,
    FrameTooLarge,
    LocalProtocolError,
    ShmrpcError,
)
from shmrpc.options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN, check_options
from shmrpc.protocol import frames
from shmrpc.protocol.codec import UNREADABLE, Codec, CodecName, get_codec
from shmrpc.transport import Frame
from shmrpc.transport.shm import client as transport
from shmrpc.transport.shm.handshake import Settings

_P = ParamSpec("_P")
_R = TypeVar("_R")

AsyncCall = Callable[..., Coroutine[Any, Any, Any]]


class Client:
    """A connection to a service, for the tasks of one event loop; made by :func:`connect`.

    ``await client.add(1, 2)`` calls the endpoint ``add``; all arguments are the endpoint's own.
    :meth:`call` does the same for an endpoint with a name that a method here has, and typed.
    """

    def __init__(self, service: str, timeout: float, settings: Settings, codec: CodecName) -> None:
        self._service = service
        self._timeout = timeout
        self._settings = settings
        self._codec: Codec = get_codec(codec)
        self._connection: transport.LoopConnection | None = None
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._ended: ShmrpcError | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        """Connects: ``client = await shmrpc.connect(name)``; close it yourself then."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        """Connects, waiting for a server as long as :func:`connect` was told.

        Raises ServiceUnavailable if none appears or it refuses, LocalProtocolError if this client was
        connected before, SharedMemoryError or RemoteProtocolError if the two cannot agree.
        """
        if self._connection is not None or self._ended is not None:
            raise LocalProtocolError(f"this client of {self._service!r} was connected before; make another one")
        connection = await transport.connect(self._service, self._timeout, self._settings)
        self._connection = connection
        self._numbers = {name: number for number, name in enumerate(connection.endpoints)}
        self._next_id = itertools.count(1).__next__
        connection.start(self._on_frame, self._on_lost)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls under way fail with ConnectionLost. Again: nothing."""
        if self._connection is not None:
            self._connection.close()
        if self._ended is None:
            self._on_lost(ConnectionLost(f"this client of {self._service!r} was closed"))

    def __repr__(self) -> str:
        state = "closed" if self._ended else "connected" if self._connection else "not connected"
        return f"<shmrpc.Client of {self._service!r}, {state}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(self._connection.endpoints if self._connection else ())]

    def __getattr__(self, name: str) -> AsyncCall:
        if name.startswith("_"):
            raise AttributeError(name)
        call = self._bind(name, self._codec.decode)
        self.__dict__[name] = call  # The next time it is found without us.
        return call

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Coroutine[Any, Any, _R]: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Calls an endpoint, given by its name, or by its function: then the result has its declared type.

        Raises what the endpoint raised, as :class:`RemoteError` and as the builtin it is; InvalidArguments,
        EndpointNotFound, EncodeError or FrameTooLarge, of this call alone; ConnectionLost if the server is
        gone, and RemoteProtocolError if it broke the rules.
        """
        calls: dict[Any, AsyncCall] = self.__dict__.setdefault("_calls", {})
        call = calls.get(endpoint)
        if call is None:
            name, decode = describe(endpoint, self._codec)
            call = calls[endpoint] = self._bind(name, decode)
        return call(*args, **kwargs)

    def _bind(self, name: str, decode: Callable[[bytes], Any]) -> AsyncCall:
        """The function that calls an endpoint. It is the hot path: what it needs is bound beforehand."""
        connection = self._connection
        if connection is None:
            raise LocalProtocolError(f"not connected: use `async with shmrpc.connect({self._service!r}) as client`")
        number = find_endpoint(self._service, name, self._numbers)
        plain = frames.request_opcode(frames.CALL, number)
        keyword = frames.request_opcode(frames.CALL_KEYWORDS, number)
        encode, exchange, next_id, wait = self._codec.encode, connection.exchange, self._next_id, self._wait

        async def call(*args: Any, **kwargs: Any) -> Any:
            call_id = next_id()
            try:
                if kwargs:
                    answer = exchange(keyword, call_id, encode((args, kwargs)))
                else:
                    answer = exchange(plain, call_id, encode(args))
            except Exception as error:
                raise self._unsent(name, error) from None
            if type(answer) is not bytes:
                answer = await wait(call_id, answer)  # type: ignore[arg-type]
            try:
                return decode(answer)
            except UNREADABLE as error:
                raise undecodable(name, error) from None

        call.__name__ = call.__qualname__ = name
        return call

    async def _wait(self, call_id: int, frame: Frame | None) -> bytes:
        """Lets the loop go on until the answer is there; the body of its result."""
        connection = self._connection
        assert connection is not None
        connection.check_loop()
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        pending = self._pending
        pending[call_id] = future
        try:
            if frame is not None:
                self._on_frame(*frame)
            connection.listen()
            if future.done():
                await _turn()
            opcode, _, body = await future
        finally:
            del pending[call_id]
        # A call that was cancelled does not come here, and we go on listening: its late answer is to be
        # taken out of the ring.
        if not pending:
            connection.unpark()
        if opcode == frames.RESULT:
            return body
        raise frames.decode_failure(body)

    def _on_frame(self, opcode: int, call_id: int, body: bytes) -> None:
        """An answer has come. One that nobody waits for any more is dropped."""
        if opcode > frames.FAILURE:
            assert self._connection is not None
            self._connection.fault(ValueError(f"it sent opcode {opcode:#x}, which no server sends"))
            return
        future = self._pending.get(call_id)
        if future is not None and not future.done():
            future.set_result((opcode, call_id, body))

    def _on_lost(self, error: ShmrpcError) -> None:
        self._ended = error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(lost_call(error))

    def _unsent(self, name: str, error: Exception) -> Exception:
        """The error for a call that could not be sent."""
        if isinstance(error, _core.ChannelError):
            assert self._connection is not None
            if self._ended is None:
                self._connection.fault(error)
            return ended_call(self._ended or ConnectionLost(str(error)))
        return unsendable(name, error)


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """One turn of the loop for the others."""
    yield


def lost_call(error: ShmrpcError) -> ShmrpcError:
    """The error for a call under way when the connection ended: each call has its own."""
    if isinstance(error, ConnectionLost):
        return ConnectionLost(str(error), maybe_executed=True)
    return ended_call(error)


def ended_call(error: ShmrpcError) -> ShmrpcError:
    """The error for a call on a connection that had ended: each call has its own, with its own traceback."""
    return type(error)(*error.args)


def unsendable(name: str, error: Exception) -> Exception:
    """The error for arguments that cannot be sent."""
    if isinstance(error, _core.Oversize):
        return FrameTooLarge(f"{name}(): the arguments are too large: {error}; set max_frame= on both sides")
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return EncodeError(f"{name}(): an argument cannot be sent as MessagePack: {error}")
    return error


def undecodable(name: str, error: Exception) -> DecodeError:
    """The error for a result that cannot be read."""
    return DecodeError(f"{name}(): the result cannot be read, or is not what it is declared as: {error}")


def describe(endpoint: Any, codec: Codec) -> tuple[str, Callable[[bytes], Any]]:
    """An endpoint's name, and what decodes its result."""
    if isinstance(endpoint, str):
        return endpoint, codec.decode
    name = getattr(endpoint, "__name__", None)
    if name is None or not callable(endpoint):
        raise TypeError(f"call() expected the name or the function of an endpoint, got {endpoint!r}")
    kind = get_type_hints(endpoint, include_extras=True).get("return", Any)
    return name, codec.decode if kind is Any else codec.decoder(kind)


def find_endpoint(service: str, name: str, numbers: dict[str, int]) -> int:
    """The number of an endpoint; EndpointNotFound names those that there are."""
    number = numbers.get(name)
    if number is None:
        close = difflib.get_close_matches(name, numbers, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(numbers) or 'none'}"
        raise EndpointNotFound(f"service {service!r} has no endpoint {name!r}{hint}")
    return number


def connect(
    service: str,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    spin: float = DEFAULT_SPIN,
) -> Client:
    """A client of the service of this name: ``async with shmrpc.connect("calculator") as client: ...``.

    ``timeout`` is how long to wait for a server to appear, in seconds. ``codec``, ``max_frame`` (bytes) and
    ``spin`` (microseconds) are as in :func:`serve`; of the two sides' ``max_frame`` the smaller one holds.

    Raises ValueError for an option out of range. What connecting raises: :meth:`Client.__aenter__`.
    """
    check_options(max_frame=max_frame, spin=spin, timeout=timeout)
    return Client(service, timeout, Settings(max_frame, spin), codec)
