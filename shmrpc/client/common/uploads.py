"""The streams that a call sends to the server."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any, Protocol

from shmrpc.client.common.call_errors import send_error
from shmrpc.client.common.session import Session
from shmrpc.service.call import Call
from shmrpc.streams.sending import OutgoingStream
from shmrpc.transport.errors import Backlog, ChannelError
from shmrpc.values.encode_errors import UNSENDABLE
from shmrpc.wire import frames
from shmrpc.wire.codec import Codec
from shmrpc.wire.failure import encode_failure
from shmrpc.wire.frames import opcode


class Upload(Protocol):
    """A stream to the server."""

    def grant(self, size: int, /) -> None:
        """Add credit: the handler has consumed ``size`` bytes."""
        ...

    def close(self) -> None:
        """End the stream: the handler takes no more items. Idempotent."""
        ...


class SourceUpload(ABC):
    """A stream of the items that a source yields. A driver runs :meth:`_send_all`."""

    def __init__(self, session: Session[Any], call: Call, codec: Codec, number: int) -> None:
        self.outgoing = make_outgoing(session, call, number)
        self.grant = self.outgoing.grant
        #: Error that the source raised, or that sending one of its items raised.
        self.error: Exception | None = None
        #: True once the end of the stream was sent. Errors of the source after that do not fail the handler.
        self._is_complete = False
        self._session = session
        self._call = call
        self._codec = codec
        self._number = number

    @abstractmethod
    def close(self) -> None:
        """End the stream: the handler takes no more items. Idempotent."""

    async def _send_all(self, source: Any) -> None:
        """Send the items that a source yields, close the source, and send the end of the stream.

        Raises the errors of :meth:`OutgoingStream.pump`; the driver passes them to :meth:`_fail`.
        """
        await self.outgoing.pump(source, self._codec.encoder, UNSENDABLE)
        self._is_complete = True
        self._session.send(opcode(frames.END, self._number), self._call.id, frames.NIL)

    def _fail(self, error: BaseException) -> None:
        """Record the error of the stream, and report it to the handler, which would otherwise wait forever.

        Does nothing for a ChannelError, which the call raises itself. Records no error that is no Exception.
        """
        if isinstance(error, ChannelError):
            return  # The call raises this error itself.
        if isinstance(error, Exception):
            self.error = send_error(self._call.endpoint, error)
        with contextlib.suppress(ChannelError, Backlog):
            body = encode_failure(error, self._session.connection.max_frame)
            self._session.send(opcode(frames.ABORT, self._number), self._call.id, body)


def make_outgoing(session: Session[Any], call: Call, number: int) -> OutgoingStream:
    """Return the sending end of stream ``number``, without credit: the handler grants the first credit."""
    return OutgoingStream(session.sender(opcode(frames.ITEM, number), call.id, 0))
