"""A call with streams in an event loop: its items are awaited, and each of its sources has a task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmrpc.client.conversation import Conversation
from shmrpc.client.requests import Source, unsendable
from shmrpc.client.session import Session
from shmrpc.service.call import Call
from shmrpc.streams.receiving import Incoming
from shmrpc.streams.sending import Outgoing
from shmrpc.transport.base import Frame
from shmrpc.transport.errors import Backlog, ChannelError
from shmrpc.values.unsendable import UNSENDABLE
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.frames import opcode


class LoopConversation(Conversation):
    """A call with streams. Among a session's pending calls it stands where a future does."""

    def __init__(self, session: Session, call: Call, *, streams: bool) -> None:
        super().__init__(call, streams=streams)
        self._session = session
        self.incoming = Incoming(self._grant)
        #: Brings what is there already.
        self.pull: Callable[[], object] | None = None
        if streams:
            self.pull = functools.partial(session.sharing.pull, call.id, self.incoming.feed)
        self._tasks: list[_SourceTask] = []
        self._is_spent = False
        #: What a source raised, or what of it could not be sent.
        self.source_error: Exception | None = None

    @property
    def is_spent(self) -> bool:
        """Whether items of the sources are gone: the call cannot be made again."""
        return self._is_spent or any(task.outgoing.touched for task in self._tasks)

    def _grant(self, size: int) -> None:
        with contextlib.suppress(ChannelError):
            self._session.send(frames.CREDIT, self.call.id, frames.encode_credit(size))

    def take_item(self, body: Body) -> None:
        """Keeps an item of the answer until it is read."""
        self.incoming.feed((0, body))

    def finish(self) -> None:
        """Closes the uploads; whoever reads comes to the end."""
        super().finish()
        self.incoming.finish(self.error)  # At last: with it we are done, and nobody finishes us again.

    def done(self) -> bool:
        """Whether nothing more is expected."""
        return self.incoming.ended

    def cancelled(self) -> bool:
        """Never: a reader that has enough says so to the server."""
        return False

    def set_result(self, frame: Frame) -> None:
        """Takes the final answer."""
        self.feed(frame[0], frame[2])

    def set_exception(self, error: BaseException) -> None:
        """Takes the reason why there will be no final answer."""
        self.fail(error)

    def begin(self, kind: int, body: Body, codec: Codec, sources: Sequence[Source] = ()) -> None:
        """Sends the request, and from then on what the sources yield. Close it afterwards, also if this raises."""
        session, call = self._session, self.call
        session.connection.check_loop()
        session.begin_stream(call, self)
        session.begin(kind, call.id, body)
        for number, source in sources:
            task = _SourceTask(self, session, codec, number, source)
            self._tasks.append(task)
            self.uploads[number] = task
        session.sharing.listen()

    async def start(self, kind: int, body: Body, codec: Codec, sources: Sequence[Source]) -> None:
        """Begins, and waits for the first item or the end. Closes it if that raises."""
        try:
            self.begin(kind, body, codec, sources)
            await self.incoming.ready(self.pull)
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                error = self.take_source_error() or error
            raise error from error.__cause__

    def take_source_error(self) -> Exception | None:
        """What went wrong with a source, None to whoever asks again.

        The traceback of what is raised has who raises it, and so us: we do not keep it.
        """
        error, self.source_error = self.source_error, None
        return error

    async def close(self) -> None:
        """Ends the call and its sources: a handler that has not ended is cancelled."""
        try:
            for task in self._tasks:
                task.close()
            if self._tasks:
                await asyncio.wait([task.task for task in self._tasks])
        finally:
            self.end()

    def end(self) -> None:
        """Ends the call, whose sources have ended."""
        self._is_spent = self.is_spent
        for task in self._tasks:
            del task.task  # It has what the source raised, whose traceback has us.
        self._tasks.clear()
        self.uploads.clear()
        self._session.end_stream(self.call)
        self.incoming.finish()
        self.incoming.drop()  # The connection knows it until another stream is read.
        self.error = None  # Its traceback has whoever was told of it.


class _SourceTask:
    """A stream to the server: a task that sends what a source yields."""

    def __init__(
        self, conversation: LoopConversation, session: Session, codec: Codec, number: int, source: Any
    ) -> None:
        self._conversation = conversation
        self._session = session
        self._number = number
        # No credit: the handler gives the first when it begins.
        self.outgoing = Outgoing(session.sharing.sender(opcode(frames.ITEM, number), conversation.call.id, 0))
        self.grant = self.outgoing.grant
        self._closed = False
        self.task = asyncio.ensure_future(self._send_all(source, codec))
        self.task.add_done_callback(self._tell)

    def close(self) -> None:
        """Ends it. Again: nothing, so that a source that is cleaning up is let alone."""
        if not self._closed:
            self._closed = True
            self.task.cancel()

    async def _send_all(self, source: Any, codec: Codec) -> None:
        await self.outgoing.pump(source, codec.encode, UNSENDABLE)
        self._session.send(opcode(frames.END, self._number), self._conversation.call.id, frames.NIL)

    def _tell(self, task: asyncio.Task[None]) -> None:
        """If the stream failed the handler is told, which would wait for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, ChannelError):
            return  # The call itself says why.
        call, session = self._conversation.call, self._session
        if isinstance(error, Exception):
            self._conversation.source_error = unsendable(call.endpoint, error)
        with contextlib.suppress(ChannelError, Backlog):
            body = frames.encode_failure(error, session.connection.max_frame)
            session.send(opcode(frames.ABORT, self._number), call.id, body)
