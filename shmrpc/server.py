"""Serving: requests decoded, endpoints run, answers sent."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from shmrpc import _core
from shmrpc.eager import Eager, Suspended
from shmrpc.errors import LocalProtocolError, ShmrpcError
from shmrpc.options import DEFAULT_SPIN, check_options
from shmrpc.protocol import frames
from shmrpc.protocol.codec import Codec, CodecName, get_codec
from shmrpc.protocol.frames import Rejected
from shmrpc.service import Endpoint, Service
from shmrpc.signature import Arguments
from shmrpc.transport.shm.handshake import Settings
from shmrpc.transport.shm.server import Listener, Peer

logger = logging.getLogger("shmrpc.server")

#: Runs one request; the body of the result, or None if the answer comes later.
RunRequest = Callable[[bytes, Peer, int], bytes | None]

#: Opcode 0 is a result, which no client sends: the poller uses it to report a peer that broke the rules.
_BROKEN: Final = frames.RESULT


class Server:
    """A service that is being served; made by :func:`serve`, used as ``async with``."""

    def __init__(self, service: Service, settings: Settings, codec: CodecName) -> None:
        self.service = service
        self._settings = settings
        self._codec: Codec = get_codec(codec)
        self._listener: Listener | None = None

    async def __aenter__(self) -> Server:
        """Begins to serve.

        Raises ServiceInUse if another live server has the name, LocalProtocolError if the directory where
        services meet is not safely this user's, or if this server is serving already.
        """
        if self._listener is not None:
            raise LocalProtocolError(f"this server of {self.service.name!r} is serving already")
        endpoints = list(self.service.endpoints.values())
        self._eager = Eager()
        self._suspended = 0
        #: The last result, until its answer is sent: freeing a large one takes as long as decoding half of it.
        self._kept: list[Any] = [None]
        self._handlers = self._handler_table(endpoints)
        names = [endpoint.name for endpoint in endpoints]
        self._listener = Listener(self.service.name, names, self._settings, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops: the name is free, clients are told, suspended handlers are cancelled. Again: nothing."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        tasks = [task for peer in listener.peers for task in peer.tasks]
        for task in tasks:
            task.cancel()
        listener.close("the server stopped")
        self._eager.close()
        if tasks:
            await asyncio.wait(tasks)

    def pump(self) -> None:
        """Takes frames and answers them until there are no more. For the listener."""
        assert self._listener is not None
        inbox = self._listener.inbox
        unknown: RunRequest = self._unknown
        find, send_next, kept = self._handlers.get, inbox.send_next, self._kept
        frame: Any = inbox.next()
        while frame is not None:
            peer, opcode, call_id, body = frame
            try:
                answer = find(opcode, unknown)(body, peer, call_id)
                frame = inbox.next() if answer is None else send_next(peer.channel, frames.RESULT, call_id, answer)
                if frame is True:  # A large answer is on its way, and there is something to free meanwhile.
                    kept[0] = None
                    frame = inbox.next()
            except (Exception, asyncio.CancelledError) as error:
                self._fail(peer, call_id, error)
                frame = inbox.next()
            except BaseException as error:  # Ctrl-C, or the endpoint wants the server to exit.
                self._fail(peer, call_id, error)
                raise

    def lost(self, peer: Peer, error: ShmrpcError) -> None:
        """A client is gone: nobody waits for what it asked. For the listener."""
        for task in peer.tasks:
            task.cancel()

    def _handler_table(self, endpoints: Sequence[Endpoint]) -> dict[int, RunRequest]:
        table: dict[int, RunRequest] = {_BROKEN: self._broken}
        for number, endpoint in enumerate(endpoints):
            positional = endpoint.signature.positional_decoder(self._codec)
            keywords = endpoint.signature.keyword_decoder(self._codec)
            table[frames.request_opcode(frames.CALL, number)] = self._runner(endpoint.function, positional)
            table[frames.request_opcode(frames.CALL_KEYWORDS, number)] = self._runner(
                endpoint.function, _one(keywords), _spread(endpoint.function)
            )
        return table

    def _runner(
        self,
        function: Callable[..., Any],
        decode: Callable[[bytes], Sequence[Any]],
        call: Callable[..., Any] | None = None,
    ) -> RunRequest:
        """What runs a request to the function: decode, call, encode."""
        call = call or function
        encode, start, kept = self._codec.encode, self._eager.run, self._kept

        def run(body: bytes, peer: Peer, call_id: int) -> bytes | None:
            kept[0] = result = call(*decode(body))
            try:
                return encode(result)
            except Exception as error:
                raise _unencodable(function, result, error) from None

        def run_async(body: bytes, peer: Peer, call_id: int) -> bytes | None:
            result = start(call(*decode(body)))
            if type(result) is Suspended:
                self._suspend(peer, call_id, function, result.task)
                return None
            kept[0] = result
            try:
                return encode(result)
            except Exception as error:
                raise _unencodable(function, result, error) from None

        return run_async if inspect.iscoroutinefunction(function) else run

    def _suspend(self, peer: Peer, call_id: int, function: Callable[..., Any], task: asyncio.Task[Any]) -> None:
        """Answers when the task has ended. While handlers wait, the loop must turn: no spinning."""
        peer.tasks.add(task)
        self._suspended += 1
        if self._suspended == 1 and self._listener is not None:
            self._listener.inbox.set_spinning(False)
        task.add_done_callback(functools.partial(self._resumed, peer, call_id, function))

    def _resumed(self, peer: Peer, call_id: int, function: Callable[..., Any], task: asyncio.Task[Any]) -> None:
        peer.tasks.discard(task)
        self._suspended -= 1
        if self._suspended == 0 and self._listener is not None:
            self._listener.inbox.set_spinning(True)
        try:
            result = task.result()
            try:
                answer = self._codec.encode(result)
            except Exception as error:
                raise _unencodable(function, result, error) from None
            peer.send(frames.RESULT, call_id, answer)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(peer, call_id, error)
        except BaseException as error:
            self._fail(peer, call_id, error)
            raise

    def _fail(self, peer: Peer, call_id: int, error: BaseException) -> None:
        if isinstance(error, _core.Oversize):
            error = Rejected("size", f"the result is too large: {error}; set max_frame= on both sides")
        if isinstance(error, asyncio.CancelledError):
            error = asyncio.CancelledError("the endpoint was cancelled at the server")
        peer.send(frames.FAILURE, call_id, frames.encode_failure(error, peer.max_frame))

    def _unknown(self, body: Any, peer: Peer, call_id: int) -> bytes | None:
        raise Rejected("endpoint", f"service {self.service.name!r} has no endpoint of this number")

    def _broken(self, body: Any, peer: Peer, call_id: int) -> bytes | None:
        peer.fault("it sent a result" if isinstance(body, bytes) else str(body))
        return None


def _one(decode: Callable[[bytes], Arguments]) -> Callable[[bytes], Sequence[Any]]:
    """Positional and keyword arguments as one argument."""
    return lambda body: (decode(body),)


def _spread(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """The function, to be called with positional and keyword arguments as one argument."""
    return lambda arguments: function(*arguments[0], **arguments[1])


def _unencodable(function: Callable[..., Any], result: Any, error: Exception) -> Rejected:
    name = getattr(function, "__name__", "endpoint")
    return Rejected(
        "encode",
        f"{name}() returned {type(result).__qualname__}, which cannot be sent as MessagePack: {error}",
    )


def serve(
    service: Service,
    *,
    codec: CodecName = "msgspec",
    max_frame: int = frames.DEFAULT_MAX_FRAME,
    spin: float = DEFAULT_SPIN,
) -> Server:
    """Serves a service in the running loop: ``async with shmrpc.serve(calculator): ...``.

    ``codec`` is this side's MessagePack: ``"msgspec"``, or ``"msgpack"`` for the reference package.
    ``max_frame`` is the largest body accepted or sent, in bytes. ``spin`` is the longest that one wait for the
    next request may spin, in microseconds; it does so only while requests come quickly one after another, and
    0 means never.

    Raises ValueError for an option out of range. What entering it raises: :meth:`Server.__aenter__`.
    """
    if not isinstance(service, Service):
        raise TypeError(f"serve() expected a shmrpc.Service, got {type(service).__qualname__}")
    check_options(max_frame=max_frame, spin=spin)
    return Server(service, Settings(max_frame, spin), codec)
