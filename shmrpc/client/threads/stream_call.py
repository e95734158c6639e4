"""A call whose streams the program writes and reads itself, in threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.stream_call import StreamCallEngine
from shmrpc.client.threads.coroutine_runner import run
from shmrpc.client.threads.stream_exchange import PAUSE, ThreadStreamExchange
from shmrpc.errors import EndOfStream, LocalProtocolError, ShmrpcError
from shmrpc.streams.credit import SendWindow, weight
from shmrpc.transport.errors import Backlog, Oversize
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.frames import opcode

_W = TypeVar("_W")
_R = TypeVar("_R")


@public_class("shmrpc.sync.StreamCall", "client.open(endpoint)", CallEngine)
class StreamCall(StreamCallEngine[_W, _R]):
    """A call whose streams the program writes and reads itself; made by :meth:`shmrpc.sync.Client.open`.

    ::

        with client.open("chat") as call:
            call.write("hello")
            print(call.read())

    Leaving the block ends the call and cancels a handler that is still running. One thread may write while another one
    reads. Several writers are serialized, and so are several readers. An exception that a signal handler raises in a
    method ends the call, so that no item in the middle of a stream is lost. A method that waits raises
    CallStopped if the client is stopped. After the block, write() and read() raise EndOfStream, and so does result()
    if the result had not come.
    """

    _with_keyword, _await_keyword = "with", ""
    _stream_exchange: ThreadStreamExchange

    def __init__(
        self, client: CallEngine[Any], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__(client, name, kind, args, kwargs)
        self._writing, self._reading = _core.ReentrantLock(), _core.ReentrantLock()
        #: Credit of the written stream; closed once the handler takes no more items.
        self._window = SendWindow()

    def __enter__(self) -> Self:
        """Make the call; see :meth:`shmrpc.StreamCall.__aenter__`. Also raises CallStopped."""
        run(lambda: self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return run(lambda: self._stack.__aexit__(kind, error, trace))

    def write(self, item: _W) -> None:
        """Send an item, after waiting while the handler has too many; see :meth:`shmrpc.StreamCall.write`."""
        run(lambda: self._write(item))

    def done_writing(self) -> None:
        """End the written stream; see :meth:`shmrpc.StreamCall.done_writing`."""
        run(lambda: self._done_writing())

    def read(self) -> _R:
        """Wait for the next item and return it; see :meth:`shmrpc.StreamCall.read`."""
        return run(lambda: self._read())

    def result(self) -> _R:
        """Wait for the result of an endpoint that returns one; see :meth:`shmrpc.StreamCall.result`."""
        return run(lambda: self._result())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _R:
        try:
            return run(lambda: self._read())
        except EndOfStream:
            raise StopIteration from None

    def _open_upload(self) -> None:
        """Add the credit of the stream to the uploads, closed if the endpoint takes no stream."""
        self._window.closed = not self._accepts_stream
        self._stream_exchange.uploads[1] = self._window

    def _write_lock(self) -> _StreamLock:
        """Return a new context manager around the lock of the writers."""
        return _StreamLock(self._writing, self._stream_exchange)

    def _read_lock(self) -> _StreamLock:
        """Return a new context manager around the lock of the readers."""
        return _StreamLock(self._reading, self._stream_exchange)

    async def _wait_writable(self) -> bool:
        """Receive frames until another item may be sent; return False if the handler takes no more items."""
        self._stream_exchange.receive_all()
        while not self._can_proceed():
            self._stream_exchange.wait(self._can_proceed)
        return not self._window.closed

    def _can_proceed(self) -> bool:
        """Return True if another item may be sent, or if the handler takes no more."""
        return self._window.closed or self._window.is_open

    async def _send_item(self, body: Body) -> bool:
        """Receive frames until there is credit for an item, and send it; return False if the handler takes no more.

        Raises ChannelError, and Oversize and Backlog, which take no credit.
        """
        size = weight(body)
        self._stream_exchange.receive_all()
        while not self._window.try_spend(size):
            if self._window.closed:
                return False
            self._stream_exchange.wait(self._can_proceed)
        try:
            self._session.send(opcode(frames.ITEM, 1), self._call.id, body)
        except (Oversize, Backlog):
            self._window.grant(size)
            raise
        return True


class _StreamLock:
    """A lock for writers or readers. An exception that a signal handler raises inside ends the call."""

    def __init__(self, lock: _core.ReentrantLock, stream_exchange: ThreadStreamExchange) -> None:
        self._lock = lock
        self._stream_exchange = stream_exchange

    async def __aenter__(self) -> None:
        """Block the thread until it has the lock."""
        while (guard := self._lock.try_acquire()) is None:
            time.sleep(PAUSE)  # noqa: ASYNC251
        self._guard = guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Ends the call first after an exception that is no ShmrpcError."""
        try:
            if error is not None and not isinstance(error, ShmrpcError):
                name, what = self._stream_exchange.call.endpoint, type(error).__name__
                self._stream_exchange.fail(LocalProtocolError(f"{name}() was ended by {what} in this process"))
                self._stream_exchange.end()
        finally:
            self._guard.release()
