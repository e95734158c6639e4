"""A call with streams: what may come of it, what may still be sent, and how it has ended.

Frames are given to it and taken from it: how one waits for them is a driver's, of a loop or of threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, overload

from shmrpc.client.common.requests import Source, result_body, store_metadata
from shmrpc.client.common.session import Session
from shmrpc.client.common.uploads import SourceUpload, Upload
from shmrpc.errors import DecodeError, RemoteProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.streams.items import ItemRun
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec


class StreamExchange(ABC):
    """A call with streams. A driver gives it each frame that comes, and sends what its uploads may.

    ``streams``: whether the server answers with a stream; else with one result.
    """

    def __init__(self, session: Session[Any], call: Call, *, streams: bool) -> None:
        self.call = call
        self.streams = streams
        #: The streams to the server that are under way, by number.
        self.uploads: dict[int, Upload] = {}
        #: The final answer: the body of the result, nil after a stream.
        self.body: Body | None = None
        #: Why there is no final answer.
        self.error: BaseException | None = None
        self._session = session
        #: Those of the uploads that have a source.
        self._sources: list[Any] = []
        self._has_consumed_sources = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.body is not None or self.error is not None

    def feed(self, opcode: int, body: Body) -> None:
        """Takes a frame that has come. Raises RemoteProtocolError for one that no server may send here."""
        kind, number = opcode & 0xFF, opcode >> 8
        if opcode == frames.ITEM and self.streams:
            self.add_item(body)
        elif opcode in frames.ANSWERS:
            try:
                self.body = result_body((opcode, self.call.id, body), self.call)
            except ShmrpcError as error:
                self.error = error
            self.finish()
        elif opcode == frames.METADATA:
            try:
                store_metadata(body, self.call)
            except DecodeError as error:
                raise RemoteProtocolError(str(error)) from None
        elif kind in (frames.CREDIT, frames.STOP):
            size = _decode_credit(body) if kind == frames.CREDIT else 0
            upload = self.uploads.get(number)
            if upload is None:
                return  # It has ended, and this is too late.
            if kind == frames.CREDIT:
                upload.grant(size)
            else:
                upload.close()
        else:
            check_unexpected_frame(opcode, self.call.id, body, under_way=True)

    def fail(self, error: BaseException) -> None:
        """Ends the call: there will be no answer."""
        if not self.ended:
            self.error = error
        self.finish()  # Also after the answer: the handler of a signal may have come between that and its end.

    @abstractmethod
    def add_item(self, body: Body) -> None:
        """Keeps an item of the answer until it is read."""

    def finish(self) -> None:
        """Closes the uploads: the handler takes no more of them."""
        for upload in list(self.uploads.values()):
            upload.close()

    @property
    def has_consumed_sources(self) -> bool:
        """Whether items of the sources are gone: the call cannot be made again."""
        return self._has_consumed_sources or any(upload.outgoing.has_started for upload in self._sources)

    async def start(self, kind: int, body: Body, codec: Codec, sources: Sequence[Source]) -> None:
        """Begins, and waits for the first item or the end. Closes it if that raises."""
        try:
            for number, source in sources:
                self.uploads[number] = self._add_source(codec, number, source)
            self.begin(kind, body)
            await self.wait_ready()
        except BaseException as error:
            error = self.pop_source_error(error)
            await self.close()
            raise error from error.__cause__

    @abstractmethod
    def begin(self, kind: int, body: Body) -> None:
        """Sends the request. Close it afterwards, also if this raises."""

    @abstractmethod
    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        """A stream to the server, of what a source yields."""

    @abstractmethod
    async def wait_ready(self) -> bool:
        """Waits until there are items: True; or the end: False, or its error raised, once.

        What was taken before has been consumed. Its credit goes back before the wait: the server may have none left.
        """

    @abstractmethod
    def take_runs(self) -> list[ItemRun]:
        """The items that are there."""

    @overload
    def pop_source_error(self, error: Exception) -> Exception: ...
    @overload
    def pop_source_error(self, error: BaseException) -> BaseException: ...
    def pop_source_error(self, error: BaseException) -> BaseException:
        """What went wrong with a source, if that is why there is an error; else the error.

        Once: the traceback of what is raised has whoever raises it, and so us, and we do not keep it.
        """
        if isinstance(error, Exception):
            for upload in self._sources:
                if upload.error is not None:
                    error, upload.error = upload.error, None
                    return error
        return error

    @abstractmethod
    async def close(self) -> None:
        """Ends the call and its sources: a handler that has not ended is cancelled."""

    @abstractmethod
    def end(self) -> None:
        """Ends the call, whose sources have ended."""

    def _drop_uploads(self) -> None:
        """Forgets the uploads, which keep the connection's channel."""
        self._has_consumed_sources = self.has_consumed_sources
        self._sources.clear()
        self.uploads.clear()


def check_unexpected_frame(opcode: int, call_id: int, body: Body, *, under_way: bool) -> None:
    """Checks a frame for a call that has ended, or if it is ``under_way``, for one with one result and no streams.

    It may have come too late for what has ended. Raises RemoteProtocolError for what no server sends.
    """
    kind = opcode & 0xFF
    if opcode == frames.ITEM and under_way:
        raise RemoteProtocolError(f"it sent an item for call {call_id}, which has one result")
    if kind == frames.CREDIT:
        _decode_credit(body)
    elif kind != frames.STOP and opcode not in (frames.ITEM, frames.METADATA):
        raise RemoteProtocolError(f"it sent opcode {opcode:#x}, which no server sends")


def _decode_credit(body: Body) -> int:
    size = frames.decode_credit(body)
    if size is None:
        raise RemoteProtocolError("it sent credit that is no number of bytes")
    return size
