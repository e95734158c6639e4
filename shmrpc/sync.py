"""Calling from a program without an event loop; any number of threads may share a client."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from shmrpc import _core
from shmrpc.client import describe, ended_call, find_endpoint, lost_call, undecodable, unsendable
from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN, check_options
from shmrpc.protocol import frames
from shmrpc.protocol.codec import UNREADABLE, Codec, CodecName, get_codec
from shmrpc.transport import Frame
from shmrpc.transport.shm import blocking as transport
from shmrpc.transport.shm.handshake import Settings

__all__ = ["Client", "connect"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

Call = Callable[..., Any]


class _Waiter:
    """A thread that waits for an answer, or for its turn to receive."""

    __slots__ = ("answer", "error", "wake")

    def __init__(self) -> None:
        self.answer: Frame | None = None
        self.error: ShmrpcError | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class Client:
    """A connection to a service, for any number of threads; made by :func:`connect`.

    ``client.add(1, 2)`` calls the endpoint ``add``; all arguments are the endpoint's own. :meth:`call` does
    the same for an endpoint with a name that a method here has, and typed.

    Of the threads that wait, one receives, for itself and for the others; when it has its own answer the
    next one takes over.
    """

    def __init__(self, service: str, timeout: float, settings: Settings, codec: CodecName) -> None:
        self._service = service
        self._timeout = timeout
        self._settings = settings
        self._codec: Codec = get_codec(codec)
        self._connection: transport.ThreadConnection | None = None
        #: Guards the two below. Held for moments only.
        self._state = threading.Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._ended: ShmrpcError | None = None

    def __enter__(self) -> Client:
        """Connects, waiting for a server as long as :func:`connect` was told.

        Raises ServiceUnavailable if none appears or it refuses, LocalProtocolError if this client was
        connected before, SharedMemoryError or RemoteProtocolError if the two cannot agree.
        """
        if self._connection is not None or self._ended is not None:
            raise LocalProtocolError(f"this client of {self._service!r} was connected before; make another one")
        self._connection = transport.connect(self._service, self._timeout, self._settings)
        self._numbers = {name: number for number, name in enumerate(self._connection.endpoints)}
        self._next_id = itertools.count(1).__next__
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls under way in other threads fail with ConnectionLost. Again: nothing."""
        if self._connection is not None:
            self._end(ConnectionLost(f"this client of {self._service!r} was closed"))
            self._connection.close()

    def __repr__(self) -> str:
        state = "closed" if self._ended else "connected" if self._connection else "not connected"
        return f"<shmrpc.sync.Client of {self._service!r}, {state}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(self._connection.endpoints if self._connection else ())]

    def __getattr__(self, name: str) -> Call:
        if name.startswith("_"):
            raise AttributeError(name)
        call = self._bind(name, self._codec.decode)
        self.__dict__[name] = call  # The next time it is found without us.
        return call

    @overload
    def call(self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls an endpoint, given by its name, or by its function: then the result has its declared type.

        Raises what :meth:`shmrpc.Client.call` raises.
        """
        calls: dict[Any, Call] = self.__dict__.setdefault("_calls", {})
        call = calls.get(endpoint)
        if call is None:
            name, decode = describe(endpoint, self._codec)
            call = calls[endpoint] = self._bind(name, decode)
        return call(*args, **kwargs)

    def _bind(self, name: str, decode: Callable[[bytes], Any]) -> Call:
        """The function that calls an endpoint. It is the hot path: what it needs is bound beforehand."""
        connection = self._connection
        if connection is None:
            raise LocalProtocolError(f"not connected: use `with shmrpc.sync.connect({self._service!r}) as client`")
        number = find_endpoint(self._service, name, self._numbers)
        plain = frames.request_opcode(frames.CALL, number)
        keyword = frames.request_opcode(frames.CALL_KEYWORDS, number)
        encode, exchange, next_id = self._codec.encode, connection.exchange, self._next_id
        waiters = self._waiters

        def call(*args: Any, **kwargs: Any) -> Any:
            call_id = next_id()
            try:
                opcode, body = (keyword, encode((args, kwargs))) if kwargs else (plain, encode(args))
            except Exception as error:
                raise unsendable(name, error) from None
            try:
                answer = exchange(opcode, call_id, body)
                if type(answer) is not bytes:
                    if answer is False:
                        frame = self._follow(call_id, opcode, body)
                    else:
                        frame = self._receive_own(call_id, answer)  # type: ignore[arg-type]
                        connection.unlead()
                    answer = _result(frame)
            except BaseException as error:
                self._give_up_lead()
                raise self._explain(name, error) from None
            if waiters:
                self._wake_next()
            try:
                return decode(answer)
            except UNREADABLE as error:
                raise undecodable(name, error) from None

        call.__name__ = call.__qualname__ = name
        return call

    def _follow(self, call_id: int, opcode: int, body: bytes) -> Frame:
        """Sends, and waits until the thread that receives has the answer, or it is our turn to receive."""
        connection = self._connection
        assert connection is not None
        waiter = _Waiter()
        with self._state:
            if self._ended is not None:
                raise lost_call(self._ended)
            self._waiters[call_id] = waiter
        try:
            connection.send(opcode, call_id, body)
            while True:
                # Registered first, then asked for the lead: whoever gives it up now looks for us.
                if connection.lead():
                    try:
                        if waiter.answer is not None:
                            return waiter.answer
                        if waiter.error is not None:
                            raise waiter.error
                        return self._receive_own(call_id, None)
                    finally:
                        self._give_up_lead()
                waiter.wake.acquire()
                if waiter.error is not None:
                    raise waiter.error
                if waiter.answer is not None:
                    return waiter.answer
        finally:
            with self._state:
                del self._waiters[call_id]
            self._wake_next()

    def _receive_own(self, call_id: int, frame: Frame | None) -> Frame:
        """Receives for everybody until our own answer is there. Only for the thread that has the lead."""
        connection = self._connection
        assert connection is not None
        while True:
            if frame is not None:
                if frame[0] > frames.FAILURE:
                    raise _core.ChannelError(f"it sent opcode {frame[0]:#x}, which no server sends")
                if frame[1] == call_id:
                    return frame
                self._deliver(frame)
            if self._ended is not None:
                raise lost_call(self._ended)
            try:
                frame = connection.receive() or connection.wait()
            except ShmrpcError as error:
                self._end(error)
                connection.abandon()
                raise lost_call(error) from None

    def _deliver(self, frame: Frame) -> None:
        """An answer for another thread. One that nobody waits for any more is dropped."""
        with self._state:
            waiter = self._waiters.get(frame[1])
            if waiter is not None and waiter.answer is None:
                waiter.answer = frame
                _release(waiter)

    def _give_up_lead(self) -> None:
        """After an error, or a signal at any point: what was taken out of the ring is delivered."""
        connection = self._connection
        assert connection is not None
        frame = connection.last()
        if frame is not None:
            self._deliver(frame)
        connection.unlead()
        self._wake_next()

    def _wake_next(self) -> None:
        """The lead is free: those who wait try to take it.

        All of them, since a signal may have carried one away before it could say so.
        """
        with self._state:
            for waiter in self._waiters.values():
                if waiter.answer is None:
                    _release(waiter)

    def _end(self, error: ShmrpcError) -> None:
        """The connection is over: everybody learns it."""
        with self._state:
            if self._ended is None:
                self._ended = error
            for waiter in self._waiters.values():
                if waiter.answer is None and waiter.error is None:
                    waiter.error = lost_call(error)
                    _release(waiter)

    def _explain(self, name: str, error: BaseException) -> BaseException:
        """The error for the caller of an endpoint."""
        if isinstance(error, _core.ChannelError):
            assert self._connection is not None
            if self._ended is None:
                self._end(self._connection.fault(error))
            return ended_call(self._ended) if self._ended is not None else error
        return unsendable(name, error) if isinstance(error, _core.Oversize) else error


def _release(waiter: _Waiter) -> None:
    """Wakes a waiter, who may have been woken before. Under the state's lock."""
    if waiter.wake.locked():
        waiter.wake.release()


def _result(frame: Frame) -> bytes:
    if frame[0] == frames.RESULT:
        return frame[2]
    raise frames.decode_failure(frame[2])


def connect(
    service: str,
    *,
    timeout: float = DEFAULT_CONNECT_TIMEOUT,
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    spin: float = DEFAULT_SPIN,
) -> Client:
    """A client for threads: ``with shmrpc.sync.connect("calculator") as client: client.add(1, 2)``.

    The options are those of :func:`shmrpc.connect`.
    """
    check_options(max_frame=max_frame, spin=spin, timeout=timeout)
    return Client(service, timeout, Settings(max_frame, spin, blocking=True), codec)
