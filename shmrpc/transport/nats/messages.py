"""Messages of the handshake over NATS. The goodbye is that of :mod:`shmrpc.wire.control`.

A client sends ``hello`` to the service's subject, with a private subject and a secret. One server replies there with
``welcome`` or ``refuse``, and proves by the secret that the reply comes from a reader of the hello. The welcome has a
subject and a secret of the server.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated, Final

import msgspec

from shmrpc.basics.printable import one_line
from shmrpc.errors import RemoteProtocolError
from shmrpc.wire import control
from shmrpc.wire.codec import UNREADABLE
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: Version of these messages, and of the layout of frames in NATS messages; frames have the version control.VERSION.
VERSION: Final = 2
#: Bytes of the secret that each message to an end of a connection begins with.
PROOF: Final = 16
NO_PROOF: Final = bytes(PROOF)
#: Largest size in bytes of a message, which a welcome with many endpoints needs.
MAX_MESSAGE: Final = 1 << 20

_MaxFrame = Annotated[int, msgspec.Meta(ge=MIN_MAX_FRAME, le=MAX_MAX_FRAME)]
_MaxMemory = Annotated[int, msgspec.Meta(ge=control.MIN_MAX_MEMORY, le=control.MAX_MAX_MEMORY)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF, max_length=PROOF)]


class ReplyAddress(msgspec.Struct, tag="hello"):
    """Part of a hello that a refusal needs, and that can be decoded even if the rest cannot."""

    inbox: str = ""
    proof: _Proof = NO_PROOF


class Hello(msgspec.Struct, tag="hello"):
    """Request of a client for a server."""

    #: Versions of these messages, and of frames.
    versions: tuple[int, int]
    #: Largest body that the client accepts, and largest total of the large buffers of one frame, in bytes.
    max_frame: _MaxFrame
    max_memory: _MaxMemory
    #: Seconds within which the client wants a dead peer to be noticed.
    heartbeat: _Seconds
    #: Subject of this end of the connection, and the secret that each message to it begins with.
    inbox: str = ""
    proof: _Proof = NO_PROOF
    #: True if the client sends and reads pickles; both sides must agree.
    pickle: bool = False
    #: Host and process of the client, for error messages.
    host: str = ""
    pid: int = 0


class Welcome(msgspec.Struct, tag="welcome"):
    """Acceptance of a client, with the smaller of the two sides' limits and the longer heartbeat."""

    max_frame: _MaxFrame
    max_memory: _MaxMemory
    heartbeat: _Seconds
    #: Names of the endpoints; the index in this list is the endpoint's number.
    endpoints: list[str]
    #: Shapes of the endpoints by number, None for those without streams; empty if no endpoint streams.
    shapes: list[Shape | None] = []
    #: Subject of this end of the connection, and the secret that each message to it begins with.
    inbox: str = ""
    proof: _Proof = NO_PROOF
    host: str = ""
    pid: int = 0


class ServerReport(msgspec.Struct, tag="report"):
    """State of a server."""

    host: str
    report: control.StatusReport


Message = Hello | Welcome | ServerReport | control.Refuse | control.GoAway | control.Goodbye

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_reply_address_decoder = msgspec.msgpack.Decoder(ReplyAddress)


def encode(message: Message) -> bytes:
    """Encode a message. Does not check its values, nor that it is within MAX_MESSAGE bytes."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Decode a message. Raises RemoteProtocolError if it is invalid."""
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        why = one_line(str(error))
        raise RemoteProtocolError(f"a message of {len(data)} bytes cannot be decoded: {why}") from None


def decode_reply_address(data: bytes) -> ReplyAddress:
    """Decode the reply address of a hello; an empty one if it cannot be decoded."""
    try:
        return _reply_address_decoder.decode(data)
    except UNREADABLE:
        return ReplyAddress()


def describe_process(host: str, pid: int) -> str:
    """Describe a process of another host, for messages. The process itself has reported ``host`` and ``pid``."""
    return f"process {pid} on {host[:80]!r}" if host else "a process elsewhere"


def own_process() -> tuple[str, int]:
    """Return the name of this host and the id of this process."""
    return socket.gethostname(), os.getpid()
