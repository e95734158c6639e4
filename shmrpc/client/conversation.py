"""A call with streams, sans I/O: what may come of it, what may still be sent, and how it has ended."""

from __future__ import annotations

from typing import Protocol

from shmrpc.client.requests import body_of, take_metadata
from shmrpc.errors import DecodeError, RemoteProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.wire import frames
from shmrpc.wire.codec import Body


class Upload(Protocol):
    """A stream to the server."""

    def grant(self, size: int, /) -> None:
        """The handler has consumed this many bytes."""
        ...

    def close(self) -> None:
        """Ends it: the handler takes no more. Again: nothing."""
        ...


class Conversation:
    """A call with streams. A driver gives it each frame that comes, and sends what its uploads may.

    ``streams``: whether the server answers with a stream; else with one result.
    """

    def __init__(self, call: Call, *, streams: bool) -> None:
        self.call = call
        self.streams = streams
        #: The streams to the server that are under way, by number.
        self.uploads: dict[int, Upload] = {}
        #: The final answer: the body of the result, nil after a stream.
        self.body: Body | None = None
        #: Why there is no final answer.
        self.error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.body is not None or self.error is not None

    def feed(self, opcode: int, body: Body) -> None:
        """Takes a frame that has come. Raises RemoteProtocolError for one that no server may send here."""
        kind, number = opcode & 0xFF, opcode >> 8
        if opcode == frames.ITEM and self.streams:
            self.take_item(body)
        elif opcode in frames.ANSWERS:
            try:
                self.body = body_of((opcode, self.call.id, body), self.call)
            except ShmrpcError as error:
                self.error = error
            self.finish()
        elif opcode == frames.METADATA:
            try:
                take_metadata(body, self.call)
            except DecodeError as error:
                raise RemoteProtocolError(str(error)) from None
        elif kind in (frames.CREDIT, frames.STOP):
            size = _credit(body) if kind == frames.CREDIT else 0
            upload = self.uploads.get(number)
            if upload is None:
                return  # It has ended, and this is too late.
            if kind == frames.CREDIT:
                upload.grant(size)
            else:
                upload.close()
        else:
            check_stray(opcode, self.call.id, body, under_way=True)

    def fail(self, error: BaseException) -> None:
        """Ends the call: there will be no answer."""
        if not self.ended:
            self.error = error
        self.finish()  # Also after the answer: the handler of a signal may have come between that and its end.

    def take_item(self, body: Body) -> None:
        """Keeps an item of the answer for whoever reads it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Closes what the handler can take no more of."""
        for upload in list(self.uploads.values()):
            upload.close()


def check_stray(opcode: int, call_id: int, body: Body, *, under_way: bool) -> None:
    """Checks a frame for a call that has ended, or if it is ``under_way``, for one with one result and no streams.

    It may have come too late for what has ended. Raises RemoteProtocolError for what no server sends.
    """
    kind = opcode & 0xFF
    if opcode == frames.ITEM and under_way:
        raise RemoteProtocolError(f"it sent an item for call {call_id}, which has one result")
    if kind == frames.CREDIT:
        _credit(body)
    elif kind != frames.STOP and opcode not in (frames.ITEM, frames.METADATA):
        raise RemoteProtocolError(f"it sent opcode {opcode:#x}, which no server sends")


def _credit(body: Body) -> int:
    size = frames.decode_credit(body)
    if size is None:
        raise RemoteProtocolError("it sent credit that is no number of bytes")
    return size
