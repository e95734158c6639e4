"""A call with streams in an event loop: tasks await its items, and a task sends the items of each source."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from shmrpc.client.aio.session import LoopSession
from shmrpc.client.common.stream_exchange import StreamExchange
from shmrpc.client.common.uploads import SourceUpload
from shmrpc.service.call import Call
from shmrpc.streams.items import ItemRun
from shmrpc.streams.receiving import IncomingStream
from shmrpc.transport.connection import Frame
from shmrpc.transport.errors import ChannelError
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec


class LoopStreamExchange(StreamExchange):
    """A call with streams, which takes the place of a future among a session's pending calls."""

    _session: LoopSession
    _sources: list[_SourceTask]

    def __init__(self, session: LoopSession, call: Call, *, streams: bool) -> None:
        super().__init__(session, call, streams=streams)
        self.incoming = IncomingStream(self._grant, extra=session.connection.extra_credit)
        #: Function that receives the items in the ring, without waiting; None if the reply is no stream.
        self.pull: Callable[[], object] | None = None
        if streams:
            self.pull = functools.partial(session.shared_memory.pull, call.id)

    def _grant(self, size: int) -> None:
        """Grant the handler credit for further items of the reply."""
        with contextlib.suppress(ChannelError):
            self._session.send(frames.CREDIT, self.call.id, frames.encode_credit(size))

    def add_item(self, body: Body) -> None:
        """Store an item of the reply until it is read."""
        self.incoming.feed((0, body))

    def finish(self) -> None:
        """Close the uploads, and end the stream of items for its reader."""
        super().finish()
        self.incoming.finish(self.error)  # Last: afterwards done() is True, and the session calls no further method.

    def done(self) -> bool:
        """Return True if no further frame is expected."""
        return self.incoming.ended

    def set_result(self, frame: Frame) -> None:
        """Handle the final reply."""
        self.feed(frame[0], frame[2])

    def set_exception(self, error: BaseException) -> None:
        """Handle the error that takes the place of a final reply."""
        self.fail(error)

    def begin(self, kind: int, body: Body) -> None:
        """Send the request. The caller must call close() afterwards, also if this raises."""
        session, call = self._session, self.call
        session.connection.check_loop()
        session.begin_stream(call, self)
        if self.streams:
            session.shared_memory.route(call.id, self.incoming.feed)
        session.begin(kind, call.id, body)
        session.shared_memory.listen()

    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        """Start the task that sends the items of a source; return its upload."""
        self._sources.append(_SourceTask(self._session, self.call, codec, number, source))
        return self._sources[-1]

    async def wait_ready(self) -> bool:
        """Wait for items; see the base class. Raises the error of a failed call only once."""
        return await self.incoming.wait_ready(self.pull)

    def take_runs(self) -> list[ItemRun]:
        """Remove the received items and return them. Items taken before count as consumed."""
        return self.incoming.take_runs()

    async def close(self) -> None:
        """End the call and its sources, and wait for the tasks of the sources."""
        try:
            tasks = [upload.task for upload in self._sources]
            for upload in self._sources:
                upload.close()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self.end()

    def end(self) -> None:
        """End the call without waiting; see the base class."""
        super().finish()
        for upload in self._sources:
            del upload.task  # The task keeps the error of its source, whose traceback refers to this object.
        self._drop_uploads()
        self._session.end_stream(self.call)
        self.incoming.finish()
        self.incoming.drop()  # The connection refers to this object until another stream is read.
        self.error = None  # Its traceback refers to the frames of its readers.


class _SourceTask(SourceUpload):
    """An upload that runs in a task."""

    def __init__(self, session: LoopSession, call: Call, codec: Codec, number: int, source: Any) -> None:
        super().__init__(session, call, codec, number)
        self._closed = False
        self.task = asyncio.ensure_future(self._send_all(source))
        self.task.add_done_callback(self._on_done)

    def close(self) -> None:
        """Cancel the task. Idempotent: does not interrupt the cleanup of a cancelled source."""
        if not self._closed:
            self.task.cancel()
            self._closed = True

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Report the error of the ended task, if any, to the handler."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
