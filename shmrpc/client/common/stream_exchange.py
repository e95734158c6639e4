"""The state of a call with streams: its items, its uploads and its end.

A driver waits for frames and feeds them to the exchange, in an event loop or in threads.
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
    """A call with streams, from its request to its end.

    ``streams``: True if the server replies with a stream, False if it replies with one result.
    """

    def __init__(self, session: Session[Any], call: Call, *, streams: bool) -> None:
        self.call = call
        self.streams = streams
        #: Open streams to the server, by number.
        self.uploads: dict[int, Upload] = {}
        #: Body of the result; nil after a stream; None before the final reply.
        self.body: Body | None = None
        #: Error that takes the place of a final reply.
        self.error: BaseException | None = None
        self._session = session
        #: Uploads that read their items from a source.
        self._sources: list[Any] = []
        self._has_consumed_sources = False

    @property
    def ended(self) -> bool:
        """True if no further frame is expected."""
        return self.body is not None or self.error is not None

    def feed(self, opcode: int, body: Body) -> None:
        """Handle a received frame. Raises RemoteProtocolError for a frame that no server may send here.

        Stores the error of a failed call as ``error``, and does not raise it.
        """
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
                return  # The upload has ended; the server had not received the end when it sent the frame.
            if kind == frames.CREDIT:
                upload.grant(size)
            else:
                upload.close()
        else:
            check_unexpected_frame(opcode, self.call.id, body, under_way=True)

    def fail(self, error: BaseException) -> None:
        """End the call with an error, unless it has ended, and close the uploads."""
        if not self.ended:
            self.error = error
        self.finish()  # Also after the final reply: a signal handler may have raised between storing it and finish().

    @abstractmethod
    def add_item(self, body: Body) -> None:
        """Store an item of the reply until it is read."""

    def finish(self) -> None:
        """Handle the end of the call: close the uploads, because the handler takes no more items."""
        for upload in list(self.uploads.values()):
            upload.close()

    @property
    def has_consumed_sources(self) -> bool:
        """True if an item was requested from a source, so that the call cannot be repeated."""
        return self._has_consumed_sources or any(upload.outgoing.has_started for upload in self._sources)

    async def start(self, kind: int, body: Body, codec: Codec, sources: Sequence[Source]) -> None:
        """Send the request, and wait for the first item or the end. Closes the exchange if this raises.

        Raises the error of a failed source if there is one, else the error of the call.
        """
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
        """Send the request. The caller must call close() afterwards, also if this raises."""

    @abstractmethod
    def _add_source(self, codec: Codec, number: int, source: Any) -> SourceUpload:
        """Create the upload of a source."""

    @abstractmethod
    async def wait_ready(self) -> bool:
        """Wait for items. Returns True if there are any, False at the end. Raises the error of a failed call instead.

        Counts items taken before as consumed, and returns their credit before waiting, because the server may have none
        left.
        """

    @abstractmethod
    def take_runs(self) -> list[ItemRun]:
        """Remove the received items and return them."""

    @overload
    def pop_source_error(self, error: Exception) -> Exception: ...
    @overload
    def pop_source_error(self, error: BaseException) -> BaseException: ...
    def pop_source_error(self, error: BaseException) -> BaseException:
        """Return the error of a failed source if there is one, else ``error``.

        The source's error is returned once and not kept, because its traceback refers to this object.
        """
        if isinstance(error, Exception):
            for upload in self._sources:
                if upload.error is not None:
                    error, upload.error = upload.error, None
                    return error
        return error

    @abstractmethod
    async def close(self) -> None:
        """End the call and its sources, and wait for the sources. Cancels a handler that is still running."""

    @abstractmethod
    def end(self) -> None:
        """End the call without waiting; its sources must have ended. Cancels a handler that is still running."""

    def _drop_uploads(self) -> None:
        """Discard the uploads, which refer to the connection's channel."""
        self._has_consumed_sources = self.has_consumed_sources
        self._sources.clear()
        self.uploads.clear()


def check_unexpected_frame(opcode: int, call_id: int, body: Body, *, under_way: bool) -> None:
    """Raise RemoteProtocolError for a frame that no server sends, and for a reply; accept a late frame of a stream.

    ``under_way``: True if the call is in flight and has one result. False if the call has ended, whose last frames may
    arrive later.
    """
    kind = opcode & 0xFF
    if opcode == frames.ITEM and under_way:
        raise RemoteProtocolError(f"it sent an item for call {call_id}, which has one result")
    if kind == frames.CREDIT:
        _decode_credit(body)
    elif kind != frames.STOP and opcode not in (frames.ITEM, frames.METADATA):
        raise RemoteProtocolError(f"it sent opcode {opcode:#x}, which no server sends")


def _decode_credit(body: Body) -> int:
    """Return the bytes of a CREDIT frame. Raises RemoteProtocolError for an invalid one."""
    size = frames.decode_credit(body)
    if size is None:
        raise RemoteProtocolError("it sent credit that is no number of bytes")
    return size
