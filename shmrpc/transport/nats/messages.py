"""What the two sides say to each other besides frames: the handshake. A goodbye is that of :mod:`shmrpc.wire.control`.

A client sends ``hello`` to the service's subject, with a subject that no other connection has and a secret. One server
answers there with ``welcome`` or ``refuse``, and proves by the secret that it has read the hello. In the welcome it
sends a subject and a secret of its own.
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

#: The version of these messages, and of how frames lie in NATS's; frames have that of control.VERSION.
VERSION: Final = 2
#: Bytes of the secret by which the sender of a message proves that it was told where this end of a connection is.
PROOF: Final = 16
NO_PROOF: Final = bytes(PROOF)
#: Bytes of one message within a connection: a welcome names each endpoint.
MAX_MESSAGE: Final = 1 << 20

_MaxFrame = Annotated[int, msgspec.Meta(ge=MIN_MAX_FRAME, le=MAX_MAX_FRAME)]
_MaxMemory = Annotated[int, msgspec.Meta(ge=control.MIN_MAX_MEMORY, le=control.MAX_MAX_MEMORY)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF, max_length=PROOF)]


class ReplyAddress(msgspec.Struct, tag="hello"):
    """Of a hello, where a refusal goes: that can be read although the rest cannot."""

    inbox: str = ""
    proof: _Proof = NO_PROOF


class Hello(msgspec.Struct, tag="hello"):
    """A client wants a server."""

    #: Of these messages, and of frames.
    versions: tuple[int, int]
    #: Bytes of the largest body it accepts, and of the large buffers of one frame.
    max_frame: _MaxFrame
    max_memory: _MaxMemory
    #: Seconds within which it wants a dead peer to be noticed.
    heartbeat: _Seconds
    #: The subject of this end of the connection, and the proof that each message to it begins with.
    inbox: str = ""
    proof: _Proof = NO_PROOF
    #: Whether it sends and reads pickles. Both sides do, or none.
    pickle: bool = False
    #: Where it runs, for messages.
    host: str = ""
    pid: int = 0


class Welcome(msgspec.Struct, tag="welcome"):
    """A server takes the client. What is agreed on is the smaller of the two sides' limits, the longer heartbeat."""

    max_frame: _MaxFrame
    max_memory: _MaxMemory
    heartbeat: _Seconds
    #: The endpoints' names; the place in this list is the number.
    endpoints: list[str]
    #: By number, the shapes of those that stream on any side, None of the others; empty if none does.
    shapes: list[Shape | None] = []
    #: The subject of this end of the connection, and the proof that each message to it begins with.
    inbox: str = ""
    proof: _Proof = NO_PROOF
    host: str = ""
    pid: int = 0


class ServerReport(msgspec.Struct, tag="report"):
    """What a server says of itself."""

    host: str
    report: control.StatusReport


Message = Hello | Welcome | ServerReport | control.Refuse | control.GoAway | control.Goodbye

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_reply_address_decoder = msgspec.msgpack.Decoder(ReplyAddress)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in these bytes; RemoteProtocolError if it is none."""
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        why = one_line(str(error))
        raise RemoteProtocolError(f"a message of {len(data)} bytes cannot be read: {why}") from None


def decode_reply_address(data: bytes) -> ReplyAddress:
    """Read where a refusal of this hello goes, as far as it says so."""
    try:
        return _reply_address_decoder.decode(data)
    except UNREADABLE:
        return ReplyAddress()


def describe_process(host: str, pid: int) -> str:
    """Names a process elsewhere, as it says of itself."""
    return f"process {pid} on {host[:80]!r}" if host else "a process elsewhere"


def own_address() -> tuple[str, int]:
    """The host and the process that this is."""
    return socket.gethostname(), os.getpid()
