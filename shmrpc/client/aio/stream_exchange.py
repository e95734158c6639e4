"""A call with streams in an event loop: its items are awaited, and each of its sources has a task."""

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
    """A call with streams. Among a session's pending calls it stands where a future does."""

    _session: LoopSession
    _sources: list[_SourceTask]

    def __init__(self, session: LoopSession, call: Call, *, streams: bool) -> None:
        super().__init__(session, call, streams=streams)
        self.incoming = IncomingStream(self._grant, extra=session.connection.extra_credit)
        #: Brings what is there already.
        self.pull: Callable[[], object] | None = None
        if streams:
            self.pull = functools.partial(session.shared_memory.pull, call.id)

    def _grant(self, size: int) -> None:
        with contextlib.suppress(ChannelError):
            self._session.send(frames.CREDIT, self.call.id, frames.encode_credit(size))

    def add_item(self, body: Body) -> None:
        """Keeps an item of the answer until it is read."""
        self.incoming.feed((0, body))

    def finish(self) -> None:
        """Closes the uploads, and lets whoever reads come to the end."""
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

    def begin(self, kind: int, body: Body) -> None:
        """Sends the request. Close it afterwards, also if this raises."""
        session, call = self._session, self.call
        session.connection.check_loop()
        session.begin_stream(call, self)
        if self.streams:
            session.shared_memory.route(call.id, self.incoming.feed)
        session.begin(kind, call.id, body)
        session.shared_memory.listen()

    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        self._sources.append(_SourceTask(self._session, self.call, codec, number, source))
        return self._sources[-1]

    async def wait_ready(self) -> bool:
        """Waits until there are items: True; or the end: False, or its error raised, once."""
        return await self.incoming.wait_ready(self.pull)

    def take_runs(self) -> list[ItemRun]:
        """The items that are there. Those that were taken before have been consumed."""
        return self.incoming.take_runs()

    async def close(self) -> None:
        """Ends the call and its sources: a handler that has not ended is cancelled."""
        try:
            tasks = [upload.task for upload in self._sources]
            for upload in self._sources:
                upload.close()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self.end()

    def end(self) -> None:
        """Ends the call, whose sources have ended."""
        super().finish()
        for upload in self._sources:
            del upload.task  # It has what the source raised, whose traceback has us.
        self._drop_uploads()
        self._session.end_stream(self.call)
        self.incoming.finish()
        self.incoming.drop()  # The connection knows it until another stream is read.
        self.error = None  # Its traceback has whoever was told of it.


class _SourceTask(SourceUpload):
    """A task sends what the source yields."""

    def __init__(self, session: LoopSession, call: Call, codec: Codec, number: int, source: Any) -> None:
        super().__init__(session, call, codec, number)
        self._closed = False
        self.task = asyncio.ensure_future(self._send_all(source))
        self.task.add_done_callback(self._on_done)

    def close(self) -> None:
        """Ends it. Again: nothing, so that a source that is cleaning up is let alone."""
        if not self._closed:
            self.task.cancel()
            self._closed = True

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
