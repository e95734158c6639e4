"""A call whose streams the program writes and reads itself, in threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from shmrpc import _core
from shmrpc.client.base import BaseClient
from shmrpc.client.requests import (
    encode_call,
    find_endpoint,
    leave_open,
    not_opened,
    read_result,
    unsendable,
)
from shmrpc.client.sync_conversation import ThreadConversation
from shmrpc.client.sync_reconnect import ThreadLink
from shmrpc.errors import EndOfStream, LocalProtocolError, ShmrpcError
from shmrpc.service.interceptors import enter_all_plain
from shmrpc.streams.credit import SendWindow, weight
from shmrpc.streams.items import unsendable_item
from shmrpc.transport.base import Frame
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, Overtaken
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.frames import opcode

_W = TypeVar("_W")
_R = TypeVar("_R")

#: Seconds between two looks of a thread whether another one has received what it waits for.
PAUSE: Final = 0.001


class StreamCall(Generic[_W, _R]):
    """A call whose streams are written and read by hand; made by :meth:`shmrpc.sync.Client.open`.

    ::

        with client.open("chat") as call:
            call.write("hello")
            print(call.read())

    Leaving the block ends the call: a handler that has not ended is cancelled. One thread may write while another
    reads; several that write take turns, and so do several that read. What the handler of a signal raises while a
    method runs ends the call, so that no item is ever missing between two others.
    """

    def __init__(
        self, client: BaseClient[ThreadLink], name: str, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._name = name
        self._decode = client._codec.decoder(kind)
        self._arguments = args, kwargs
        self._stack = ExitStack()
        #: Whether the block has begun.
        self._has_begun = False
        self._writing, self._reading, self._receiving = _core.Turns(), _core.Turns(), _core.Turns()
        #: For the items that are written; closed once the handler takes no more.
        self._sending = SendWindow()
        self._has_written_all = False

    def __enter__(self) -> Self:
        """Makes the call.

        Raises InvalidArguments for an endpoint without streams or with several to write, EndpointNotFound, EncodeError,
        FrameTooLarge, DeadlineExceeded, CallStopped, or ConnectionLost if the server is gone.
        """
        client = self._client
        self._call = client._new_call(self._name)
        with ExitStack() as stack:
            enter_all_plain(stack, client._options.interceptors, self._call)
            self._begin(stack)
            self._stack = stack.pop_all()
        self._has_begun = True
        return self

    def _begin(self, stack: ExitStack) -> None:
        client, call = self._client, self._call
        session = self._session = client._link.ready(call.deadline)
        call._peer, call.id = session, session.next_id()
        number = find_endpoint(session.service, self._name, session.numbers)
        shape = session.shapes.get(number)
        args, kwargs, self._takes = leave_open(self._name, shape, *self._arguments)
        self._streams = shape is not None and shape.streams
        self._sending.closed = not self._takes
        self._conversation = ThreadConversation(session, call, streams=self._streams)
        self._conversation.uploads[1] = self._sending
        kind, body = encode_call(
            client._codec, number, call, args, kwargs, with_header=client._options.wants_reply_metadata
        )
        stack.callback(self._end)
        while True:
            try:
                self._conversation.begin(kind, body)
                return
            except Overtaken:
                call.id = session.next_id()
            except BaseException as error:
                raise session.unsent(self._name, error) from None

    def _end(self) -> None:
        self._sending.closed = True
        self._session.calls.close(self._call.id)
        self._conversation.fail(EndOfStream(f"{self._name}() was ended by its caller"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)

    @property
    def reply_metadata(self) -> dict[str, str | bytes]:
        """What the handler sends besides, for a client with ``with_options(reply_metadata=...)``.

        What it set before its first item is there with that, the rest at the end.
        """
        self._check_begun()
        return self._call.reply_metadata

    def write(self, item: _W) -> None:
        """Sends an item; waits while the handler has enough of them.

        Raises what the call has failed with, EndOfStream if the handler takes no more items or has ended,
        EncodeError or FrameTooLarge for an item that cannot be sent: the call goes on without it; LocalProtocolError
        for an endpoint that takes no stream, and after :meth:`done_writing`.
        """
        self._check_takes()
        with self._turn(self._writing):
            if self._has_written_all:
                raise LocalProtocolError(f"{self._name}(): write() after done_writing()")
            try:
                body = self._client._codec.encode(item)
            except Exception as error:
                raise unsendable(self._name, unsendable_item(item, error)) from None
            size = weight(body)
            self._receive_all()
            while not self._sending.take(size):
                if self._sending.closed:
                    self._check()
                    raise EndOfStream(f"{self._name}() takes no more items")
                self._wait()
            try:
                self._send(frames.ITEM, body)
            except (Oversize, Backlog) as error:
                self._sending.grant(size)
                raise unsendable(self._name, error) from None

    def done_writing(self) -> None:
        """Says that there are no more items: the handler's loop over them ends. Again: nothing."""
        self._check_takes()
        with self._turn(self._writing):
            if self._has_written_all:
                return
            self._receive_all()
            while not self._sending.closed and not self._sending.is_open:
                self._wait()
            if not self._sending.closed:
                self._send(frames.END, frames.NIL)
            self._has_written_all = True

    def _check_takes(self) -> None:
        self._check_begun()
        if not self._takes:
            raise LocalProtocolError(f"{self._name}() takes no stream: there is nothing to write")

    def _send(self, kind: int, body: Body) -> None:
        try:
            self._session.connection.send(opcode(kind, 1), self._call.id, body)
        except ChannelError as error:
            raise self._session.unsent(self._name, error) from None

    def read(self) -> _R:
        """The next item; waits for it.

        Raises EndOfStream after the last one, what the call has failed with, DecodeError for what cannot be read;
        LocalProtocolError for an endpoint with one result: see :meth:`result`.
        """
        self._check_begun()
        if not self._streams:
            raise LocalProtocolError(f"{self._name}() gives no stream but one result: call.result()")
        with self._turn(self._reading):
            items = self._conversation.items
            while not items and not self._conversation.ended:
                self._wait()
            if not items:
                self._check()
                raise EndOfStream(f"{self._name}() has ended: there are no more items")
            body = items.popleft()
            self._conversation.consume(weight(body))
            return read_result(self._name, self._decode, body)  # type: ignore[no-any-return]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _R:
        try:
            return self.read()
        except EndOfStream:
            raise StopIteration from None

    def result(self) -> _R:
        """The result of an endpoint that has one; waits for it. Raises what the call has failed with.

        The handler gives it as a rule once it has read to the end of what is written: see :meth:`done_writing`.
        """
        self._check_begun()
        if self._streams:
            raise LocalProtocolError(f"{self._name}() gives a stream and no result: call.read()")
        with self._turn(self._reading):
            while not self._conversation.ended:
                self._wait()
        self._check()
        assert self._conversation.body is not None
        return read_result(self._name, self._decode, self._conversation.body)  # type: ignore[no-any-return]

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise not_opened(self._name, "with client.open(...)")

    def _check(self) -> None:
        """Raises what the call has failed with, if it has."""
        if self._conversation.error is not None:
            raise self._conversation.error

    @contextlib.contextmanager
    def _turn(self, turns: _core.Turns) -> Generator[None, None, None]:
        """The turn to write or to read. What the handler of a signal raises meanwhile ends the call."""
        while (turn := turns.take()) is None:
            time.sleep(PAUSE)
        try:
            yield
        except ShmrpcError:
            raise
        except BaseException as error:
            self._conversation.fail(
                LocalProtocolError(f"{self._name}() was ended by {type(error).__name__} in this process")
            )
            self._end()
            raise
        finally:
            turn.end()

    def _wait(self) -> None:
        """Waits until something has come for this call, which this thread or another one has received."""
        self._receive(lambda: self._session.next_frame(self._conversation.pending, self._call), PAUSE)

    def _receive_all(self) -> None:
        """Takes what has come."""
        pending = self._conversation.pending
        while not self._conversation.ended and self._receive(lambda: self._session.poll_frame(pending), 0.0):
            pass

    def _receive(self, take: Callable[[], Frame | None], pause: float) -> bool:
        """Takes one frame if no other thread does; else sleeps ``pause`` seconds. Whether one was taken."""
        if (turn := self._receiving.take()) is None:
            if pause:
                time.sleep(pause)
            return False
        try:
            if self._conversation.ended:
                return False
            frame = take()
            if frame is None:
                return False
            self._conversation.take(frame)
            return True
        except (ShmrpcError, ChannelError) as error:
            self._conversation.fail(self._session.unsent(self._name, error))
            self._end()
            return True
        finally:
            turn.end()
