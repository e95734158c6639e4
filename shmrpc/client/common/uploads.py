"""The streams of a call to the server."""

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
        """Adds credit: the handler has consumed this many bytes."""
        ...

    def close(self) -> None:
        """Ends it: the handler takes no more. Again: nothing."""
        ...


class SourceUpload(ABC):
    """One of what a source yields. A driver runs :meth:`_send_all`."""

    def __init__(self, session: Session[Any], call: Call, codec: Codec, number: int) -> None:
        self.outgoing = make_outgoing(session, call, number)
        self.grant = self.outgoing.grant
        #: What the source raised, or what of it could not be sent.
        self.error: Exception | None = None
        #: Whether the source has ended, of which the handler is told: what is raised from then on is not its failure.
        self._is_complete = False
        self._session = session
        self._call = call
        self._codec = codec
        self._number = number

    @abstractmethod
    def close(self) -> None:
        """Ends it: the handler takes no more. Again: nothing."""

    async def _send_all(self, source: Any) -> None:
        """Sends what a source yields, and its end."""
        await self.outgoing.pump(source, self._codec.encoder, UNSENDABLE)
        self._is_complete = True
        self._session.send(opcode(frames.END, self._number), self._call.id, frames.NIL)

    def _fail(self, error: BaseException) -> None:
        """Tells the handler, which would wait for ever, what the stream has failed with."""
        if isinstance(error, ChannelError):
            return  # The call itself says why.
        if isinstance(error, Exception):
            self.error = send_error(self._call.endpoint, error)
        with contextlib.suppress(ChannelError, Backlog):
            body = encode_failure(error, self._session.connection.max_frame)
            self._session.send(opcode(frames.ABORT, self._number), self._call.id, body)


def make_outgoing(session: Session[Any], call: Call, number: int) -> OutgoingStream:
    """The sending end of a stream of this number. It has no credit: the handler gives the first when it begins."""
    return OutgoingStream(session.sender(opcode(frames.ITEM, number), call.id, 0))
